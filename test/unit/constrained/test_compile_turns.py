"""The order of compilation: tenants take turns, each grammar is compiled once, and unwanted grammars are not
compiled.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from mysglang.srt.constrained.compile_turns import MOST_AT_ONCE, CompileTurns
from mysglang.srt.sampling.grammar_spec import GrammarSpec


def spec(text: str) -> GrammarSpec:
    return GrammarSpec("regex", text)


def started(turns: CompileTurns) -> list[str]:
    """The texts of all that may begin now."""
    found = []
    while (wanted := turns.start()) is not None:
        found.append(wanted.spec.text)
    return found


def asking(at_once: int, asked: Sequence[tuple[str, str]]) -> CompileTurns:
    turns = CompileTurns(at_once)
    for tenant, text in asked:
        turns.ask(spec(text), tenant)
    return turns


def test_one_tenant_is_served_in_order() -> None:
    turns = asking(2, [("a", f"a{i}") for i in range(5)])
    assert started(turns) == ["a0", "a1"]
    turns.end(spec("a0"))
    assert started(turns) == ["a2"]


@pytest.mark.promise(44)
def test_promise_44_another_tenant_begins_at_once() -> None:
    """However many grammars one tenant has, and though all its places are taken."""
    turns = asking(2, [("a", f"a{i}") for i in range(30)])
    assert started(turns) == ["a0", "a1"]
    for text in ("b0", "b1"):
        turns.ask(spec(text), "b")
    assert started(turns) == ["b0"], "one place beyond the number for who has none"
    turns.end(spec("b0"))
    assert started(turns) == ["b1"]


def test_tenants_take_turns() -> None:
    turns = asking(1, [("a", "a0"), ("a", "a1"), ("b", "b0"), ("b", "b1")])
    order = started(turns)
    assert order == ["a0", "b0"]
    turns.end(spec("a0"))
    turns.end(spec("b0"))
    assert started(turns) == ["a1", "b1"]


def test_there_is_a_bound_for_all() -> None:
    turns = asking(2, [(f"tenant {i}", f"g{i}") for i in range(20)])
    assert len(started(turns)) == MOST_AT_ONCE
    turns.end(spec("g0"))
    assert started(turns) == [f"g{MOST_AT_ONCE}"]


def test_what_several_want_is_compiled_once_in_the_first_turn_of_any() -> None:
    turns = asking(1, [("a", "a0"), ("a", "both"), ("b", "both"), ("b", "b0")])
    assert started(turns) == ["a0", "both"]
    turns.end(spec("a0"))
    assert started(turns) == []
    turns.end(spec("both"))
    assert started(turns) == ["b0"] and len(turns) == 1


@pytest.mark.promise(43)
def test_promise_43_what_nobody_wants_is_not_begun_and_not_gone_on_with() -> None:
    turns = asking(1, [("a", "running"), ("a", "both"), ("b", "both"), ("a", "waiting")])
    assert started(turns)[0] == "running"
    assert turns.leave(spec("waiting"), "a") is None, "it was not begun"
    assert turns.leave(spec("both"), "a") is None, "b still wants it"
    stopped = turns.leave(spec("running"), "a")
    assert stopped is not None and stopped.spec.text == "running"
    assert turns.leave(spec("running"), "a") is None and turns.leave(spec("nothing"), "c") is None
    turns.end(spec("both"))
    assert started(turns) == [] and len(turns) == 0


def test_who_leaves_and_asks_again_waits_behind_others() -> None:
    turns = asking(1, [("a", "a0"), ("b", "b0")])
    turns.leave(spec("a0"), "a")
    turns.ask(spec("a0"), "a")
    first = turns.start()
    assert first is not None and first.spec.text == "b0"


def test_what_was_broken_off_comes_first_again() -> None:
    turns = asking(1, [("a", "a0"), ("a", "a1"), ("b", "a0")])
    assert started(turns) == ["a0"]
    turns.again(spec("a0"))
    assert started(turns) == ["a0"]
    wanted = turns.end(spec("a0"))
    assert wanted is not None and wanted.attempts == 2
    assert started(turns) == ["a1"]


def test_giving_up_leaves_nothing() -> None:
    turns = asking(2, [("a", "a0"), ("b", "b0"), ("b", "b1")])
    assert started(turns)
    assert {each.text for each in turns.give_up()} == {"a0", "b0", "b1"}
    assert len(turns) == 0 and turns.end(spec("a0")) is None
    turns.ask(spec("c0"), "c")
    assert started(turns) == ["c0"]
