"""Schedulers over models whose layers keep a state for each request. The next token of the late device depends on a
running hash of the row's state alone, so a wrong state gives a wrong text. Each row that begins with a checkpoint has
it compared with the tokens of its pages, and free states are poisoned.
"""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from fixtures.fake_worker import solo
from fixtures.late_scheduler import VOCAB, LateScheduler, Setup
from fixtures.late_storm import Storm, drawn_beginnings, rush
from fixtures.shaky_memory import Shakes
from fixtures.toy_device import StateRead, ToyStates
from mysglang.srt.mem_cache.state_space import StateSpace
from mysglang.srt.messages.control import GetInternalStateReq, GetInternalStateReqOutput
from mysglang.srt.messages.outputs import Abort

BEGINNING = list(range(1, 50))
SHAKES = Shakes(retract_every=3, fail_alloc_every=7)
SETUPS = {
    "overlap": Setup(overlap=True, chunk=24, num_tokens=1024, states=40),
    "mixed, pages": Setup(overlap=True, page_size=16, order="mixed", chunk=32, num_tokens=1024, states=24),
    "as many states as rows": Setup(overlap=True, chunk=24, num_tokens=1024, num_slots=8, states=8),
    "sync": Setup(overlap=False, page_size=4, chunk=16, num_tokens=512, states=20, policy="lpm", state_interval=6),
    "no cache": Setup(overlap=True, page_size=4, chunk=24, num_tokens=512, states=16, cache="chunk"),
    "whole prompts": Setup(overlap=True, page_size=2, num_tokens=512, states=24, eviction="lfu"),
    "two lanes": Setup(overlap=True, lanes=2, chunk=24, num_tokens=1024, states=30),
    "windows beside": Setup(overlap=True, chunk=24, num_tokens=1024, windows=((20, 300),), states=40),
}


def toy_states(scheduler: LateScheduler) -> ToyStates:
    states = scheduler.worker.device.states
    assert states is not None
    return states


def space(scheduler: LateScheduler) -> StateSpace:
    states = scheduler.kv.states
    assert isinstance(states, StateSpace)
    return states


@pytest.mark.promise(22)
@pytest.mark.parametrize("shakes", [Shakes(), SHAKES], ids=["calm", "shaky"])
@pytest.mark.parametrize("name", SETUPS)
def test_as_alone(name: str, shakes: Shakes) -> None:
    """However short memory is, and however often requests are retracted."""
    setup = replace(SETUPS[name], shakes=shakes, max_context=160)
    scheduler = LateScheduler(setup)
    rush(scheduler, random.Random(22), BEGINNING, requests=60, own=60, max_new=50)
    if shakes == SHAKES:
        assert scheduler.retractions > 10
    if setup.cache == "radix" and setup.states > setup.num_slots:
        assert sum(answer.cached_tokens for answer in scheduler.answers.values()) > 100
        assert toy_states(scheduler).copied_in > 10


@pytest.mark.promise(14)
@pytest.mark.parametrize("name", ["overlap", "mixed, pages", "sync"])
def test_a_storm_of_conversations_with_aborts_and_flushes(name: str) -> None:
    rng = random.Random(14)
    scheduler = LateScheduler(replace(SETUPS[name], max_context=160))
    Storm(requests=120, max_new=30, turns=4, abort=0.3, flush=0.03).rage(scheduler, rng, drawn_beginnings(rng, 3))


