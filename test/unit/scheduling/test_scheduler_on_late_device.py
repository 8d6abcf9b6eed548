"""The scheduler on the late device: whatever the loop, the cache and the pressure, every answer is the solo one."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Literal, get_args

import numpy as np
import pytest

from fixtures.covering import pairwise
from fixtures.fake_worker import EOS, solo
from fixtures.late_scheduler import LOOPS, VOCAB, LateScheduler, Setup
from mysglang.srt.messages.control import FlushCacheReqInput, FlushCacheReqOutput, GetInternalStateReq
from mysglang.srt.messages.outputs import Abort, Length, Stop
from mysglang.srt.messages.packing import pack_ids
from mysglang.srt.messages.requests import LogprobRequest
from mysglang.srt.scheduling.prefill_planner import LEAST_SHARE
from mysglang.srt.scheduling.request import Req
from mysglang.srt.scheduling.step_planner import OrderName

PROMPT = list(range(1, 30))

SETUPS = [
    *(Setup(**case) for case in pairwise({**LOOPS, "cache": ("radix", "chunk")})),
    *(Setup(**case, order="mixed") for case in pairwise(LOOPS)),
]


def prompts(rng: random.Random, count: int) -> list[list[int]]:
    """Prompts of many lengths; most share one of three beginnings."""
    beginnings = [[rng.randrange(1, VOCAB) for _ in range(rng.randrange(8, 60))] for _ in range(3)]
    made = []
    for _ in range(count):
        start = rng.choice([*beginnings, []])
        made.append(start + [rng.randrange(1, VOCAB) for _ in range(rng.randrange(1, 40))])
    return made


@pytest.mark.promise(25)
@pytest.mark.parametrize("setup", SETUPS, ids=str)
def test_answers_equal_solo_ones(setup: Setup) -> None:
    scheduler = LateScheduler(setup)
    rng = random.Random(1)
    expected = {}
    for i, prompt in enumerate(prompts(rng, 40)):
        max_new = rng.randrange(1, 40)
        ignore = rng.random() < 0.3
        scheduler.send(f"r{i}", prompt, max_new, ignore_eos=ignore, stream=rng.random() < 0.5)
        expected[f"r{i}"] = solo(prompt, max_new, VOCAB, ignore_eos=ignore)
        scheduler.turn(rng.randrange(3))
    scheduler.run()
    assert {rid: answer.ids for rid, answer in scheduler.answers.items()} == expected
    for rid, answer in scheduler.answers.items():
        ended_by_eos = expected[rid][-1] == EOS and answer.finish == Stop(EOS)
        assert ended_by_eos or answer.finish == Length(len(expected[rid]))
        assert answer.completion_tokens == len(expected[rid])


@pytest.mark.promise(21)
@pytest.mark.parametrize(
    "setup",
    [
        Setup(**case, num_tokens=192, max_context=192, conservativeness=0.1)
        for case in pairwise({**LOOPS, "order": get_args(OrderName)})
    ],
    ids=str,
)
def test_retraction_changes_no_answer(setup: Setup) -> None:
    """Memory for about two requests, a dozen wanting it."""
    scheduler = LateScheduler(setup)
    rng = random.Random(3)
    expected = {}
    for i in range(12):
        prompt = [rng.randrange(1, VOCAB) for _ in range(rng.randrange(4, 24))]
        scheduler.send(f"r{i}", prompt, 100, ignore_eos=i == 5, stream=i % 3 == 0)
        expected[f"r{i}"] = solo(prompt, 100, VOCAB, ignore_eos=i == 5)
    scheduler.run()
    assert {rid: answer.ids for rid, answer in scheduler.answers.items()} == expected
    assert sum(answer.retractions for answer in scheduler.answers.values()) > 0


def test_retraction_happens_under_pressure() -> None:
    """The ratio admits more than fits, so a request must be retracted; it is the youngest, and the counters show it."""
    scheduler = LateScheduler(Setup(num_tokens=128, max_context=128, conservativeness=0.1))
    for i in range(4):
        scheduler.send(f"r{i}", [i + 1] * 4, 80, temperature=0.0, min_new_tokens=80)
    scheduler.run()
    retracted = {rid: answer.retractions for rid, answer in scheduler.answers.items()}
    assert sum(retracted.values()) > 0
    assert retracted["r0"] == 0, "the oldest must not be the victim"
    for rid, answer in scheduler.answers.items():
        assert answer.completion_tokens == 80, rid


@pytest.mark.promise(13)
@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("page_size", [1, 16])
def test_abort_in_every_state(overlap: bool, page_size: int) -> None:
    """Queued, mid-chunk, decoding, in flight, ended, unknown: no token more, nothing left, neighbours undisturbed."""
    for turns in range(12):
        scheduler = LateScheduler(Setup(overlap=overlap, page_size=page_size, chunk=16, num_slots=3))
        for i in range(5):
            scheduler.send(f"r{i}", [i + 1] * 50, 6, ignore_eos=True)
        scheduler.turn(turns)
        victim = f"r{turns % 5}"
        ended = scheduler.answers[victim].finish is not None
        scheduler.abort(victim)
        scheduler.abort(victim)
        scheduler.abort("nobody")
        scheduler.run()
        for i in range(5):
            answer = scheduler.answers[f"r{i}"]
            reference = solo([i + 1] * 50, 6, VOCAB, ignore_eos=True)
            if f"r{i}" == victim and not ended:
                assert isinstance(answer.finish, Abort)
                assert answer.ids == reference[: len(answer.ids)]
            else:
                assert answer.ids == reference


@pytest.mark.promise(15)
def test_abort_all() -> None:
    scheduler = LateScheduler(Setup(num_slots=2))
    for i in range(6):
        scheduler.send(f"r{i}", PROMPT, 50, ignore_eos=True)
    scheduler.turn(4)
    scheduler.abort(abort_all=True)
    scheduler.turn()
    assert all(isinstance(answer.finish, Abort) for answer in scheduler.answers.values())
    scheduler.run()


@pytest.mark.promise(14)
@pytest.mark.parametrize("seed", range(9))
def test_storm(seed: int) -> None:
    """Random arrivals, aborts, shared prefixes, flushes and little memory; every completed answer is the solo one."""
    rng = random.Random(seed)
    setup = Setup(
        overlap=bool(seed % 2),
        page_size=rng.choice([1, 4, 16]),
        chunk=rng.choice([None, 16, 48]),
        num_tokens=320,
        max_context=160,
        conservativeness=rng.choice([0.1, 1.0]),
        policy=rng.choice(["fcfs", "lpm"]),
        order="mixed" if seed % 3 == 0 else "prefill_first",
        drafts=(0, 1, 4)[seed // 3],
        late_lengths=seed != 8,
    )
    scheduler = LateScheduler(setup)
    expected: dict[str, list[int]] = {}
    for i, prompt in enumerate(prompts(rng, 80)):
        max_new = rng.randrange(0, 60)
        prompt = prompt[: setup.max_context - max_new]
        ignore = rng.random() < 0.5
        scheduler.send(f"r{i}", prompt, max_new, ignore_eos=ignore, stream=rng.random() < 0.5)
        expected[f"r{i}"] = solo(prompt, max_new, VOCAB, ignore_eos=ignore)
        scheduler.turn(rng.randrange(4))
        if rng.random() < 0.25:
            scheduler.abort(f"r{rng.randrange(i + 1)}")
        if rng.random() < 0.1:
            scheduler.requests.send(FlushCacheReqInput(id=i))
    scheduler.run()
    completed = 0
    for rid, answer in scheduler.answers.items():
        if isinstance(answer.finish, Abort):
            assert answer.ids == expected[rid][: len(answer.ids)]
        else:
            assert answer.ids == expected[rid], rid
            completed += 1
    assert completed > 40


def test_overlap_runs_ahead_and_sync_does_not() -> None:
    for overlap in (False, True):
        scheduler = LateScheduler(Setup(overlap=overlap))
        scheduler.send("r", PROMPT, 20, ignore_eos=True)
        scheduler.run()
        assert scheduler.worker.most_in_flight == 1 + overlap


def test_requests_of_one_step_share_their_prefix() -> None:
    """Pages are shared at plan time: of equal prompts in one batch, only the first is computed."""
    scheduler = LateScheduler(Setup())
    for i in range(4):
        scheduler.send(f"r{i}", PROMPT, 3)
    scheduler.turn(2)
    assert scheduler.worker.steps[0].num_rows == 4
    assert scheduler.worker.steps[0].extend_lens.tolist() == [len(PROMPT), 1, 1, 1]
    scheduler.run()
    assert [scheduler.answers[f"r{i}"].cached_tokens for i in range(4)] == [0, 28, 28, 28]


@pytest.mark.promise(40)
def test_namespaces_share_nothing() -> None:
    scheduler = LateScheduler(Setup())
    scheduler.send("a", PROMPT, 3, extra_key="salt")
    scheduler.run()
    scheduler.send("b", PROMPT, 3)
    scheduler.run()
    scheduler.send("c", PROMPT, 3, extra_key="salt")
    scheduler.run()
    scheduler.send("d", PROMPT, 3, extra_key="pepper")
    scheduler.run()
    assert [scheduler.answers[rid].cached_tokens for rid in "abcd"] == [0, 0, 28, 0]


def test_chunks_respect_the_budget_and_the_page() -> None:
    scheduler = LateScheduler(Setup(chunk=48, page_size=16, max_context=512))
    scheduler.send("r", [i % 60 + 1 for i in range(200)], 4)
    scheduler.run()
    prefills = [step for step in scheduler.worker.steps if not step.mode.is_decode]
    assert [step.num_tokens for step in prefills] == [48, 48, 48, 48, 8]
    assert [bool(step.yields[0]) for step in prefills] == [False, False, False, False, True]


def test_whole_prompts_without_chunking() -> None:
    """A prompt above max_prefill_tokens runs alone and whole when chunking is off."""
    scheduler = LateScheduler(Setup(max_prefill_tokens=64, max_context=512))
    scheduler.send("big", [i % 60 + 1 for i in range(200)], 2)
    scheduler.send("small", [61, 62], 2)
    scheduler.run()
    prefills = [step.extend_lens.tolist() for step in scheduler.worker.steps if not step.mode.is_decode]
    assert prefills == [[200], [2]]


@pytest.mark.promise(20)
def test_limits_are_exact() -> None:
    """Up to the memory a request completes, alone; beyond it is refused at once, and the next one is served."""
    for page in (1, 16):
        for total in range(250, 262):
            scheduler = LateScheduler(Setup(page_size=page, num_tokens=256, max_context=512))
            scheduler.send("r", [1] * 200, total - 200, ignore_eos=True)
            scheduler.send("next", [2, 3], 2, ignore_eos=True)
            scheduler.run()
            assert len(scheduler.answers["next"].ids) == 2
            if total <= 256:
                assert scheduler.answers["r"].finish == Length(total - 200)
            else:
                finish = scheduler.answers["r"].finish
                assert isinstance(finish, Abort)
                assert (finish.status, finish.param) == (400, "max_new_tokens")


@pytest.mark.parametrize("length", [0, 300])
def test_a_prompt_that_cannot_be_served_is_blamed_itself(length: int) -> None:
    scheduler = LateScheduler(Setup(num_tokens=256, max_context=512))
    scheduler.send("r", [1] * length, 5)
    scheduler.run()
    finish = scheduler.answers["r"].finish
    assert isinstance(finish, Abort) and (finish.status, finish.param) == (400, "text")


def test_max_new_tokens_zero_computes_the_prompt_only() -> None:
    scheduler = LateScheduler(Setup())
    scheduler.send("warm", PROMPT, 0)
    scheduler.run()
    assert (scheduler.answers["warm"].ids, scheduler.answers["warm"].finish) == ([], Length(0))
    scheduler.send("r", PROMPT, 2)
    scheduler.run()
    assert scheduler.answers["r"].cached_tokens == len(PROMPT) - 1


def test_stop_token_ids_and_min_new_tokens() -> None:
    scheduler = LateScheduler(Setup())
    free = solo(PROMPT, 30, VOCAB, ignore_eos=True)
    scheduler.send("stop", PROMPT, 30, ignore_eos=True, stop_token_ids=[free[5]])
    scheduler.run()
    first = free.index(free[5])
    assert scheduler.answers["stop"].ids == free[: first + 1]
    assert scheduler.answers["stop"].finish == Stop(free[5])
    prompt = next(p for p in ([i, 5] for i in range(1, 60)) if EOS in solo(p, 8, VOCAB))
    scheduler.send("min", prompt, 12, min_new_tokens=12)
    scheduler.run()
    assert len(scheduler.answers["min"].ids) == 12
    assert EOS not in scheduler.answers["min"].ids[:11]


def test_streams_come_by_interval_and_the_rest_by_fifty() -> None:
    scheduler = LateScheduler(Setup())
    scheduler.send("each", [1], 100, ignore_eos=True)
    scheduler.send("tens", [2], 100, ignore_eos=True, stream_interval=10)
    scheduler.send("whole", [3], 100, ignore_eos=True, stream=False)
    scheduler.run()
    messages = {rid: answer.messages for rid, answer in scheduler.answers.items()}
    assert messages == {"each": 100, "tens": 11, "whole": 2}


@pytest.mark.parametrize("chunk", [None, 16])
@pytest.mark.parametrize("start", [0, 1, 7, 29])
@pytest.mark.parametrize("overlap", [False, True])
def test_logprobs_arrive_at_their_positions(chunk: int | None, start: int, overlap: bool) -> None:
    """The fake device answers minus the position, so every number tells where it belongs; also when cached."""
    scheduler = LateScheduler(Setup(chunk=chunk, overlap=overlap, order="mixed" if start == 0 else "prefill_first"))
    wish = LogprobRequest(prompt_start=start, top_num=2, token_ids=pack_ids([3, 5]))
    for rid in ("first", "again"):
        scheduler.send(rid, PROMPT, 5, ignore_eos=True, logprobs=wish)
        scheduler.send(f"{rid}-other", [9, 9, *PROMPT], 5, ignore_eos=True)
        scheduler.run()
        columns = {
            name: np.frombuffer(b"".join(getattr(row, name) for row in scheduler.answers[rid].logprobs), np.float32)
            for name in ("output_vals", "output_top_vals", "output_token_ids_vals", "input_vals", "input_top_vals")
        }
        output = -np.arange(29.0, 34.0)
        np.testing.assert_array_equal(columns["output_vals"], output)
        np.testing.assert_allclose(columns["output_top_vals"], (output[:, None] - [0, 0.01]).ravel(), rtol=1e-6)
        np.testing.assert_allclose(columns["output_token_ids_vals"], (output[:, None] - [0.003, 0.005]).ravel(), 1e-6)
        prompt = -np.arange(float(start), 29.0)
        if start == 0:
            assert np.isnan(columns["input_vals"][0])
            np.testing.assert_array_equal(columns["input_vals"][1:], prompt[1:])
        else:
            np.testing.assert_array_equal(columns["input_vals"], prompt)
        assert len(columns["input_top_vals"]) == 2 * len(prompt)


def test_penalty_lines_are_given_back() -> None:
    """Lines are reused, so the device's count table does not grow with the number of requests."""
    scheduler = LateScheduler(Setup(num_slots=4))
    for i in range(40):
        scheduler.send(f"r{i}", [i + 1, 2], 6, frequency_penalty=0.5)
    scheduler.run()
    lines = {
        int(line)
        for step in scheduler.worker.steps
        for part in step.sampling.parts
        for line in part.columns.get("lines", ())
    }
    assert lines == {0, 1, 2, 3}


