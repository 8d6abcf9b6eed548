"""A scheduler's figures in its heartbeat and in its log, against the work that it was given."""

from __future__ import annotations

import logging
import re

import pytest

from fixtures.late_scheduler import LateScheduler, Setup
from mysglang.srt.forward.outputs import BatchResult
from mysglang.srt.forward.worker_batch import ModelWorkerBatch
from mysglang.srt.messages.control import HeartBeat, SchedulerFigures
from mysglang.srt.observability import instruments as told
from mysglang.srt.observability.sheet import Instrument
from mysglang.srt.scheduling.stats import Occupancy
from mysglang.srt.scheduling.step_planner import OrderName


def figures(scheduler: LateScheduler) -> SchedulerFigures:
    """The present figures."""
    scheduler.replies.drain()
    scheduler.assembled.scheduler.beat()
    (beat,) = scheduler.replies.drain()
    assert isinstance(beat, HeartBeat)
    return beat.figures


def numbers(said: SchedulerFigures, instrument: Instrument) -> list[float]:
    return told.SCHEDULER.part(said.counted, instrument)


@pytest.mark.parametrize("order", ["prefill_first", "mixed"])
def test_every_token_is_counted_once(order: OrderName) -> None:
    scheduler = LateScheduler(Setup(chunk=16, overlap=False, order=order))
    scheduler.send("first", list(range(2, 42)), 5, ignore_eos=True)
    scheduler.run()
    scheduler.send("second", list(range(2, 42)), 5, ignore_eos=True)
    scheduler.send("third", [1, 2, 3], 5, ignore_eos=True)
    scheduler.run()
    said = figures(scheduler)
    [computed], [cached], [decoded] = (
        numbers(said, counter) for counter in (told.PREFILL_COMPUTE, told.PREFILL_CACHE, told.DECODE)
    )
    assert cached == 39
    assert computed == 40 + 1 + 3
    assert decoded == 3 * 4
    assert said.cache_hit_rate == pytest.approx(39 / 43)
    assert said.num_used_tokens == 0
    assert said.gen_throughput == 0
    *waits, total = numbers(said, told.QUEUE_TIME)
    assert sum(waits) == 3
    assert total > 0


def test_retractions_are_counted_and_wait_only_once() -> None:
    scheduler = LateScheduler(Setup(num_tokens=128, max_context=128, num_slots=3, conservativeness=0.1))
    for number in range(3):
        scheduler.send(f"r{number}", [number + 2] * 4, 80, min_new_tokens=80)
    scheduler.run()
    said = figures(scheduler)
    assert numbers(said, told.NUM_RETRACTED) == [scheduler.retractions]
    assert scheduler.retractions > 0
    assert sum(numbers(said, told.QUEUE_TIME)[:-1]) == 3
    assert numbers(said, told.RETRACTED_INPUT) == [4 * scheduler.retractions]
    assert scheduler.retractions <= numbers(said, told.RETRACTED_OUTPUT)[0] < 80 * scheduler.retractions


@pytest.mark.parametrize("page_size", [1, 16])
def test_what_is_evicted_is_counted_and_what_is_flushed_is_not(page_size: int) -> None:
    scheduler = LateScheduler(Setup(num_tokens=128, max_context=128, page_size=page_size))
    for rid, token in (("first", 2), ("second", 3)):
        scheduler.send(rid, [token] * 96, 1)
        scheduler.run()
    kept = scheduler.kv.state().evictable
    evicted = numbers(figures(scheduler), told.EVICTED)
    # Tokens of both prompts, whose whole pages were cached.
    assert evicted == [2 * 96 - kept]
    assert evicted[0] > 0
    assert scheduler.kv.flush()
    assert numbers(figures(scheduler), told.EVICTED) == evicted