@pytest.mark.parametrize("event", ["hit", "abort", "retract"])
@pytest.mark.parametrize("turns", range(14))
def test_with_a_step_in_flight_at_every_turn(event: str, turns: int) -> None:
    """A first request is anywhere in its prompt or answer when another one begins with what it has left until then; the
    first one is aborted or retracted at that moment, or goes on.
    """
    scheduler = LateScheduler(Setup(chunk=16, num_tokens=512, num_slots=4, states=6, max_context=160))
    first, second = [*BEGINNING, 3, 3, 3], [*BEGINNING, 4, 4]
    scheduler.send("first", first, 8, ignore_eos=True)
    scheduler.turn(turns)
    if event == "abort":
        scheduler.abort("first")
    elif event == "retract" and scheduler.assembled.scheduler.lanes.size:
        scheduler.assembled.rows.retraction.retract_all()
    scheduler.send("second", second, 8, ignore_eos=True)
    scheduler.run()
    scheduler.send("third", second, 8, ignore_eos=True)
    scheduler.run()
    expected = {"first": solo(first, 8, VOCAB, ignore_eos=True)}
    expected |= dict.fromkeys(("second", "third"), solo(second, 8, VOCAB, ignore_eos=True))
    for rid, answer in scheduler.answers.items():
        aborted = isinstance(answer.finish, Abort)
        assert answer.ids == (expected[rid][: len(answer.ids)] if aborted else expected[rid]), rid
        assert not aborted or (rid, event) == ("first", "abort")
    assert scheduler.answers["third"].cached_tokens == 48  # the last border before the end of its prompt


def test_an_equal_prompt_begins_with_the_last_checkpoint() -> None:
    """Also one whose end is a border, and one that comes while the first still runs."""
    for length in (23, 24, 25):
        scheduler = LateScheduler(Setup(num_tokens=512, states=20))
        scheduler.send("first", BEGINNING[:length], 20, ignore_eos=True)
        scheduler.turn(4)
        scheduler.send("second", BEGINNING[:length], 20, ignore_eos=True)
        scheduler.run()
        assert scheduler.answers["second"].cached_tokens == (length - 1) // 8 * 8
        assert scheduler.answers["second"].ids == solo(BEGINNING[:length], 20, VOCAB, ignore_eos=True)


def test_what_requests_share_becomes_a_checkpoint_with_the_second_of_them() -> None:
    """A common beginning of 40 tokens: the first request does not know that it will be shared."""
    scheduler = LateScheduler(Setup(num_tokens=1024, states=20))
    for number in range(4):
        scheduler.send(f"r{number}", BEGINNING[:41] + [50 + number] * 30, 4, ignore_eos=True)
        scheduler.run()
    assert [answer.cached_tokens for answer in scheduler.answers.values()] == [0, 0, 40, 40]


def test_the_least_recently_used_checkpoint_goes_first_and_no_page_with_it() -> None:
    scheduler = LateScheduler(Setup(num_tokens=1024, num_slots=1, states=3))
    prompts = [[number + 1] * 20 for number in range(3)]

    def ask(rid: str, prompt: list[int]) -> int:
        scheduler.send(rid, prompt, 2, ignore_eos=True)
        scheduler.run()
        return scheduler.answers[rid].cached_tokens

    assert [ask(f"a{number}", prompts[number]) for number in (0, 1)] == [0, 0]
    assert ask("again", prompts[0]) == 16
    evictable = scheduler.kv.state().evictable
    assert ask("third", prompts[2]) == 0
    assert scheduler.kv.state().evictable > evictable  # pages of all three are there
    assert [ask(f"b{number}", prompts[number]) for number in (0, 2)] == [16, 16]
    assert ask("b1", prompts[1]) == 0


def test_evicted_pages_take_their_checkpoints_along() -> None:
    scheduler = LateScheduler(Setup(num_tokens=128, num_slots=2, states=20, max_context=120))
    for number in range(8):
        scheduler.send(f"r{number}", [number + 1] * 40, 2, ignore_eos=True)
        scheduler.run()
    counts = scheduler.kv.state().states
    assert 0 < counts.evictable <= 3 and counts.free == 20 - counts.evictable


def test_what_a_server_says_of_its_states() -> None:
    """There are 20 states: those of two running requests, and the checkpoint of a third that has ended."""
    scheduler = LateScheduler(Setup(num_tokens=512, states=20))
    scheduler.send("ended", BEGINNING, 2)
    scheduler.run()
    for number in range(2):
        scheduler.send(f"r{number}", [number + 1] * 7, 30, ignore_eos=True)
    scheduler.turn(4)
    scheduler.requests.send(GetInternalStateReq(id=0))
    scheduler.turn()
    (state,) = (reply for reply in scheduler.replies.drain() if isinstance(reply, GetInternalStateReqOutput))
    assert (state.mamba_states, state.mamba_free_states, state.mamba_evictable_states) == (20, 17, 1)
    rows = scheduler.assembled.rows
    assert rows.stats.figures(rows.waiting, compiling=0).mamba_usage == 0.1
    scheduler.run()


