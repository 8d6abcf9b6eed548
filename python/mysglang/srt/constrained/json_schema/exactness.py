"""Exactness: whether the shapes of a literal are all that it takes, or only a part.

An answer may always be narrower than its schema. But that a value is *not* in a schema may only be concluded from
shapes that leave nothing out: `oneOf` needs this. What is not known to be exact counts as narrower.
"""

from __future__ import annotations

from mysglang.srt.constrained.json_schema.document import Document, Place
from mysglang.srt.constrained.json_schema.keywords import ALL_KEYWORDS, Keywords
from mysglang.srt.constrained.json_schema.shapes import Literal, Node
from mysglang.srt.utils.schema_words import FORMATS

NARROWED = frozenset(("unevaluatedProperties", "unevaluatedItems", "dependencies", "dependentSchemas"))
"""Keywords that leave out ways to satisfy them, or would need too much to be followed here."""
EXACT_CONTRARIES = frozenset(
    (
        *("type", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "minLength", "maxLength"),
        *("minItems", "maxItems", "minProperties", "maxProperties", "required", "properties", "enum", "const"),
    )
)
"""Keywords of which every way to break them is a shape."""
CONSTRAINTS = ALL_KEYWORDS | NARROWED | {"enum", "const", "dependentRequired"}


class Exactness:
    """Facts about the literals of one document."""

    def __init__(self, document: Document, keywords: Keywords) -> None:
        self._document = document
        self._keywords = keywords
        self._known: dict[Literal, bool] = {}

    def of_node(self, node: Node) -> bool:
        return all(map(self.of, node))

    def of(self, literal: Literal) -> bool:
        """True if the shapes of `literal` omit no value."""
        if literal not in self._known:
            self._known[literal] = False
            positive, place = literal
            own = isinstance(place.schema, bool) or (self._own(place) if positive else self._broken(place))
            self._known[literal] = own and all(map(self.of, self._applied(positive, place)))
        return self._known[literal]

    def _own(self, place: Place) -> bool:
        schema = place.schema
        if not NARROWED.isdisjoint(schema) or schema.get("format") in FORMATS:
            return False
        patterns = [schema["pattern"]] if "pattern" in schema else []
        patterns.extend(schema.get("patternProperties", ()))
        return "propertyNames" not in schema and all(self._one_dialect(place, pattern) for pattern in patterns)

    def _one_dialect(self, place: Place, pattern: str) -> bool:
        """Returns True if all dialects of regular expressions agree about the pattern."""
        narrow = self._keywords.pattern(place, "pattern", pattern)
        return narrow == self._keywords.pattern(place, "pattern", pattern, wide=True)

    @staticmethod
    def _broken(place: Place) -> bool:
        schema = place.schema
        values = schema.get("enum", [schema.get("const")])
        if not CONSTRAINTS.intersection(schema) <= EXACT_CONTRARIES or not isinstance(values, list):
            return False
        return not any(isinstance(value, list | dict) for value in values)

    def _applied(self, positive: bool, place: Place) -> list[Literal]:
        """Returns the literals from whose shapes the shapes of this one are made."""
        schema, document = place.schema, self._document
        if isinstance(schema, bool):
            return []
        found = [(positive, document.referred(place))] if "$ref" in schema else []
        listed = ((keyword, index) for keyword in ("allOf", "anyOf") for index in range(len(schema.get(keyword, ()))))
        found.extend((positive, document.below(place, *steps)) for steps in listed)
        both = [document.below(place, "oneOf", index) for index in range(len(schema.get("oneOf", ())))]
        if "if" in schema:
            both.append(document.below(place, "if"))
        found.extend((sign, one) for one in both for sign in (False, True))
        if "not" in schema:
            found.append((not positive, document.below(place, "not")))
        found.extend((positive, document.below(place, branch)) for branch in ("then", "else") if branch in schema)
        return found
