"""The state of a search, by hand: which beams go on, which answers count, and when nothing better can come. And aborts
and newcomers that come while the engine has no request of a search, and the time that a search may take.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fixtures.callers import asked_by
from fixtures.fake_engine import Row
from fixtures.manager_bench import LIMITS, Bench
from mysglang.srt.errors import Aborted, InvalidRequest, Overloaded
from mysglang.srt.managers import beam_search
from mysglang.srt.managers.beam_search import Beam, Search, _Task
from mysglang.srt.managers.caller import Caller
from mysglang.srt.managers.request_state import UNCHANGED
from mysglang.srt.messages.outputs import TIMED_OUT, Abort, Length, RowLogprobs, Stop
from mysglang.srt.messages.packing import pack_ids
from mysglang.srt.messages.requests import TokenizedGenerateReqInput
from mysglang.srt.sampling.sampling_params import SamplingParams
from mysglang.srt.utils.awake import AwakeClock

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


def say_round(bench: Bench, requests: Sequence[TokenizedGenerateReqInput]) -> None:
    """Answers a round: the same four tokens may follow each beam."""
    found = RowLogprobs(
        output_vals=np.zeros(1, np.float32).tobytes(),
        output_ids=pack_ids([5]),
        output_top_vals=np.array([-0.1, -0.2, -3.0, -4.0], np.float32).tobytes(),
        output_top_ids=pack_ids([5, 6, 7, 8]),
    )
    bench.engine.say(*(Row(request.rid, ids=[5], finish=Length(1), logprobs=found) for request in requests))


BEAMS = SamplingParams(beam_width=2, n=2, max_new_tokens=3, ignore_eos=True)


@pytest.mark.parametrize("name", ["searching", "searching_1", ""])
async def test_an_abort_that_finds_no_request_of_a_search_ends_it(bench: Bench, name: str) -> None:
    """The engine had answered the round when the abort came, and knew no name of the search any more."""
    task, requests = await bench.started(sampling_params=BEAMS, rid="searching")
    say_round(bench, requests)
    requests = await bench.engine.come(2)
    assert bench.manager.abort_request(name, abort_all=not name) > 0
    say_round(bench, requests)
    chunks = await task
    assert len(bench.engine.requests) == 3, "another round began"
    answers = [(chunk.rid, chunk.token_ids.tolist(), chunk.finish_reason) for chunk in chunks]
    why = Abort("Aborted by the client.")
    assert answers == [("searching_0", [5, 5], why), ("searching_1", [5, 6], why)]
    assert bench.quiet() and bench.manager.abort_request(name, abort_all=not name) == 0


async def test_an_abort_before_the_first_round_begins_none(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    coder = bench.manager.input_tokenizer
    tokenize = coder.tokenize

    async def aborted_meanwhile(*asked: Any) -> Any:
        assert bench.manager.abort_request("searching") == 1
        return await tokenize(*asked)

    monkeypatch.setattr(coder, "tokenize", aborted_meanwhile)
    chunks = await bench.collect(sampling_params=BEAMS, rid="searching")
    assert [chunk.token_ids.tolist() for chunk in chunks] == [[], []]
    assert not bench.engine.requests


async def test_an_abort_of_another_name_or_key_leaves_a_search(bench: Bench) -> None:
    with asked_by(Caller(api_key="a", remote=True)):
        task, requests = await bench.started(sampling_params=BEAMS, rid="searching")
    with asked_by(Caller(api_key="b", remote=True)):
        assert bench.manager.abort_request("searching") == bench.manager.abort_request(abort_all=True) == 0
    assert bench.manager.abort_request("search") == 0
    for _ in range(2):
        say_round(bench, requests)
        requests = await bench.engine.come(2)
    say_round(bench, requests)
    assert [chunk.finish_reason for chunk in await task] == [Length(3)] * 2


def make_small(make: Callable[..., Bench]) -> Bench:
    """Returns a front with places for three answers in all."""
    return make(max_queued_requests=3 - LIMITS.max_running_requests)


async def test_a_search_keeps_a_place_for_each_beam_from_its_beginning(make: Callable[..., Bench]) -> None:
    bench = make_small(make)
    task, requests = await bench.started(sampling_params=BEAMS, rid="searching")
    other, [alone] = await bench.started()
    for _ in range(2):
        with pytest.raises(Overloaded):
            await bench.collect()
        say_round(bench, requests)
        requests = await bench.engine.come(2)
    say_round(bench, requests)
    assert [chunk.finish_reason for chunk in await task] == [Length(3)] * 2
    assert bench.manager.open_requests == 1
    bench.engine.say(Row(alone.rid, finish=Length(1)))
    await other


async def test_newcomers_between_two_rounds_take_neither_place_nor_name(
    make: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = make_small(make)
    refused = []

    async def asked_meanwhile(*asked: Any) -> Any:
        # The second place is the search's, and two more are too many; a name is refused before places are counted.
        for fields, why in (({"sampling_params": SamplingParams(n=2)}, Overloaded), ({"rid": "s"}, InvalidRequest)):
            with pytest.raises(why) as caught:
                await bench.collect(**fields)
            refused.append(caught.value)
        return await advance(*asked)

    advance = beam_search._advance
    monkeypatch.setattr(beam_search, "_advance", asked_meanwhile)
    task, requests = await bench.started(sampling_params=BEAMS, rid="s")
    for _ in range(2):
        say_round(bench, requests)
        requests = await bench.engine.come(2)
    say_round(bench, requests)
    assert [chunk.finish_reason for chunk in await task] == [Length(3)] * 2
    assert len(refused) == 6 and bench.manager.open_requests == 0


async def test_a_search_that_finds_no_places_does_not_begin(make: Callable[..., Bench]) -> None:
    bench = make_small(make)
    others, requests = await bench.started(2, sampling_params=SamplingParams(n=2))
    with pytest.raises(Overloaded):
        await bench.collect(sampling_params=BEAMS)
    assert len(bench.engine.requests) == 2
    bench.engine.say(*(Row(request.rid, finish=Length(1)) for request in requests))
    await others
    assert bench.quiet() and bench.manager.open_requests == 0


async def test_a_search_runs_no_longer_than_a_request_may(
    make: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each round is well within the limit, and waiting for the first one does not count."""
    now = 0.0
    monkeypatch.setattr(beam_search, "AWAKE", AwakeClock(lambda: now))
    bench = make()
    bench.manager.limits = replace(LIMITS, running_s=5.0)
    task, requests = await bench.started(sampling_params=BEAMS, rid="searching")
    now = 9.0
    say_round(bench, requests)
    requests = await bench.engine.come(2)
    now = 14.0
    say_round(bench, requests)
    with pytest.raises(Aborted, match="5 s") as caught:
        await task
    assert (caught.value.status, caught.value.kind) == (503, TIMED_OUT)
    assert len(bench.engine.requests) == 3 and bench.quiet() and bench.manager.open_requests == 0
