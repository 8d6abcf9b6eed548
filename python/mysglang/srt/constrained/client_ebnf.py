r"""A client's `ebnf`, with what xgrammar reads otherwise than it is written put into words that it enforces.

xgrammar lets a negated class have every character beyond ASCII, also those that it leaves out. Such a class is written
here as the characters that it has. Knows no library.
"""

from __future__ import annotations

import re

from mysglang.srt.constrained.backend import GrammarError
from mysglang.srt.constrained.json_schema.ebnf import LAST_ASCII, ebnf_class
from mysglang.srt.constrained.json_schema.regular import END, all_but, char_class

# A text, a comment, or a class: what looks like a class in the other two is none.
_TOKEN = re.compile(r'"(?:\\.|[^"\\\r\n])*"|#[^\r\n]*|\[(?P<negated>\^?)(?P<members>(?:\\.|[^]\\\r\n])*)\]')
_MEMBER = re.compile(
    r"\\x(?P<x>[0-9a-fA-F]+)|\\u(?P<u>[0-9a-fA-F]{4})|\\U(?P<U>[0-9a-fA-F]{8})"
    r"""|\\(?P<escape>[]abfnrtv0e'"?/^$\\.*+()[{}|-])|[^\\]"""
)
_CONTROLS = {"a": 7, "b": 8, "f": 12, "n": 10, "r": 13, "t": 9, "v": 11, "0": 0, "e": 27}


def enforceable(grammar: str) -> str:
    """Returns `grammar` in words that xgrammar enforces. Raises GrammarError for the character U+0000, which would end
    it, and for a class that leaves out every character.
    """
    if "\0" in grammar:
        raise GrammarError(r"it contains the character U+0000; write it as \u0000")
    return _TOKEN.sub(_written, grammar)


def _written(token: re.Match[str]) -> str:
    ranges = _ranges(token["members"]) if token["negated"] else []
    if all(last <= LAST_ASCII for _, last in ranges) or any(first > last for first, last in ranges):
        return token[0]
    without = char_class(ranges)
    left = all_but(without.ranges if without.kind == "class" else ())
    if not left:
        raise GrammarError(f"the class {token[0]} leaves out every character")
    return ebnf_class(left)


def _ranges(members: str) -> list[tuple[int, int]]:
    """Returns the ranges of code points between the brackets of a class, as xgrammar reads them; none if one of the
    members is malformed, which xgrammar then says.
    """
    read = [*_MEMBER.finditer(members)]
    if sum(len(member[0]) for member in read) < len(members):
        return []
    found: list[tuple[int, int]] = []
    at = 0
    while at < len(read):
        first = last = _code(read[at])
        at += 1
        if at + 1 < len(read) and read[at][0] == "-":
            last = _code(read[at + 1])
            at += 2
        found.append((first, last))
    return found


def _code(member: re.Match[str]) -> int:
    if digits := member["x"] or member["u"] or member["U"]:
        return min(int(digits, 16), END - 1)
    if escaped := member["escape"]:
        return _CONTROLS.get(escaped, ord(escaped))
    return ord(member[0])