@pytest.mark.parametrize("overlap", [False, True])
def test_every_step_is_timed_once(overlap: bool) -> None:
    scheduler = LateScheduler(Setup(chunk=16, overlap=overlap))
    scheduler.send("first", list(range(2, 42)), 5, ignore_eos=True)
    scheduler.run()
    said = figures(scheduler)
    *prompts, prompt_seconds = numbers(said, told.PREFILL_STEP)
    *decodes, decode_seconds = numbers(said, told.DECODE_STEP)
    assert sum(prompts) == 3
    assert sum(decodes) == 4
    assert prompt_seconds > 0 and decode_seconds > 0
    # The same time by SGLang's name for it.
    assert numbers(said, told.EXTEND_SECONDS) == [pytest.approx(prompt_seconds)]
    assert numbers(said, told.DECODE_SECONDS) == [pytest.approx(decode_seconds)]
    assert said.num_available_tokens == scheduler.setup.num_tokens
    # The last token of an answer is computed without being used.
    assert said.num_available_tokens - said.num_free_tokens == 40 + 4
    assert numbers(said, told.CPU_SECONDS)[0] > 0


def test_steps_on_graphs_are_counted_and_told(caplog: pytest.LogCaptureFixture) -> None:
    scheduler = LateScheduler(Setup(overlap=False, decode_log_interval=2))
    launch = scheduler.worker.forward_batch_generation

    def replay(batch: ModelWorkerBatch) -> BatchResult:
        result = launch(batch)
        result.on_graph = batch.mode.is_decode
        return result

    scheduler.worker.forward_batch_generation = replay  # type: ignore[method-assign]
    scheduler.send("r", [2, 3, 4], 5, ignore_eos=True)
    with caplog.at_level(logging.INFO):
        scheduler.run()
    said = figures(scheduler)
    assert numbers(said, told.DECODE_GRAPHS) == [4]
    assert numbers(said, told.PREFILL_GRAPHS) == [0]
    prefill, decode, _ = (record.getMessage() for record in caplog.records)
    assert "cuda graph: False" in prefill
    assert "cuda graph: True" in decode


def test_the_part_of_the_time_in_which_steps_are_computed() -> None:
    occupancy = Occupancy(2)
    occupancy.add(1.0, now=11.0)
    assert occupancy.percent == 0
    occupancy.add(1.0, now=14.0)
    assert occupancy.percent == 50
    occupancy.add(1.0, now=15.0)
    occupancy.restart(15.0)
    assert occupancy.percent == 100
    # The time without work is in no window.
    occupancy.add(1.0, now=1000.0)
    occupancy.add(0.5, now=1001.0)
    assert occupancy.percent == 75


def test_requests_by_priority_and_routing_key() -> None:
    scheduler = LateScheduler(Setup(overlap=False, num_slots=2, priorities="low_first"))
    for number, (priority, key) in enumerate([(1, "a"), (1, "a"), (5, "a"), (5, "b"), (7, "")]):
        scheduler.send(f"r{number}", [2, 3, number + 4], 5, ignore_eos=True, priority=priority, routing_key=key)
    scheduler.turn(2)
    scheduler.replies.drain()
    scheduler.assembled.scheduler.beat()
    (beat,) = scheduler.replies.drain()
    assert isinstance(beat, HeartBeat)
    census = beat.figures.census
    assert (census.running_priorities, census.waiting_priorities) == ({1: 2}, {5: 2, 7: 1})
    assert (census.running_keys, sorted(census.all_keys)) == ([2], [1, 3])
    scheduler.run()


NUMBER = r"(\d+)"
REAL = r"(\d+\.\d\d)"
PREFILL_LINE = re.compile(
    f"Prefill batch, #new-seq: {NUMBER}, #new-token: {NUMBER}, #cached-token: {NUMBER}, token usage: {REAL}, "
    f"#running-req: {NUMBER}, #queue-req: {NUMBER}, #pending-token: {NUMBER}, cuda graph: False, "
    rf"input throughput \(token/s\): {REAL}, cache hit rate: {REAL}, step time \(ms\): {REAL}"
)
DECODE_LINE = re.compile(
    f"Decode batch, #running-req: {NUMBER}, #token: {NUMBER}, token usage: {REAL}, cuda graph: False, "
    rf"gen throughput \(token/s\): {REAL}, #queue-req: {NUMBER}, step time \(ms\): {REAL}"
)


