"""GrammarSpec: which strings an answer may be, as the client wrote it down; checked for form and size, not compiled.

Knows the kinds of grammar and no library that compiles them (`constrained/`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

import msgspec

from mysglang.srt.errors import InvalidRequest

GrammarKind: TypeAlias = Literal["json_schema", "regex", "ebnf", "structural_tag"]
"""Kind of a grammar, which is also the name of its request field."""

KINDS: tuple[GrammarKind, ...] = get_args(GrammarKind)

ANY_JSON = "$$ANY$$"
"""A `json_schema` that every JSON value satisfies."""

MAX_GRAMMAR_BYTES = 128 << 10
"""Longest text of a grammar, in UTF-8. What a long one costs to compile is bounded apart from this."""


@dataclass(frozen=True, slots=True)
class GrammarSpec:
    """One grammar; equal specs are the same grammar."""

    kind: GrammarKind
    text: str

    @property
    def schema(self) -> str:
        """Returns the JSON schema of a grammar of that kind, also for any JSON."""
        return "{}" if self.text == ANY_JSON else self.text


def grammar_spec(texts: Mapping[GrammarKind, str | None]) -> GrammarSpec | None:
    """Returns the grammar that is given, if one is; the first, if there are several, which `check_grammars` refuses."""
    return next((GrammarSpec(kind, text) for kind, text in texts.items() if text is not None), None)


def check_grammars(texts: Mapping[GrammarKind, str | None]) -> None:
    """Raise InvalidRequest, naming the field, for more than one grammar, one too long, and one that is malformed."""
    given = {kind: text for kind, text in texts.items() if text is not None}
    if len(given) > 1:
        raise InvalidRequest(f"Only one of {' and '.join(given)} may be given.", param=[*given][1])
    for kind, text in given.items():
        # A character has at least one byte: what is far too long need not be encoded to find out.
        size = len(text) if len(text) > MAX_GRAMMAR_BYTES else len(text.encode(errors="surrogatepass"))
        if not 0 < size <= MAX_GRAMMAR_BYTES:
            raise InvalidRequest(f"{kind} must have 1 to {MAX_GRAMMAR_BYTES} bytes, got {size}.", param=kind)
        if kind == "structural_tag" or (kind == "json_schema" and text != ANY_JSON):
            _check_json(kind, text)


def _check_json(kind: GrammarKind, text: str) -> None:
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError) as error:
        raise InvalidRequest(f"{kind} is not valid JSON: {error}.", param=kind) from None
    except RecursionError:
        raise InvalidRequest(f"{kind} is nested too deeply.", param=kind) from None
    if not isinstance(value, dict) and not (kind == "json_schema" and isinstance(value, bool)):
        raise InvalidRequest(f"{kind} must be a JSON object.", param=kind)
