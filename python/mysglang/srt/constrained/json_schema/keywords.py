"""The keywords for one type: each as a shape, and its negation as shapes.

`own_shapes` reads all of them in one schema together; `contraries` gives, one by one, the ways to break them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal

from mysglang.srt.constrained.backend import GrammarError
from mysglang.srt.constrained.json_schema.automata import is_empty
from mysglang.srt.constrained.json_schema.document import Document, Json, Place, refuse
from mysglang.srt.constrained.json_schema.numbers import Bounds, numbers
from mysglang.srt.constrained.json_schema.patterns import strings_with, whole
from mysglang.srt.constrained.json_schema.regular import ANYTHING, Expr, alt, both, contains, inverse, text
from mysglang.srt.constrained.json_schema.shapes import (
    ALL_ITEMS,
    CONSTANTS,
    NEVER,
    TRUE,
    Array,
    Contains,
    Named,
    Node,
    Number,
    Object,
    OneOf,
    Others,
    Shape,
    Text,
)
from mysglang.srt.utils.schema_words import FORMATS

TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")
MAX_PATTERNS = 6
"""`patternProperties` of one schema: each set of them is a case of its own."""

NUMBER_KEYWORDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
STRING_KEYWORDS = ("minLength", "maxLength", "pattern", "format")
ARRAY_KEYWORDS = ("items", "prefixItems", "additionalItems", "minItems", "maxItems", "uniqueItems", "contains")
OBJECT_KEYWORDS = (
    *("properties", "patternProperties", "additionalProperties", "propertyNames"),
    *("required", "minProperties", "maxProperties"),
)

ALL_KEYWORDS = frozenset(("type", *NUMBER_KEYWORDS, *STRING_KEYWORDS, *ARRAY_KEYWORDS, *OBJECT_KEYWORDS))


def types_of(place: Place) -> frozenset[str] | None:
    """Returns the types that the schema's keyword `type` lists; None if the schema has no `type`."""
    if "type" not in place.schema:
        return None
    given = place.schema["type"]
    names = given if isinstance(given, list) else [given]
    for name in names:
        if name not in TYPES:
            refuse("type", place, f"names no type of JSON: {str(name)[:40]!r}")
    return frozenset(names)


def count_of(keyword: str, place: Place) -> int | None:
    """Returns the value of a keyword that counts something; None if the keyword is absent."""
    given = place.schema.get(keyword)
    if given is None:
        return None
    if isinstance(given, bool) or not isinstance(given, int | Decimal) or given < 0 or given != int(given):
        refuse(keyword, place, "must be an integer that is not negative")
    return int(given)


def number_of(keyword: str, place: Place) -> Decimal | None:
    """Returns the value of a keyword that is a number; None if the keyword is absent."""
    given = place.schema.get(keyword)
    if given is None or (isinstance(given, bool) and keyword.startswith("exclusive")):
        return None
    if isinstance(given, bool) or not isinstance(given, int | Decimal):
        refuse(keyword, place, "must be a number")
    return Decimal(given)


def object_of(keyword: str, place: Place) -> dict[str, Json]:
    """Returns the value of a keyword that is an object; empty if the keyword is absent."""
    given = place.schema.get(keyword, {})
    if not isinstance(given, dict):
        refuse(keyword, place, "must be an object")
    return given


def names_of(keyword: str, place: Place, given: Json) -> list[str]:
    """Returns `given` if it is a list of strings; refuses it otherwise."""
    if not isinstance(given, list) or not all(isinstance(name, str) for name in given):
        # Draft 3 has a boolean there.
        if isinstance(given, bool) and keyword == "required":
            return []
        refuse(keyword, place, "must be a list of strings")
    return given


