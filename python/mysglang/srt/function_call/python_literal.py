"""Python literals as models write them: read as Python reads them, without its warnings about escapes.

Two things that templates show to models, such as that of LFM2.5, are read, too. One is a string between single quotes
that goes on in the next line, the other `true`, `false` and `null` within a list or an object. An f-string without a
placeholder is a string. Anything else that is no literal is refused.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Mapping

MAX_LITERAL = 1 << 16
"""Characters of a literal that is read: Python's parser recurses, and takes long over what is no literal."""

QUOTES = ('"""', "'''", '"', "'")

_OPENING = re.compile(r"""(?<!\w)([A-Za-z]{0,2})(\"{3}|'{3}|"|')""")
_BODY = {quote: re.compile(rf"(?:\\.|(?!{quote})[^\\])*", re.DOTALL) for quote in QUOTES}
_ESCAPE = re.compile(r"\\([4-7][0-7]{2}|.)|[\n\r]", re.DOTALL)
_LINE_ENDS = {"\n": "\\n", "\r": "\\r"}
_JSON_WORDS: Mapping[str, bool | None] = {"true": True, "false": False, "null": None}
_KNOWN = frozenset("\n\r\\'\"abfnrtvx01234567")
_KNOWN_IN_TEXT = _KNOWN | frozenset("uUN")


def read(source: str) -> object:
    """Returns the value of a Python literal. Raises ValueError for any other source."""
    if len(source) > MAX_LITERAL:
        raise ValueError("longer than a literal that is read")
    try:
        text = "".join(_quietly(source))
        # Within a call, a value may go on in the next line.
        tree = ast.parse(f"({text}\n)" if "\n" in text else text, mode="eval")
        return ast.literal_eval(_Whole().visit(tree))
    except (SyntaxError, TypeError, MemoryError, RecursionError) as error:
        raise ValueError("no literal") from error


class _Whole(ast.NodeTransformer):
    """Makes f-strings without placeholders strings, and the words of JSON values."""

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.Constant(_JSON_WORDS[node.id]) if node.id in _JSON_WORDS else node

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.expr:
        parts = [part.value for part in node.values if isinstance(part, ast.Constant)]
        return ast.Constant("".join(map(str, parts))) if len(parts) == len(node.values) else node


def _quietly(source: str) -> Iterator[str]:
    """Yields `source` in pieces. Escapes of which Python would warn, and ends of lines within strings, are written so
    that they mean the same.
    """
    at = 0
    while found := _OPENING.search(source, at):
        prefix, quote = found[1].lower(), found[2]
        body = _BODY[quote].match(source, found.end())
        assert body is not None, "the pattern matches the empty text"
        yield source[at : found.end()]
        yield body[0] if "r" in prefix else _ESCAPE.sub(_in_bytes if "b" in prefix else _in_text, body[0])
        at = body.end() + len(quote)
        yield source[body.end() : at]
    yield source[at:]


def _escape(known: frozenset[str], octal: Callable[[int], str]) -> Callable[[re.Match[str]], str]:
    def written(found: re.Match[str]) -> str:
        if found[1] is None:
            return _LINE_ENDS[found[0]]
        if len(found[1]) > 1:
            return octal(int(found[1], 8))
        # An escape that Python does not know stands for itself.
        return found[0] if found[1] in known else "\\" + found[0]

    return written


_in_text = _escape(_KNOWN_IN_TEXT, lambda code: f"\\u{code:04x}")
_in_bytes = _escape(_KNOWN, lambda code: f"\\x{code & 0xFF:02x}")
