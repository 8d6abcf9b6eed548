"""Algebra: what values a schema takes, as shapes. Conjunctions, disjunctions and negations are worked out here.

Every negation is pushed down to single keywords. After that, to take less than the schema would be no fault: an answer
that satisfies less is valid. So where the contrary of a keyword cannot be said, that way out is dropped, and noted;
where a keyword itself cannot be, the schema is refused.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from mysglang.srt.constrained.json_schema.document import Document, Json, Place, refuse
from mysglang.srt.constrained.json_schema.emptiness import Emptiness, NotKnownYetError
from mysglang.srt.constrained.json_schema.exactness import Exactness
from mysglang.srt.constrained.json_schema.keywords import ALL_KEYWORDS, Keywords, names_of, object_of
from mysglang.srt.constrained.json_schema.marks import evaluated_array, evaluated_object, unmarked
from mysglang.srt.constrained.json_schema.meeting import holds, meet
from mysglang.srt.constrained.json_schema.numbers import Bounds
from mysglang.srt.constrained.json_schema.regular import Expr, alt, inverse, text
from mysglang.srt.constrained.json_schema.shapes import (
    CONSTANTS,
    NEVER,
    TRUE,
    Array,
    Literal,
    Named,
    Node,
    Number,
    Object,
    OneOf,
    Shape,
    Text,
    Value,
)

MAX_SHAPES = 300
"""Ways to satisfy one node."""
MAX_MEETINGS = 90_000
"""Pairs of shapes that are brought together for one schema."""
FEW_SHAPES = 8
"""Ways of one node that are kept without looking whether they have a value."""
FEW_OPTIONS = 4
"""Options of a `oneOf` that are kept apart in all ways there are; among more, an object by what it lacks."""

ANY_SHAPE: tuple[Shape, ...] = (
    OneOf(CONSTANTS),
    Number(),
    Text(),
    Array(),
    Object(),
)
NO_OBJECT = ANY_SHAPE[:-1]
COMBINING = ("oneOf", "anyOf", "allOf", "if", "not", "dependentSchemas", "dependentRequired", "dependencies", "$ref")
DYNAMIC = ("$dynamicRef", "$recursiveRef")


class Algebra:
    """The operations on the shapes of one document."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self._keywords = Keywords(document, self.strings)
        self._exactness = Exactness(document, self._keywords)
        self._nodes: dict[Node, tuple[Shape, ...]] = {}
        self.empty = Emptiness(self._nodes, self.shapes, self._exactness)
        self._literals: dict[Literal, tuple[Shape, ...] | None] = {}
        """None: being worked out."""
        self._meetings = 0
        self._made: list[Json] = []
        self.dropped: dict[str, None] = {}
        """Ways out that could not be said."""

    def shapes(self, node: Node) -> tuple[Shape, ...]:
        """Returns the ways to satisfy `node`; none: nothing does."""
        if node not in self._nodes:
            # The newest literal comes last, so that most often all but that one were brought together already.
            ordered = sorted(node, key=lambda literal: (literal[1].number, literal[0]))
            known = len(node) - 1
            while known > 0 and frozenset(ordered[:known]) not in self._nodes:
                known -= 1
            found = self._nodes[frozenset(ordered[:known])] if known > 0 else ANY_SHAPE
            known = max(known, 0)
            for count in range(known, len(node)):
                found = self._meet(found, self._literal(ordered[count]), ordered[count][1])
                self._nodes[frozenset(ordered[: count + 1])] = found
            self._nodes.setdefault(node, found)
        return self._nodes[node]

    def accepts(self, node: Node, value: Json) -> bool:
        """True if a value satisfies `node`."""
        return any(holds(shape, Value.of(value), self.accepts) for shape in self.shapes(node))

    def strings(self, node: Node) -> Expr:
        """Returns the strings that satisfy `node`."""
        found: list[Expr] = []
        for shape in self.shapes(node):
            if isinstance(shape, Text):
                found.append(shape.of_length)
            elif isinstance(shape, OneOf):
                found.extend(text(value.raw) for value in shape.values if isinstance(value.raw, str))
        return alt(*found)

    def _meet(self, a: tuple[Shape, ...], b: tuple[Shape, ...], place: Place) -> tuple[Shape, ...]:
        if a is ANY_SHAPE or b is ANY_SHAPE:
            return b if a is ANY_SHAPE else a
        self._count_meetings(len(a) * len(b), place)
        met = dict.fromkeys(shape for x in a for y in b if (shape := meet(x, y, self.accepts)) is not None)
        found = [shape for shape in met if not self.empty.plainly(shape)]
        if len(found) > FEW_SHAPES:
            # Each combination would double with every further keyword, though most can be seen to have no value.
            found = [shape for shape in found if not self.empty.has_no_value(shape, 2)]
        return self._limited(found, place)

    def _count_meetings(self, count: int, place: Place) -> None:
        self._meetings += count
        if self._meetings > MAX_MEETINGS:
            refuse(_combining(place), place, f"brings the schema above {MAX_MEETINGS} combinations")

    def _limited(self, shapes: Collection[Shape], place: Place) -> tuple[Shape, ...]:
        if len(shapes) > MAX_SHAPES:
            refuse(_combining(place), place, f"leaves more than {MAX_SHAPES} ways to satisfy the schema")
        return tuple(shapes)

    def _join(self, parts: Iterable[tuple[Shape, ...]], place: Place) -> tuple[Shape, ...]:
        found: dict[Shape, None] = {}
        for part in parts:
            if part is ANY_SHAPE:
                return ANY_SHAPE
            found.update(dict.fromkeys(part))
        return self._limited(found, place)

    def _literal(self, literal: Literal) -> tuple[Shape, ...]:
        positive, place = literal
        if isinstance(place.schema, bool):
            return ANY_SHAPE if place.schema is positive else ()
        if literal in self._literals:
            known = self._literals[literal]
            if known is None:
                raise NotKnownYetError(f"'$ref' at {place.pointer} comes back to itself without anything in between")
            return known
        self._literals[literal] = None
        for keyword in DYNAMIC:
            if keyword in place.schema:
                refuse(keyword, place)
        try:
            found = self._positive(place) if positive else self._negative(place)
        except BaseException:
            del self._literals[literal]
            raise
        self._literals[literal] = found
        return found

    def _below(self, place: Place, *steps: str | int, positive: bool = True) -> tuple[Shape, ...]:
        return self._literal((positive, self._document.below(place, *steps)))

    # Shapes of the values that a schema accepts.

    def _positive(self, place: Place) -> tuple[Shape, ...]:
        schema = place.schema
        if "$ref" in schema:
            referred = self._literal((True, self._document.referred(place)))
            if self._document.ref_stands_alone or len(schema) == 1:
                return referred
        else:
            referred = ANY_SHAPE
        found: tuple[Shape, ...] = tuple(self._keywords.own_shapes(place)) if _speaks(schema) else ANY_SHAPE
        if "enum" in schema or "const" in schema:
            found = self._meet(found, (OneOf(self._values(place)),), place)
        found = self._meet(found, referred, place)
        for part in self._applied(place):
            found = self._meet(found, part, place)
        if "unevaluatedProperties" in schema or "unevaluatedItems" in schema:
            found = tuple(self._evaluated(shape, place) for shape in found)
        return found

    def _values(self, place: Place) -> tuple[Value, ...]:
        schema = place.schema
        given = schema.get("enum", [schema.get("const")])
        if not isinstance(given, list):
            refuse("enum", place, "must be a list")
        values = dict.fromkeys(map(Value.of, given))
        if "const" in schema:
            values = {value: None for value in values if value == Value.of(schema["const"])}
        return tuple(values)

    def _applied(self, place: Place) -> Iterable[tuple[Shape, ...]]:
        """Yields, for each keyword that applies other schemas to the same value, the shapes that it accepts."""
        schema = place.schema
        for index in range(self._count("allOf", place)):
            yield self._below(place, "allOf", index)
        if "anyOf" in schema:
            yield self._join((self._below(place, "anyOf", i) for i in range(self._count("anyOf", place))), place)
        if "oneOf" in schema:
            yield self._one_of(place)
        if "not" in schema:
            yield unmarked(self._below(place, "not", positive=False))
        if "if" in schema and ("then" in schema or "else" in schema):
            yield self._join(
                (self._when(place, "then", positive=True), self._when(place, "else", positive=False)), place
            )
        for keyword in ("dependentRequired", "dependentSchemas", "dependencies"):
            for name, given in object_of(keyword, place).items():
                yield self._dependent(keyword, name, given, place)

    def _count(self, keyword: str, place: Place) -> int:
        given = place.schema.get(keyword, [])
        if not isinstance(given, list):
            refuse(keyword, place, "must be a list")
        return len(given)

    def _when(self, place: Place, branch: str, *, positive: bool) -> tuple[Shape, ...]:
        condition = self._below(place, "if", positive=positive)
        if not positive:
            condition = unmarked(condition)
        return self._meet(condition, self._below(place, branch), place) if branch in place.schema else condition

    def _dependent(self, keyword: str, name: str, given: Json, place: Place) -> tuple[Shape, ...]:
        without = (*NO_OBJECT, Object((Named(name, NEVER),)))
        present: tuple[Shape, ...] = (Object((Named(name, TRUE, True),)),)
        if isinstance(given, list):
            wanted = names_of(keyword, place, given)
            present = self._meet(present, (Object(tuple(Named(one, TRUE, True) for one in wanted)),), place)
        else:
            present = self._meet(present, self._below(place, keyword, name), place)
        return self._join((without, present), place)

    def _one_of(self, place: Place) -> tuple[Shape, ...]:
        """Returns the shapes of values that satisfy exactly one of the schemas under `oneOf`."""
        count = self._count("oneOf", place)
        options = [self._below(place, "oneOf", index) for index in range(count)]
        exact = [self._exactness.of((True, self._document.below(place, "oneOf", index))) for index in range(count)]
        found = []
        for index, option in enumerate(options):
            for shape in option:
                alone: tuple[Shape, ...] = (shape,)
                for other in range(count):
                    if other == index or (exact[other] and self._apart(shape, options[other], place)):
                        continue
                    contrary = unmarked(self._below(place, "oneOf", other, positive=False))
                    if count > FEW_OPTIONS:
                        contrary = _without_what_is_required(contrary, shape) or contrary
                    alone = self._meet(alone, contrary, place)
                found.append(alone)
        return self._join(found, place)

    def _apart(self, shape: Shape, others: tuple[Shape, ...], place: Place) -> bool:
        """Returns True if `shape` has no value in common with any of `others`, which must be exact."""
        self._count_meetings(len(others), place)
        met = (meet(shape, other, self.accepts) for other in others)
        return all(one is None or self.empty.plainly(one) or self.empty.has_no_value(one, 2) for one in met)

    def _evaluated(self, shape: Shape, place: Place) -> Shape:
        """Returns `shape` with unevaluatedProperties and unevaluatedItems applied to what no other keyword has
        evaluated.
        """
        if isinstance(shape, Object) and "unevaluatedProperties" in place.schema:
            return evaluated_object(shape, self._keywords.node(place, "unevaluatedProperties"))
        if isinstance(shape, Array) and "unevaluatedItems" in place.schema:
            return evaluated_array(shape, self._keywords.node(place, "unevaluatedItems"))
        return shape

    # Shapes of the values that a schema does not accept.

    def _negative(self, place: Place) -> tuple[Shape, ...]:
        schema = place.schema
        if "$ref" in schema and self._document.ref_stands_alone:
            return self._literal((False, self._document.referred(place)))
        parts = list(self._contraries(place))
        return unmarked(self._join(parts, place))

    def _contraries(self, place: Place) -> Iterable[tuple[Shape, ...]]:
        """Yields, for each keyword, the shapes that violate it."""
        schema = place.schema
        if "$ref" in schema:
            yield self._literal((False, self._document.referred(place)))
        if _speaks(schema):
            for way in self._keywords.contraries(place):
                if isinstance(way, str):
                    self._drop(way, place)
                else:
                    yield (way,)
        if "enum" in schema or "const" in schema:
            yield self._other_than(self._values(place), place)
        for index in range(self._count("allOf", place)):
            yield self._below(place, "allOf", index, positive=False)
        if "anyOf" in schema:
            yield self._none_of("anyOf", place)
        if "oneOf" in schema:
            yield self._none_of("oneOf", place)
            count = self._count("oneOf", place)
            for i in range(count):
                for j in range(i):
                    yield self._meet(self._below(place, "oneOf", i), self._below(place, "oneOf", j), place)
        if "not" in schema:
            yield self._below(place, "not")
        if "if" in schema:
            for branch, positive in (("then", True), ("else", False)):
                if branch in schema:
                    condition = self._below(place, "if", positive=positive)
                    yield self._meet(condition, self._below(place, branch, positive=False), place)
        for keyword in ("dependentRequired", "dependentSchemas", "dependencies"):
            for name, given in object_of(keyword, place).items():
                yield self._independent(keyword, name, given, place)
        for keyword in ("unevaluatedProperties", "unevaluatedItems"):
            if keyword in schema and schema[keyword] is not True:
                self._drop(keyword, place)

    def _drop(self, keyword: str, place: Place) -> None:
        self.dropped[f"the contrary of {keyword!r} at {place.pointer}"] = None

    def _none_of(self, keyword: str, place: Place) -> tuple[Shape, ...]:
        found = ANY_SHAPE
        for index in range(self._count(keyword, place)):
            found = self._meet(found, self._below(place, keyword, index, positive=False), place)
        return found

    def _independent(self, keyword: str, name: str, given: Json, place: Place) -> tuple[Shape, ...]:
        present: tuple[Shape, ...] = (Object((Named(name, TRUE, True),)),)
        if isinstance(given, list):
            missing: list[Shape] = [Object((Named(one, NEVER),)) for one in names_of(keyword, place, given)]
            return self._meet(present, tuple(missing), place)
        return self._meet(present, self._below(place, keyword, name, positive=False), place)

    def _other_than(self, values: tuple[Value, ...], place: Place) -> tuple[Shape, ...]:
        """Returns the shapes of every value except `values`."""
        raws = [value.raw for value in values]
        constants = tuple(value for value in CONSTANTS if value not in values)
        numeric = frozenset(value.key[1] for value in values if value.key[0] == "number")  # type: ignore[index]
        strings = [text(raw) for raw in raws if isinstance(raw, str)]
        found: tuple[Shape, ...] = (
            *((OneOf(constants),) if constants else ()),
            Number(Bounds(excluded=numeric)),
            Text(language=inverse(alt(*strings))),
            Array(),
            Object(),
        )
        for raw in raws:
            if isinstance(raw, list | dict):
                schema = _as_schema(raw)
                self._made.append(schema)
                found = self._meet(found, self._literal((False, self._document.made(schema, place))), place)
        return found


