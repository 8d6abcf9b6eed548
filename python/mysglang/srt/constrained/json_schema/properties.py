"""The properties of an object, as rules: named ones in their order, then others."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from mysglang.srt.constrained.backend import GrammarError
from mysglang.srt.constrained.json_schema.algebra import Algebra
from mysglang.srt.constrained.json_schema.automata import is_empty
from mysglang.srt.constrained.json_schema.items import Values
from mysglang.srt.constrained.json_schema.regular import (
    ANYTHING,
    EMPTY,
    NONE,
    Expr,
    alt,
    both,
    cat,
    contains,
    inverse,
    rep,
    text,
)
from mysglang.srt.constrained.json_schema.rules import Rules
from mysglang.srt.constrained.json_schema.shapes import NEVER, Named, Object, Others
from mysglang.srt.constrained.json_schema.syntax import Syntax

MAX_STATES = 3000
"""Most states of an automaton that counts properties for `minProperties` and `maxProperties`."""
MAX_WITNESSES = 200
RUN = 16
"""Properties in one rule."""


def with_witnesses(shape: Object, algebra: Algebra) -> Iterator[Object]:
    """Yields variants of `shape` without `some`: in each, a named property is chosen to satisfy each entry of
    `some`.
    """
    found = [replace(shape, some=frozenset())]
    for keys, node in sorted(shape.some, key=hash):
        after = []
        for one in found:
            fitting = [named for named in one.named if named.node != NEVER and contains(keys, named.name)]
            if any(named.required and node <= named.node for named in fitting):
                after.append(one)
                continue
            for named in fitting:
                picked = replace(named, node=named.node | node, required=True)
                after.append(replace(one, named=tuple(picked if x is named else x for x in one.named)))
            if len(after) > MAX_WITNESSES:
                raise GrammarError(f"there are more than {MAX_WITNESSES} ways to satisfy an object in it")
            if not fitting:
                algebra.dropped["a property that must be there, but has no name"] = None
        found = after
    yield from (one for one in found if not algebra.empty.has_no_value(one, 1))


def properties_of(shape: Object, values: Values, rules: Rules, syntax: Syntax) -> Expr:
    """Returns the text between the braces; NONE if no text is possible. Raises GrammarError if it cannot be
    expressed.
    """
    named = [one for one in shape.named if values.value(one.node).kind != "none"]
    named.sort(key=lambda one: syntax.place(one.name))
    other = _other(shape, values, rules, syntax)
    required = sum(one.required for one in named)
    if other.kind == "none" and shape.most is not None and len(named) <= shape.most:
        shape = replace(shape, most=None)
    if required >= shape.least and shape.most is None:
        return _uncounted(named, other, values, rules, syntax)
    return _counted(shape, named, other, values, rules, syntax)


def _property(one: Named, values: Values, syntax: Syntax) -> Expr:
    return cat(syntax.key(one.name), syntax.colon, values.value(one.node))


def _other(shape: Object, values: Values, rules: Rules, syntax: Syntax) -> Expr:
    """Returns the language of a property whose name no keyword mentions."""
    names = alt(*(text(one.name) for one in shape.named))
    options = []
    for one in shape.others:
        value = values.value(one.node)
        if value.kind != "none":
            options.append(_key_and_value(one, names, value, syntax))
    return rules.add(alt(*options))


def _key_and_value(one: Others, names: Expr, value: Expr, syntax: Syntax) -> Expr:
    keys = both(one.keys, inverse(names))
    if keys != ANYTHING and is_empty(keys):
        return NONE
    return cat(syntax.any_key(keys), syntax.colon, value)


def _uncounted(named: list[Named], other: Expr, values: Values, rules: Rules, syntax: Syntax) -> Expr:
    """Returns the language of an object whose number of properties is not bounded.

    Built from the last property to the first. Each step has what may follow where a property stands already, and what
    may follow where none does.
    """
    comma = syntax.comma
    later = rep(cat(comma, other)) if other.kind != "none" else EMPTY
    first_required = next((place for place, one in enumerate(named) if one.required), len(named))
    beginnings = []
    if first_required == len(named):
        beginnings = [EMPTY, cat(other, later)]
    for place in range(len(named) - 1, -1, -1):
        item = _property(named[place], values, syntax)
        # The text after a possible beginning is also part of the text after the property before it.
        if (0 < place <= first_required) or (len(named) - place) % RUN == 0:
            later = rules.add(later)
        if place <= first_required:
            beginnings.append(cat(item, later))
        more = cat(comma, item)
        # An option of its own, and not one of two ways on: written out, these would double with each property.
        later = cat(more if named[place].required else rep(more, 0, 1), later)
    return alt(*reversed(beginnings))


def _counted(shape: Object, named: list[Named], other: Expr, values: Values, rules: Rules, syntax: Syntax) -> Expr:
    """Does what `_uncounted` does, with a state for each number of properties so far."""
    most, comma = shape.most, syntax.comma
    cap = shape.least if most is None else most
    cap = min(cap, len(named) + 1) if other.kind == "none" else cap
    if (len(named) + 1) * (cap + 1) > MAX_STATES:
        raise GrammarError(f"'minProperties' or 'maxProperties' needs more than {MAX_STATES} states")
    after: list[Expr] = [_last(shape, count, other, comma) for count in range(cap + 1)]
    for one in reversed(named):
        item = _property(one, values, syntax)
        following = [rules.add(expr) for expr in after]
        after = []
        for count in range(cap + 1):
            taken = NONE
            if most is None or count < most:
                taken = cat(*([comma] if count else []), item, following[min(count + 1, cap)])
            after.append(taken if one.required else alt(taken, following[count]))
    return after[0]


def _last(shape: Object, count: int, other: Expr, comma: Expr) -> Expr:
    """Returns the text after all named properties, when there are `count` of them.

    Names that are not in the schema could come twice, so that at most one of them can be asked for.
    """
    missing = shape.least - count
    room = None if shape.most is None else shape.most - count
    if missing > 1 or (missing == 1 and (other.kind == "none" or room == 0)):
        return NONE
    if other.kind == "none" or room == 0:
        return EMPTY
    more = rep(cat(comma, other), 0, None if room is None else room - 1)
    some = cat(*([comma] if count else []), other, more)
    return some if missing == 1 else alt(EMPTY, some)