@dataclass(frozen=True, slots=True)
class Keywords:
    """Reads the keywords of one document."""

    document: Document
    names: Callable[[Node], Expr]
    """The strings that a node takes, as a language."""

    def node(self, place: Place, *steps: str | int) -> Node:
        """Returns the node for the schema below `place`."""
        below = self.document.below(place, *steps)
        return TRUE if below.schema is True or below.schema == {} else frozenset([(True, below)])

    def contrary(self, place: Place, *steps: str | int) -> Node:
        """Returns the node for what the schema below `place` does not take."""
        below = self.document.below(place, *steps)
        return NEVER if below.schema is True or below.schema == {} else frozenset([(False, below)])

    def own_shapes(self, place: Place) -> list[Shape]:
        """Returns shapes that `type` and the keywords of each type allow."""
        types, schema = types_of(place), place.schema
        found: list[Shape] = []
        constants = [value for value in CONSTANTS if types is None or _constant_type(value.raw) in types]
        if constants:
            found.append(OneOf(tuple(constants)))
        kinds: tuple[tuple[str, tuple[str, ...], Callable[[Place], Shape]], ...] = (
            ("number", NUMBER_KEYWORDS, self.number),
            ("string", STRING_KEYWORDS, self.string),
            ("array", ARRAY_KEYWORDS, self.array),
            ("object", OBJECT_KEYWORDS, self.object),
        )
        for kind, keywords, read in kinds:
            spoken = any(keyword in schema for keyword in keywords)
            if types is None or kind in types or (kind == "number" and "integer" in types):
                found.append(read(place) if spoken else _UNBOUND[kind])
        if types is not None and "integer" in types and "number" not in types:
            integers = Number(Bounds(integer=True))
            found = [Number(one.bounds & integers.bounds) if isinstance(one, Number) else one for one in found]
        return found

    def number(self, place: Place) -> Number:
        schema = place.schema
        low, high = number_of("minimum", place), number_of("maximum", place)
        bounds = Bounds(low, high, schema.get("exclusiveMinimum") is True, schema.get("exclusiveMaximum") is True)
        bounds &= Bounds(low=number_of("exclusiveMinimum", place), low_open=True)
        bounds &= Bounds(high=number_of("exclusiveMaximum", place), high_open=True)
        divisor = number_of("multipleOf", place)
        if divisor is not None and divisor <= 0:
            refuse("multipleOf", place, "must be above zero")
        divisors = frozenset(() if divisor is None else (divisor.normalize(),))
        # An open side without a bound means nothing.
        low_open, high_open = bounds.low_open and bounds.low is not None, bounds.high_open and bounds.high is not None
        shape = Number(Bounds(bounds.low, bounds.high, low_open, high_open, divisors=divisors))
        try:
            is_empty(numbers(shape.bounds))
        except GrammarError as error:
            keyword = "multipleOf" if divisors else next(one for one in NUMBER_KEYWORDS if one in schema)
            refuse(keyword, place, f"cannot be held to: {error}")
        return shape

    def string(self, place: Place) -> Text:
        schema = place.schema
        languages = []
        if "pattern" in schema:
            languages.append(self.pattern(place, "pattern", schema["pattern"]))
        given = schema.get("format")
        if isinstance(given, str) and given in FORMATS:
            languages.append(whole(FORMATS[given]))
        shape = Text(count_of("minLength", place) or 0, count_of("maxLength", place), both(*languages))
        try:
            is_empty(shape.of_length)
        except GrammarError as error:
            refuse("pattern" if "pattern" in schema else "format", place, f"cannot be held to: {error}")
        return shape

    def pattern(self, place: Place, keyword: str, pattern: Json, *, wide: bool = False) -> Expr:
        """Returns the strings in which the pattern is found. `wide`: with characters about which dialects disagree."""
        if not isinstance(pattern, str):
            refuse(keyword, place, "must be a string")
        try:
            return strings_with(pattern, wide=wide)
        except GrammarError as error:
            refuse(keyword, place, f"cannot be used: {error}")

    def array(self, place: Place) -> Array:
        schema = place.schema
        # Until draft 2019-09, a list of items was what is called prefixItems now.
        listed = "items" if isinstance(schema.get("items"), list) else "prefixItems"
        others = "additionalItems" if listed == "items" else "items"
        given = schema.get(listed, [])
        if not isinstance(given, list):
            refuse(listed, place, "must be a list")
        prefix = tuple(self.node(place, listed, index) for index in range(len(given)))
        rest = self.node(place, others) if others in schema else TRUE
        wanted: frozenset[Contains] = frozenset()
        if "contains" in schema:
            least, most = count_of("minContains", place), count_of("maxContains", place)
            wanted = frozenset([Contains(self.node(place, "contains"), 1 if least is None else least, most)])
        unique = schema.get("uniqueItems", False)
        if not isinstance(unique, bool):
            refuse("uniqueItems", place, "must be true or false")
        return Array(
            prefix=prefix,
            rest=rest,
            least=count_of("minItems", place) or 0,
            most=count_of("maxItems", place),
            contains=wanted,
            unique=place if unique else None,
            evaluated=ALL_ITEMS if others in schema else len(prefix),
        )

    def object(self, place: Place) -> Object:
        schema = place.schema
        patterns = object_of("patternProperties", place)
        required = names_of("required", place, schema.get("required", []))
        if len(patterns) > MAX_PATTERNS:
            refuse("patternProperties", place, f"has more than {MAX_PATTERNS} patterns")
        allowed = self.names(self.node(place, "propertyNames")) if "propertyNames" in schema else ANYTHING
        others = tuple(self._others(place, list(patterns), allowed))
        shape = Object((), others)
        named: dict[str, Named] = {}
        for name in object_of("properties", place):
            node = self.node(place, "properties", name)
            for pattern in patterns:
                if self._found(place, pattern, name):
                    node |= self.node(place, "patternProperties", pattern)
            node = node if contains(allowed, name) else NEVER
            named[name] = Named(name, node, name in required, True, True)
        for name in required:
            if name not in named:
                other = next((one for one in shape.others if contains(one.keys, name)), None)
                node, evaluated = (other.node, other.evaluated) if other else (NEVER, False)
                named[name] = Named(name, node, True, evaluated)
        least, most = count_of("minProperties", place) or 0, count_of("maxProperties", place)
        return Object(tuple(named.values()), others, least, most)

    def _found(self, place: Place, pattern: str, name: str) -> bool:
        return contains(self.pattern(place, "patternProperties", pattern, wide=True), name)

    def _others(self, place: Place, patterns: list[str], allowed: Expr) -> Iterator[Others]:
        """Yields a case for each set of patterns that a property name can match."""
        schema = place.schema
        additional = self.node(place, "additionalProperties") if "additionalProperties" in schema else TRUE
        for chosen in range(1 << len(patterns)):
            keys, node = [allowed], TRUE
            for bit, pattern in enumerate(patterns):
                if chosen >> bit & 1:
                    keys.append(self.pattern(place, "patternProperties", pattern))
                    node |= self.node(place, "patternProperties", pattern)
                else:
                    keys.append(inverse(self.pattern(place, "patternProperties", pattern, wide=True)))
            if not chosen:
                node = additional
            spoken = bool(chosen) or "additionalProperties" in schema
            both_keys = both(*keys)
            if both_keys.kind != "none":
                implicit = not spoken and "propertyNames" not in schema
                yield Others(both_keys, node, evaluated=spoken, implicit=implicit)

    def contraries(self, place: Place) -> Iterator[Shape | str]:
        """Yields the shapes that violate a keyword, or the name of a keyword that cannot be violated on purpose."""
        schema = place.schema
        types = types_of(place)
        if types is not None:
            yield from _other_types(types)
        yield from self._number_contraries(place)
        low, high = count_of("minLength", place), count_of("maxLength", place)
        if low:
            yield Text(0, low - 1)
        if high is not None:
            yield Text(high + 1)
        if "pattern" in schema:
            yield Text(language=inverse(self.pattern(place, "pattern", schema["pattern"], wide=True)))
        yield from self._array_contraries(place)
        yield from self._object_contraries(place)

    def _number_contraries(self, place: Place) -> Iterator[Shape | str]:
        bounds = self.number(place).bounds
        if bounds.low is not None:
            yield Number(Bounds(high=bounds.low, high_open=not bounds.low_open))
        if bounds.high is not None:
            yield Number(Bounds(low=bounds.high, low_open=not bounds.high_open))
        if bounds.divisors:
            yield "multipleOf"

    def _array_contraries(self, place: Place) -> Iterator[Shape | str]:
        schema, shape = place.schema, self.array(place)
        listed = "items" if isinstance(schema.get("items"), list) else "prefixItems"
        others = "additionalItems" if listed == "items" else "items"
        for index in range(len(shape.prefix)):
            prefix = (*[TRUE] * index, self.contrary(place, listed, index))
            yield Array(prefix, least=index + 1)
        if others in schema:
            broken = self.contrary(place, others)
            if not shape.prefix:
                yield Array(contains=frozenset([Contains(broken)]))
            elif broken != NEVER:
                # The first that nothing else speaks of; that a later one may be it is left out.
                yield Array((*[TRUE] * len(shape.prefix), broken), least=len(shape.prefix) + 1)
        if shape.least:
            yield Array(most=shape.least - 1)
        if shape.most is not None:
            yield Array(least=shape.most + 1)
        for wanted in shape.contains:
            if wanted.least == 1:
                yield Array(rest=self.contrary(place, "contains"))
            elif wanted.least:
                yield Array(contains=frozenset([Contains(wanted.node, 0, wanted.least - 1)]))
            if wanted.most is not None:
                yield Array(contains=frozenset([Contains(wanted.node, wanted.most + 1)]))
        if shape.unique:
            yield "uniqueItems"

    def _object_contraries(self, place: Place) -> Iterator[Shape | str]:
        schema = place.schema
        names, patterns = object_of("properties", place), object_of("patternProperties", place)
        for name in names:
            if (node := self.contrary(place, "properties", name)) != NEVER:
                yield Object((Named(name, node, True),))
        for pattern in patterns:
            if (node := self.contrary(place, "patternProperties", pattern)) != NEVER:
                yield Object(some=frozenset([(self.pattern(place, "patternProperties", pattern), node)]))
        if "additionalProperties" in schema:
            node = self.contrary(place, "additionalProperties")
            wide = (self.pattern(place, "patternProperties", pattern, wide=True) for pattern in patterns)
            keys = both(inverse(alt(*map(text, names))), *map(inverse, wide))
            if node != NEVER:
                yield Object(some=frozenset([(keys, TRUE if schema["additionalProperties"] is False else node)]))
        if "propertyNames" in schema:
            yield Object(some=frozenset([(self.names(self.contrary(place, "propertyNames")), TRUE)]))
        for name in names_of("required", place, schema.get("required", [])):
            yield Object((Named(name, NEVER),))
        if least := count_of("minProperties", place):
            yield Object(most=least - 1)
        if (most := count_of("maxProperties", place)) is not None:
            yield Object(least=most + 1)


def _constant_type(raw: Json) -> str:
    return "null" if raw is None else "boolean"


def _other_types(types: frozenset[str]) -> Iterator[Shape]:
    constants = tuple(value for value in CONSTANTS if _constant_type(value.raw) not in types)
    if constants:
        yield OneOf(constants)
    if "number" not in types:
        yield Number(Bounds(fractional="integer" in types))
    for kind, shape in (("string", Text()), ("array", Array()), ("object", Object())):
        if kind not in types:
            yield shape


_UNBOUND: dict[str, Shape] = {"number": Number(), "string": Text(), "array": Array(), "object": Object()}