def _without_what_is_required(contrary: tuple[Shape, ...], shape: Shape) -> tuple[Shape, ...]:
    """Returns the ways to satisfy `shape` and lack a property that another option requires and `shape` does not name.

    An object that declares its properties lacks it anyway. All ways out together would double with each option.
    """
    if not isinstance(shape, Object) or not any(one.declared for one in shape.named):
        return ()
    ways = (Object((Named(way.named[0].name, NEVER),)) for way in contrary if isinstance(way, Object) and way.named)
    named = {one.name for one in shape.named}
    return next(((way,) for way in ways if way in contrary and way.named[0].name not in named), ())


def _combining(place: Place) -> str:
    """Returns the keyword of `place` that most likely has many ways."""
    return next((keyword for keyword in COMBINING if keyword in place.schema), "type")


def _speaks(schema: dict[str, Json]) -> bool:
    """True if the schema has a keyword that applies to one type only."""
    return not ALL_KEYWORDS.isdisjoint(schema)


def _as_schema(raw: Json) -> Json:
    """Returns a schema that accepts this value and no other."""
    if isinstance(raw, list):
        items = [_as_schema(item) for item in raw]
        return {"type": "array", "prefixItems": items, "minItems": len(raw), "maxItems": len(raw)}
    if isinstance(raw, dict):
        properties = {name: _as_schema(value) for name, value in raw.items()}
        return {"type": "object", "properties": properties, "required": [*raw], "additionalProperties": False}
    return {"const": raw}