def test_sampling_columns_keep_their_identity_while_rows_stay() -> None:
    scheduler = LateScheduler(Setup())
    scheduler.send("a", [1, 2], 20, ignore_eos=True)
    scheduler.send("b", [3, 4], 20, ignore_eos=True)
    scheduler.run()
    assert len({id(step.sampling) for step in scheduler.worker.steps}) == 1


def test_flush_only_when_idle() -> None:
    scheduler = LateScheduler(Setup())
    scheduler.send("r", PROMPT, 10, ignore_eos=True)
    scheduler.turn(2)
    scheduler.requests.send(FlushCacheReqInput(id=1))
    scheduler.run()
    assert scheduler.kv.state().evictable > 0
    scheduler.requests.send(FlushCacheReqInput(id=2))
    scheduler.requests.send(GetInternalStateReq(id=3))
    scheduler.turn()
    replies = [reply for reply in scheduler.replies.drain() if isinstance(reply, FlushCacheReqOutput)]
    assert [(reply.id, reply.success) for reply in replies] == [(1, False), (2, True)]
    assert scheduler.kv.state().evictable == 0


class OneNamespaceAtATime:
    """A per-batch limit as adapters will need one."""

    def __call__(self, req: Req, others: Sequence[Req]) -> bool:
        return all(other.extra_key == req.extra_key for other in others)