def test_the_lines_about_steps_say_what_sglang_says(caplog: pytest.LogCaptureFixture) -> None:
    scheduler = LateScheduler(Setup(overlap=False, chunk=16, num_slots=1, num_tokens=256, decode_log_interval=2))
    scheduler.send("first", list(range(2, 42)), 4, ignore_eos=True)
    scheduler.send("second", list(range(2, 12)), 4, ignore_eos=True)
    with caplog.at_level(logging.INFO):
        scheduler.run()
    lines = [record.getMessage() for record in caplog.records]
    prefills = [found.groups() for line in lines if (found := PREFILL_LINE.fullmatch(line))]
    decodes = [found.groups() for line in lines if (found := DECODE_LINE.fullmatch(line))]
    assert len(prefills) + len(decodes) == len(lines) == 7
    # New sequences, new and cached tokens, usage, running, queueing, tokens to come: three chunks of the first prompt
    # while the second waits, then the second, all of whose tokens but one are cached.
    assert [line[:7] for line in prefills] == [
        ("1", "16", "0", "0.06", "1", "1", "34"),
        ("0", "16", "0", "0.12", "1", "1", "18"),
        ("0", "8", "0", "0.16", "1", "1", "10"),
        ("1", "1", "9", "0.04", "1", "0", "0"),
    ]
    assert prefills[-1][8] == "0.90"
    assert [(line[0], line[4]) for line in decodes] == [("1", "1"), ("1", "0"), ("0", "0")]


def test_tokens_beside_prompts_are_generated_too(caplog: pytest.LogCaptureFixture) -> None:
    """If every step has a chunk of a prompt, the log still reports the answers' speed."""
    scheduler = LateScheduler(Setup(overlap=False, chunk=17, order="mixed", decode_log_interval=2))
    scheduler.send("answer", [2, 3, 4], 9, ignore_eos=True)
    scheduler.turn()
    scheduler.send("prompt", list(range(2, 60)) * 2, 0)
    with caplog.at_level(logging.INFO):
        scheduler.turn(5)
    assert scheduler.assembled.scheduler._parts.stats.last_gen_throughput > 0
    lines = [record.getMessage() for record in caplog.records]
    prefills = [found.groups() for line in lines if (found := PREFILL_LINE.fullmatch(line))]
    assert [line[1] for line in prefills] == ["16"] * 5
    assert len(lines) - len(prefills) == 2
    scheduler.run()


def test_what_became_of_drafts(caplog: pytest.LogCaptureFixture) -> None:
    """A row whose four drafts are always right beside one that has none, then the first alone."""
    scheduler = LateScheduler(Setup(overlap=False, drafts=4, drafter="perfect", decode_log_interval=5))
    scheduler.send("wide", [2, 3, 4], 51, ignore_eos=True)
    scheduler.send("narrow", [5, 6, 7], 6, ignore_eos=True, min_new_tokens=6)
    with caplog.at_level(logging.INFO):
        scheduler.run()
    lines = [record.getMessage() for record in caplog.records if record.getMessage().startswith("Decode batch")]
    assert [re.findall(r"accept len: ([\d.]+), accept rate: ([\d.]+), cuda graph", line) for line in lines] == [
        [("3.00", "1.00")],
        [("5.00", "1.00")],
    ]
    said = figures(scheduler)
    assert (said.spec_accept_length, said.spec_accept_rate) == (5.0, 1.0)
    assert scheduler.assembled.rows.stats.avg_accept_length == (50 + 5) / (10 + 5)


def test_without_drafts_nothing_is_said_of_them(caplog: pytest.LogCaptureFixture) -> None:
    scheduler = LateScheduler(Setup(decode_log_interval=5))
    scheduler.send("r", [2, 3, 4], 30, ignore_eos=True)
    with caplog.at_level(logging.INFO):
        scheduler.run()
    assert "Decode batch" in caplog.text and "accept" not in caplog.text
    said = figures(scheduler)
    assert (said.spec_accept_length, said.spec_accept_rate) == (0.0, 0.0)
    assert scheduler.assembled.rows.stats.avg_accept_length is None