def test_a_flush_leaves_no_checkpoint() -> None:
    scheduler = LateScheduler(Setup(num_tokens=256, states=20))
    scheduler.send("r", BEGINNING, 4)
    scheduler.run()
    assert scheduler.kv.state().states.evictable == 1
    assert scheduler.kv.flush()
    assert scheduler.kv.state().states.free == 20


@pytest.mark.parametrize("readers", [0, 1, 3])
def test_a_checkpoint_that_is_no_number_is_found_by_nobody(readers: int) -> None:
    """The third token of a prompt is stored with keys that are no numbers, once. Requests that began with what it left
    are computed again without that.
    """
    scheduler = LateScheduler(Setup(num_tokens=512, chunk=24, states=20))
    prompt = [60, 61, 62, *BEGINNING[:40]]
    scheduler.worker.breaks = {62: 1}
    scheduler.send("broken", prompt, 8, ignore_eos=True)
    scheduler.turn(1)
    for number in range(readers):
        scheduler.send(f"reader{number}", [*prompt, number + 1], 8, ignore_eos=True)
    scheduler.run()
    assert isinstance(scheduler.answers["broken"].finish, Abort)
    for number in range(readers):
        expected = solo([*prompt, number + 1], 8, VOCAB, ignore_eos=True)
        assert scheduler.answers[f"reader{number}"].ids == expected
    scheduler.send("later", prompt, 8, ignore_eos=True)
    scheduler.run()
    assert scheduler.answers["later"].ids == solo(prompt, 8, VOCAB, ignore_eos=True)


@pytest.mark.parametrize("readers", [0, 2])
def test_a_broken_checkpoint_behind_sound_pages_is_found_by_nobody(readers: int) -> None:
    """Pages of an earlier request are confirmed, and the checkpoint behind them is gone. The request that makes it
    again starts from a broken state.
    """
    scheduler = LateScheduler(Setup(num_tokens=512, chunk=24, states=20))
    prompt = [60, 61, 62, *BEGINNING[:40]]
    scheduler.send("sound", prompt, 8, ignore_eos=True)
    scheduler.run()
    for checkpoint in list(space(scheduler)._behind.values()):
        space(scheduler)._drop(checkpoint)
    scheduler.worker.breaks = {62: 1}
    scheduler.send("broken", prompt, 8, ignore_eos=True)
    scheduler.turn(2)
    for number in range(readers):
        scheduler.send(f"reader{number}", [*prompt, number + 1], 8, ignore_eos=True)
    scheduler.run()
    assert isinstance(scheduler.answers["broken"].finish, Abort)
    for number in range(readers):
        expected = solo([*prompt, number + 1], 8, VOCAB, ignore_eos=True)
        assert scheduler.answers[f"reader{number}"].ids == expected
    scheduler.send("later", prompt, 8, ignore_eos=True)
    scheduler.run()
    assert scheduler.answers["later"].ids == solo(prompt, 8, VOCAB, ignore_eos=True)


def test_a_state_given_away_under_a_running_request_is_noticed() -> None:
    scheduler = LateScheduler(Setup(num_tokens=512, states=20))
    scheduler.send("r", BEGINNING, 40, ignore_eos=True)
    scheduler.turn(4)
    states = space(scheduler)
    states._free.append(states._rows[0].state)
    with pytest.raises(StateRead):
        for _ in range(3):
            scheduler.assembled.loop.step()


def test_a_checkpoint_of_another_prefix_is_noticed() -> None:
    scheduler = LateScheduler(Setup(num_tokens=512, states=20))
    for rid, prompt in (("a", BEGINNING), ("b", BEGINNING[::-1])):
        scheduler.send(rid, prompt, 4, ignore_eos=True)
        scheduler.run()
    one, other = space(scheduler)._behind.values()
    one.state, other.state = other.state, one.state
    scheduler.send("c", BEGINNING, 4, ignore_eos=True)
    with pytest.raises(StateRead):
        scheduler.run()
