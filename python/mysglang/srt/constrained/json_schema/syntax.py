"""Syntax: how the values of a grammar are written. JSON, and two that models write in tool calls (`syntaxes.py`)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from decimal import Decimal

from mysglang.srt.constrained.json_schema.document import Json
from mysglang.srt.constrained.json_schema.regular import EMPTY, NONE, Expr, alt, cat, text
from mysglang.srt.constrained.json_schema.rules import COLON, COMMA, SPACE, quoted, word


class Syntax:
    """How values are written: as JSON. Others differ in strings, keys and separators."""

    space, comma, colon = SPACE, COMMA, COLON
    outer: Syntax | None = None
    """How the properties of the object that is the whole value are written, where they have no braces."""

    def place(self, name: str) -> str:
        """Returns what properties are sorted by. Those with the same come in the order of the schema."""
        return ""

    def key(self, name: str) -> Expr:
        """Returns the language of a property's name."""
        return word(text(json.dumps(name, ensure_ascii=False)))

    def any_key(self, language: Expr) -> Expr:
        """Returns the language of a property's name that is in a language."""
        return quoted(language)

    def string(self, language: Expr) -> Expr:
        """Returns the language of a string whose value is in a language."""
        return quoted(language)

    def scalar(self, raw: Json) -> Expr:
        """Returns the language of one value that is no list or object; NONE for one that UTF-8 cannot encode."""
        if isinstance(raw, Decimal):
            return text(format(raw, "f") if -20 < raw.adjusted() < 20 else str(raw))
        return text(json.dumps(raw, ensure_ascii=False))

    def constants(self, raws: Sequence[Json]) -> Expr:
        """Returns the language of any of these values; values that UTF-8 cannot encode are left out."""
        single = [self.scalar(raw) for raw in raws if not isinstance(raw, list | dict)]
        return alt(word(alt(*single)), *(self.constant(raw) for raw in raws if isinstance(raw, list | dict)))

    def constant(self, raw: Json) -> Expr:
        """Returns the language of one value, with its properties in their order."""
        if isinstance(raw, list):
            return self.around("[", self._separated([self.constant(item) for item in raw]), "]")
        if isinstance(raw, dict):
            names = sorted(raw, key=self.place)
            items = [cat(self.key(name), self.colon, self.constant(raw[name])) for name in names]
            return self.around("{", self._separated(items), "}")
        return word(self.scalar(raw))

    def around(self, before: str, inside: Expr, after: str) -> Expr:
        """Returns `inside` between brackets; NONE if nothing can be inside."""
        if inside.kind == "none":
            return NONE
        return cat(
            word(text(before)), self.space, inside, *([self.space] if inside != EMPTY else []), word(text(after))
        )

    def _separated(self, parts: list[Expr]) -> Expr:
        return cat(*(part for index, one in enumerate(parts) for part in ((self.comma, one) if index else (one,))))


JSON_SYNTAX = Syntax()
