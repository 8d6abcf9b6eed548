"""The items of an array, as rules."""

from __future__ import annotations

from typing import Protocol

from mysglang.srt.constrained.backend import GrammarError
from mysglang.srt.constrained.json_schema.document import refuse
from mysglang.srt.constrained.json_schema.regular import EMPTY, NONE, Expr, alt, cat, rep
from mysglang.srt.constrained.json_schema.rules import Rules
from mysglang.srt.constrained.json_schema.shapes import TRUE, Array, Contains, Literal, Node, contrary_of
from mysglang.srt.constrained.json_schema.syntax import Syntax

MAX_UNIQUE = 8
"""Values that items without doubles may have: which of them were there is part of where an answer stands."""
MAX_IN_ORDER = 64
"""Values that such items may have if they come in the order of the schema."""
MAX_STATES = 2000
"""Most states of an automaton that counts items for `contains` or `uniqueItems`."""


class Values(Protocol):
    """Rules and facts about the values inside an array or object."""

    def value(self, node: Node) -> Expr:
        """Returns the rule of a node; NONE if nothing satisfies it."""
        ...

    def constants(self, node: Node) -> list[Expr] | None:
        """Returns the values of a node, if there are only so many; None otherwise."""
        ...


def items_of(shape: Array, values: Values, rules: Rules, syntax: Syntax) -> Expr:
    """Returns the text between the brackets; NONE if no text is possible. Raises GrammarError if it cannot be
    expressed.
    """
    shape = _counted(shape)
    if shape.least > (shape.least if shape.most is None else shape.most):
        return NONE
    if shape.unique and (shape.most is None or shape.most > 1):
        return _unique(shape, values, rules, syntax)
    if shape.contains:
        return _with_contains(shape, values, rules, syntax)
    return _listed(shape, values, rules, syntax)


def _counted(shape: Array) -> Array:
    """Replaces each `contains` that every item or no particular item satisfies by bounds on the number of items."""
    left = set()
    least, most = shape.least, shape.most
    everywhere = shape.rest if not shape.prefix else None
    for wanted in shape.contains:
        if wanted.node == TRUE or (everywhere is not None and wanted.node <= everywhere):
            least = max(least, wanted.least)
            most = wanted.most if most is None else most if wanted.most is None else min(most, wanted.most)
        elif wanted.least or wanted.most is not None:
            left.add(wanted)
    return Array(shape.prefix, shape.rest, least, most, frozenset(left), shape.unique)


def _listed(shape: Array, values: Values, rules: Rules, syntax: Syntax) -> Expr:
    """Returns the language of a list, built from the last item to the first. Each step has what may follow its item."""
    comma = syntax.comma
    count = len(shape.prefix) if shape.most is None else min(len(shape.prefix), shape.most)
    rest = values.value(shape.rest) if shape.most is None or shape.most > count else NONE
    most = None if shape.most is None else shape.most - count
    if count == 0:
        if rest.kind == "none":
            return EMPTY if shape.least == 0 else NONE
        more = rep(cat(comma, rest), max(0, shape.least - 1), None if most is None else most - 1)
        some = cat(rest, more)
        return some if shape.least else alt(EMPTY, some)
    least = max(0, shape.least - count)
    after = rep(cat(comma, rest), least, most) if rest.kind != "none" else (NONE if least else EMPTY)
    for index in range(count - 1, -1, -1):
        item = values.value(shape.prefix[index])
        some = cat(*([comma] if index else []), item, after)
        after = some if index < shape.least else alt(EMPTY, some)
        if index % 16 == 0 and index:
            after = rules.add(after)
    return after


def _unique(shape: Array, values: Values, rules: Rules, syntax: Syntax) -> Expr:
    """Returns the language of a list without repeated values. A rule stands for the set of values that are left."""
    assert shape.unique is not None
    constants = values.constants(shape.rest)
    if constants is None or shape.prefix or shape.contains or len(constants) > MAX_IN_ORDER:
        refuse("uniqueItems", shape.unique, f"is supported for items with at most {MAX_IN_ORDER} values only")
    most = len(constants) if shape.most is None else min(shape.most, len(constants))
    if len(constants) > MAX_UNIQUE:
        return _in_order(constants, shape.least, most, rules, syntax)
    comma, known = syntax.comma, dict[int, Expr]()

    def after(used: int) -> Expr:
        count = used.bit_count()
        if used not in known:
            options = [EMPTY] if count >= shape.least else []
            for index, value in enumerate(constants if count < most else ()):
                if not used >> index & 1:
                    options.append(cat(*([comma] if used else []), value, after(used | 1 << index)))
            known[used] = rules.add(alt(*options))
        return known[used]

    return after(0)


def _in_order(constants: list[Expr], least: int, most: int, rules: Rules, syntax: Syntax) -> Expr:
    """Returns the language of a list with each value at most once, in the given order. There is a rule for each value
    and count of items so far.
    """
    comma, bounded = syntax.comma, most < len(constants)
    # The state must contain whether there was an item, for the comma. Items are counted further only as far as the
    # bounds need it.
    last = most if bounded else max(1, least)
    if (len(constants) + 1) * (last + 1) > MAX_STATES:
        raise GrammarError(f"'uniqueItems' with counts of items needs more than {MAX_STATES} states")
    after = [EMPTY if count >= least else NONE for count in range(last + 1)]
    for value in reversed(constants):
        without = [rules.add(expr) for expr in after]
        after = []
        for count in range(last + 1):
            full = bounded and count == last
            taken = NONE if full else cat(*([comma] if count else []), value, without[min(count + 1, last)])
            after.append(alt(taken, without[count]))
    return after[0]


def _with_contains(shape: Array, values: Values, rules: Rules, syntax: Syntax) -> Expr:
    """Returns the language of a list with `contains`. A state is the number of items so far, and how many of them
    match.
    """
    if len(shape.contains) > 1:
        (_, place), *_ = _literals(shape.contains)
        refuse("contains", place, "cannot be combined with another one")
    (wanted,) = shape.contains
    last = max(1, len(shape.prefix), shape.least, shape.most or 0)
    full = wanted.least if wanted.most is None else wanted.most
    if (last + 2) * (full + 2) > MAX_STATES:
        raise GrammarError(f"'contains' with counts of items needs more than {MAX_STATES} states")
    known: dict[tuple[int, int], Expr] = {}

    def after(count: int, found: int) -> Expr:
        if (count, found) in known:
            return known[count, found]
        # Counting up to `last` is enough, so that the rule of the last state refers to itself.
        unbounded = count == last and shape.most is None
        name = rules.reserve()
        known[count, found] = name
        options = [EMPTY] if count >= shape.least and found >= wanted.least else []
        if shape.most is None or count < shape.most:
            item = shape.item(count)
            following = last if unbounded else count + 1
            comma = [syntax.comma] if count else []
            if wanted.most is None or found < wanted.most:
                more = min(found + 1, full)
                options.append(cat(*comma, values.value(item | wanted.node), after(following, more)))
            other = item if wanted.most is None else item | contrary_of(wanted.node)
            options.append(cat(*comma, values.value(other), after(following, found)))
        rules.put(name, alt(*options))
        return name

    return after(0, 0)


def _literals(contains: frozenset[Contains]) -> list[Literal]:
    return sorted((literal for wanted in contains for literal in wanted.node), key=lambda one: one[1].pointer)
