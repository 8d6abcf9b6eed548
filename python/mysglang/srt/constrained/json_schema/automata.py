"""Automata of regular languages: all states, as few as can be, and a regular expression out of them.

Source of the smallest automaton: J. Hopcroft, "An n log n algorithm for minimizing states in a finite automaton", 1971.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

from mysglang.srt.constrained.backend import GrammarError
from mysglang.srt.constrained.json_schema.regular import (
    EMPTY,
    END,
    NONE,
    Expr,
    alt,
    cat,
    char_class,
    cuts,
    derivative,
    nullable,
    plain,
    rep,
)

MAX_STATES = 4000
"""States of one automaton. A schema that needs more is refused."""

Steps: TypeAlias = tuple[dict[int, list[tuple[int, int]]], ...]
"""Per state: next state -> ranges of characters that lead there."""


@dataclass(frozen=True, slots=True)
class Automaton:
    """A deterministic automaton without states that lead nowhere; state 0 is the first. Without states, it accepts
    nothing.
    """

    steps: tuple[tuple[tuple[Expr, int], ...], ...]
    """Per state: (class of characters, next state)."""
    ends: tuple[bool, ...]
    """Per state, whether a text may end there."""


@lru_cache(512)
def automaton(expr: Expr) -> Automaton:
    """Builds the smallest automaton of `expr`. Raises GrammarError above MAX_STATES."""
    steps, ends = _all_states(expr)
    alive = _alive(steps, ends)
    if 0 not in alive:
        return Automaton((), ())
    return _renumbered(steps, ends, _blocks(steps, ends, alive), alive)


@lru_cache(4096)
def is_empty(expr: Expr) -> bool:
    """True if the language is empty. Raises GrammarError above MAX_STATES."""
    if expr.kind in ("class", "empty"):
        return False
    if plain(expr):
        return expr.kind == "none"
    _, ends = _all_states(expr)
    return not any(ends)


@lru_cache(512)
def _all_states(expr: Expr) -> tuple[Steps, tuple[bool, ...]]:
    """Returns the transitions of every derivative of `expr` that can be reached, and whether a text may end in each."""
    numbers = {expr: 0}
    steps: list[dict[int, list[tuple[int, int]]]] = []
    states = [expr]
    for state in states:
        found: dict[int, list[tuple[int, int]]] = {}
        for first, after in itertools.pairwise(sorted(cuts(state) | {0, 0xD800, 0xE000, END})):
            target = NONE if first == 0xD800 else derivative(state, first)
            if target.kind == "none":
                continue
            if target not in numbers:
                if len(states) >= MAX_STATES:
                    raise GrammarError("a pattern, a length or a bound in it needs too many states")
                numbers[target] = len(states)
                states.append(target)
            found.setdefault(numbers[target], []).append((first, after - 1))
        steps.append(found)
    return tuple(steps), tuple(map(nullable, states))


def _alive(steps: Steps, ends: tuple[bool, ...]) -> set[int]:
    """Returns the states from which a text may come to an end."""
    sources: dict[int, set[int]] = {}
    for state, targets in enumerate(steps):
        for target in targets:
            sources.setdefault(target, set()).add(state)
    alive = {state for state, end in enumerate(ends) if end}
    todo = list(alive)
    for state in todo:
        fresh = sources.get(state, set()) - alive
        alive |= fresh
        todo.extend(fresh)
    return alive


def _blocks(steps: Steps, ends: tuple[bool, ...], alive: set[int]) -> list[int]:
    """Returns, for each state, the number of its block. All states of a block accept the same texts."""
    sources = _sources(steps, alive)
    blocks = [
        block for block in ({one for one in alive if ends[one]}, {one for one in alive if not ends[one]}) if block
    ]
    # All states that are not alive become one state, from which no text is accepted.
    blocks.append({len(steps)})
    block_of = [0] * (len(steps) + 1)
    for number, block in enumerate(blocks):
        for state in block:
            block_of[state] = number
    waiting = set(range(len(blocks)))
    while waiting:
        splitter = list(blocks[waiting.pop()])
        for into in sources:
            touched: dict[int, set[int]] = {}
            for target in splitter:
                for state in into.get(target, ()):
                    touched.setdefault(block_of[state], set()).add(state)
            for number, part in touched.items():
                whole = blocks[number]
                if len(part) == len(whole):
                    continue
                whole -= part
                fresh = len(blocks)
                blocks.append(part)
                for state in part:
                    block_of[state] = fresh
                waiting.add(fresh if number in waiting or len(part) <= len(whole) else number)
    return block_of


def _sources(steps: Steps, alive: set[int]) -> list[dict[int, list[int]]]:
    """Returns, for each class of characters that every state treats alike: state -> states from which the class leads
    to it.
    """
    dead = len(steps)
    points = sorted({first for state in alive for ranges in steps[state].values() for first, _ in ranges})
    # A gap between ranges is a class too: there, a state leads nowhere.
    points = sorted({*points, *(last + 1 for state in alive for ranges in steps[state].values() for _, last in ranges)})
    place = {point: index for index, point in enumerate(points)}
    columns = [[dead] * dead for _ in points]
    for state in alive:
        for target, ranges in steps[state].items():
            for first, last in ranges if target in alive else ():
                for index in range(place[first], place[last + 1]):
                    columns[index][state] = target
    found = []
    for column in dict.fromkeys(map(tuple, columns)):
        into: dict[int, list[int]] = {}
        for state in alive:
            into.setdefault(column[state], []).append(state)
        found.append(into)
    return found


def _renumbered(steps: Steps, ends: tuple[bool, ...], block: list[int], alive: set[int]) -> Automaton:
    """Builds an automaton with one state for each block, in the order in which they are reached."""
    representative: dict[int, int] = {}
    for state in sorted(alive):
        representative.setdefault(block[state], state)
    order = {block[0]: 0}
    reached = [block[0]]
    table = []
    for name in reached:
        ranges: dict[int, list[tuple[int, int]]] = {}
        for target, found in steps[representative[name]].items():
            if target not in alive:
                continue
            if block[target] not in order:
                order[block[target]] = len(reached)
                reached.append(block[target])
            ranges.setdefault(order[block[target]], []).extend(found)
        table.append(tuple((char_class(found), target) for target, found in ranges.items()))
    return Automaton(tuple(table), tuple(ends[representative[name]] for name in reached))


def as_expression(machine: Automaton, most: int) -> Expr:
    """Returns the language of `machine` without intersection and complement, by eliminating states.

    Raises GrammarError for one that would have more than `most` nodes.
    """
    if not machine.steps:
        return NONE
    count = len(machine.steps)
    # One state more, in which everything ends.
    edges: list[dict[int, Expr]] = [{target: step for step, target in steps} for steps in machine.steps]
    for state, end in enumerate(machine.ends):
        if end:
            edges[state][count] = EMPTY
    for state in range(count - 1, -1, -1):
        own = edges[state].pop(state, NONE)
        loop = rep(own)
        edges[state] = {target: cat(loop, step) for target, step in edges[state].items()}
        if state == 0:
            break
        for source in range(state):
            through = edges[source].pop(state, None)
            if through is None:
                continue
            for target, step in edges[state].items():
                edges[source][target] = alt(edges[source].get(target, NONE), cat(through, step))
            if sum(_size(step) for step in edges[source].values()) > most:
                raise GrammarError("a pattern, a length or a bound in it needs too large a regular expression")
    return edges[0].get(count, NONE)


@lru_cache(1 << 14)
def _size(expr: Expr) -> int:
    return 1 if expr.kind in ("class", "none", "empty") else 1 + sum(map(_size, expr.parts))