def test_an_admission_rule_keeps_requests_apart() -> None:
    scheduler = LateScheduler(Setup(rules=(OneNamespaceAtATime(),)))
    for i in range(6):
        scheduler.send(f"r{i}", [i + 1, 2], 4, ignore_eos=True, extra_key="ab"[i // 2 % 2])
    scheduler.run()
    assert max(step.num_rows for step in scheduler.worker.steps) == 2
    for i in range(6):
        assert scheduler.answers[f"r{i}"].ids == solo([i + 1, 2], 4, VOCAB, ignore_eos=True)


def test_lpm_takes_the_longest_cached_prefix_first() -> None:
    """One slot: of two waiting requests, the later one has its prefix cached and goes first under lpm only."""
    for policy, order in (("fcfs", ["cold", "warm"]), ("lpm", ["warm", "cold"])):
        scheduler = LateScheduler(Setup(num_slots=1, policy=policy))
        scheduler.send("first", PROMPT, 2, ignore_eos=True)
        scheduler.run()
        scheduler.send("cold", [60, 61, 62], 2, ignore_eos=True)
        scheduler.send("warm", PROMPT, 2, ignore_eos=True)
        done: list[str] = []
        while len(done) < 2:
            scheduler.turn()
            done += [rid for rid in ("cold", "warm") if scheduler.answers[rid].finish and rid not in done]
        assert done == order
        scheduler.run()


@pytest.mark.parametrize(("priorities", "first"), [("none", "abcd"), ("high_first", "bdac"), ("low_first", "cabd")])
def test_priorities_order_those_that_wait(priorities: Literal["none", "high_first", "low_first"], first: str) -> None:
    scheduler = LateScheduler(Setup(num_slots=1, priorities=priorities, overlap=False))
    ended: list[str] = []
    for rid, priority in zip("abcd", (0, 7, -2, 7), strict=True):
        scheduler.send(rid, PROMPT, 2, priority=priority, ignore_eos=True)
    for _ in range(40):
        scheduler.turn()
        ended += [rid for rid, answer in scheduler.answers.items() if answer.finish is not None and rid not in ended]
    assert "".join(ended) == first


def test_a_retracted_request_goes_before_those_that_came_later() -> None:
    scheduler = LateScheduler(Setup(num_tokens=128, max_context=128, num_slots=3, conservativeness=0.1))
    for i in range(3):
        scheduler.send(f"r{i}", [i + 1] * 4, 80, min_new_tokens=80)
    scheduler.send("later", [9] * 4, 2, ignore_eos=True)
    scheduler.run()
    assert scheduler.retractions > 0
    prefills = [step for step in scheduler.worker.steps if not step.mode.is_decode]
    assert prefills[-1].input_ids.tolist()[-4:] == [9] * 4, "the last to start must be the last to come"


@pytest.mark.parametrize("overlap", [False, True])
def test_nobody_is_retracted_for_memory_that_is_about_to_come_back(overlap: bool) -> None:
    """Two requests fill the memory to the last page; the first ends by length just when the second wants its page."""
    scheduler = LateScheduler(Setup(overlap=overlap, num_tokens=62, max_context=62, conservativeness=0.1))
    scheduler.send("ends", [1] * 20, 12, min_new_tokens=12)
    scheduler.send("goes on", [2] * 20, 20, min_new_tokens=20)
    scheduler.run()
    assert scheduler.retractions == 0
    assert scheduler.answers["goes on"].finish == Length(20)


def test_rows_are_told_what_they_share() -> None:
    """The late device checks every group that it is given; here only that there were some, and none without a cache:
    in steps that decode, and in one with several prompts.
    """
    for cache, some in (("radix", True), ("chunk", False)):
        scheduler = LateScheduler(Setup(cache=cache))
        for i in range(6):
            scheduler.send(f"r{i}", [*PROMPT, 30 + i], 8, ignore_eos=True)
        scheduler.run()
        assert (scheduler.worker.groups_seen > 0) is (scheduler.worker.prompt_groups_seen > 0) is some


@pytest.mark.promise(19)
@pytest.mark.parametrize("page_size", [1, 16])
def test_mixed_steps_bound_both_waits(page_size: int) -> None:
    """While prompts are computed every running row has its token in every step, and prompts have their share."""
    chunk = 48
    scheduler = LateScheduler(
        Setup(chunk=chunk, page_size=page_size, max_context=512, num_tokens=8192, num_slots=64, order="mixed")
    )
    for i in range(40):
        scheduler.send(f"running{i}", [i + 1], 60, ignore_eos=True)
    while scheduler.assembled.scheduler.lanes.size < 40:
        scheduler.turn()
    before = len(scheduler.worker.steps)
    for i in range(3):
        scheduler.send(f"prompt{i}", [50 + i] * 150, 2, ignore_eos=True)
    scheduler.run()
    mixed = [step for step in scheduler.worker.steps[before:] if not step.mode.is_decode]
    prompt_tokens = [int(step.extend_lens[step.extend_lens > 1].sum()) for step in mixed]
    least = max(chunk // LEAST_SHARE, page_size)
    assert all(0 < tokens <= chunk for tokens in prompt_tokens) and sum(prompt_tokens) == 450
    assert all(tokens >= least - page_size for tokens in prompt_tokens[:-1])
    assert all(np.count_nonzero(step.extend_lens == 1) >= 40 for step in mixed), "a running row was left out"
    steps_of_first = [step for step in scheduler.worker.steps if 0 in step.slots]
    assert len(steps_of_first) >= 60


def test_prompts_go_first_otherwise() -> None:
    scheduler = LateScheduler(Setup(chunk=48, max_context=512))
    scheduler.send("running", [1], 60, ignore_eos=True)
    scheduler.turn(3)
    scheduler.send("prompt", [2] * 200, 2, ignore_eos=True)
    scheduler.run()
    assert all(len(step.slots) == 1 for step in scheduler.worker.steps if not step.mode.is_decode)
