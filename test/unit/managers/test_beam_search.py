"""The state of a search, by hand: which beams go on, which answers count, and when nothing better can come."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mysglang.srt.managers.beam_search import Beam, Search, _Task
from mysglang.srt.managers.request_state import UNCHANGED
from mysglang.srt.messages.outputs import Abort, Length, Stop

EOS = 0


def search(**changes: Any) -> Search:
    return Search(
        **{"width": 2, "max_new": 9, "min_new": 0, "length_penalty": 1.0, "stop_ids": frozenset({EOS}), **changes}
    )


def ids(beams: list[Beam]) -> list[tuple[int, ...]]:
    return [beam.ids for beam in beams]


def test_the_best_go_on_whoever_they_grew_out_of() -> None:
    found = search()
    assert found.wanted == 4
    found.advance([[(5, -0.1), (6, -0.2), (7, -3.0), (8, -4.0)]])
    assert ids(found.open) == [(5,), (6,)]
    found.advance([[(1, -2.0), (2, -2.1), (3, -3), (4, -4)], [(1, -0.1), (2, -0.3), (3, -3), (4, -4)]])
    assert ids(found.open) == [(6, 1), (6, 2)]
    assert found.open[0].logprob == pytest.approx(-0.3)


def test_an_end_counts_only_among_the_best() -> None:
    """One that is the third best of two beams is forgotten, and takes no beam's place."""
    found = search()
    found.advance([[(5, -0.1), (6, -0.2), (EOS, -0.3), (7, -0.4)]])
    assert not found.whole and ids(found.open) == [(5,), (6,)]
    found.advance([[(EOS, -0.1), (1, -0.2), (2, -5), (3, -6)], [(1, -0.3), (2, -4), (3, -5), (4, -6)]])
    assert ids(found.whole) == [(5, EOS)] and found.whole[0].finish == Stop(EOS)
    assert ids(found.open) == [(5, 1), (6, 1)]


def test_too_short_an_answer_does_not_end() -> None:
    found = search(min_new=1)
    found.advance([[(EOS, -0.1), (6, -0.2), (7, -3.0), (8, -4.0)]])
    assert not found.whole and ids(found.open) == [(6,), (7,)]
    found.advance([[(EOS, -0.1), (1, -9), (2, -9), (3, -9)], [(1, -9), (2, -9), (3, -9), (4, -9)]])
    assert ids(found.whole) == [(6, EOS)]


def test_all_end_by_length() -> None:
    found = search(max_new=1)
    found.advance([[(5, -0.1), (6, -0.2), (7, -3.0), (8, -4.0)]])
    assert found.done and ids(found.best(2)) == [(5,), (6,)]
    assert found.whole[0].finish == Length(1)


@pytest.mark.parametrize(("penalty", "best"), [(0.0, (EOS,)), (2.0, (5, EOS))])
def test_a_penalty_weighs_lengths(penalty: float, best: tuple[int, ...]) -> None:
    found = search(length_penalty=penalty)
    found.advance([[(EOS, -0.5), (5, -0.6), (6, -3.0), (7, -4.0)]])
    assert not found.done
    found.advance([[(EOS, -0.2), (1, -3), (2, -4), (3, -5)], [(1, -9), (2, -9), (3, -9), (4, -9)]])
    assert found.best(1)[0].ids == best
    assert found.done, "no open beam has a better score than the worse of two answers"


def test_an_abort_gives_beginnings_behind_answers() -> None:
    found = search(width=3)
    found.advance([[(5, -0.1), (EOS, -0.2), (6, -3.0), (7, -4.0), (8, -5.0), (9, -6.0)]])
    why = Abort("gone")
    best = found.best(3, why)
    assert ids(best) == [(EOS,), (5,), (6,)]
    assert [beam.finish for beam in best] == [Stop(EOS), why, why]


def test_the_last_answer_is_repeated_where_there_are_fewer_than_asked_for() -> None:
    found = search(width=3, max_new=1)
    found.advance([[(5, -0.1)]])
    assert found.done and ids(found.best(3)) == [(5,)] * 3


def test_where_only_ends_are_allowed_a_short_answer_ends() -> None:
    found = search(min_new=2)
    found.advance([[(EOS, -0.1)]])
    assert found.done and ids(found.best(2)) == [(EOS,)] * 2


def answered(version: str) -> Any:
    """The answer of one beam's request, computed by weights of this version."""
    output = SimpleNamespace(top_ids=np.array([[5, 6, 7, 8]]), top_vals=np.array([[-0.1, -0.2, -3.0, -4.0]]))
    return SimpleNamespace(cached_tokens=3, weight_versions=((version, 0),), logprobs=SimpleNamespace(output=output))


def test_tokens_are_told_with_the_weights_of_their_round() -> None:
    request: Any = None
    task = _Task(request, search())
    assert task._versions_of(Beam((), 0.0)) == UNCHANGED
    for version in ("one", "one", "two", "three"):
        task.learn([answered(version)] * len(task.search.open))
    versions = (("one", 0), ("two", 2), ("three", 3))
    assert task._versions_of(task.search.open[0]) == versions
    assert task._versions_of(Beam((5, 5, 5), 0.0)) == versions[:2]
    assert task._versions_of(Beam((5, EOS), 0.0)) == versions[:1]
