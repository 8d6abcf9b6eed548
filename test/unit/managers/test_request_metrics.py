"""A front's counts of answers, by a clock that the test moves."""

from __future__ import annotations

from dataclasses import dataclass

from mysglang.srt.managers.request_metrics import WATCHED_S, NoMetrics, SheetMetrics, WatchedMetrics
from mysglang.srt.messages.outputs import Stop
from mysglang.srt.messages.packing import pack_ids
from mysglang.srt.messages.requests import TokenizedGenerateReqInput
from mysglang.srt.observability import instruments as told
from mysglang.srt.observability.sheet import Histogram, Instrument, Sheet
from mysglang.srt.sampling.sampling_params import SamplingParams


@dataclass
class Clock:
    now: float = 100.0

    def __call__(self) -> float:
        return self.now


def request(**params: object) -> TokenizedGenerateReqInput:
    return TokenizedGenerateReqInput(
        rid="r", input_ids=pack_ids([1, 2]), sampling_params=SamplingParams(**params), stream=True, extra_key=""
    )


def numbers(metrics: SheetMetrics, instrument: Instrument) -> list[float]:
    return told.FRONT.part(metrics.total_row(), instrument)


def seen(metrics: SheetMetrics, histogram: Histogram) -> tuple[float, float]:
    """How many values, and their sum."""
    *counts, total = numbers(metrics, histogram)
    return sum(counts), total


def test_an_answer() -> None:
    clock = Clock()
    metrics = SheetMetrics(Sheet.alone(told.FRONT), clock)
    metrics.opened("r")
    metrics.sent("r", request(json_schema="{}"))
    clock.now += 2
    metrics.grew("r", 10, 1, 4)
    clock.now += 3
    metrics.grew("r", 10, 4, 4)
    metrics.grew("r", 10, 4, 4)
    clock.now += 1
    metrics.ended("r", Stop())
    metrics.ended("r", None)
    assert numbers(metrics, told.PROMPT_TOKENS) == [10]
    assert numbers(metrics, told.CACHED_TOKENS) == [4]
    assert numbers(metrics, told.GENERATION_TOKENS) == [4]
    assert numbers(metrics, told.NUM_REQUESTS) == [1]
    assert numbers(metrics, told.NUM_SO_REQUESTS) == [1]
    assert numbers(metrics, told.NUM_ABORTED_REQUESTS) == [0]
    assert seen(metrics, told.TIME_TO_FIRST_TOKEN) == (1, 2)
    assert seen(metrics, told.INTER_TOKEN_LATENCY) == (3, 3)
    assert seen(metrics, told.E2E_REQUEST_LATENCY) == (1, 6)
    assert seen(metrics, told.PROMPT_TOKENS_HISTOGRAM) == (1, 10)
    assert seen(metrics, told.UNCACHED_PROMPT_TOKENS_HISTOGRAM) == (1, 6)
    assert seen(metrics, told.GENERATION_TOKENS_HISTOGRAM) == (1, 4)
    assert seen(metrics, told.TIME_PER_OUTPUT_TOKEN) == (1, 1), "three tokens in three seconds after the first"


def test_an_answer_that_comes_at_once_has_no_time_between_its_tokens() -> None:
    metrics = SheetMetrics(Sheet.alone(told.FRONT))
    metrics.opened("r")
    metrics.sent("r", request())
    metrics.grew("r", 10, 4, 0)
    metrics.ended("r", Stop())
    assert seen(metrics, told.TIME_PER_OUTPUT_TOKEN) == (0, 0)


def test_what_was_given_up() -> None:
    metrics = SheetMetrics(Sheet.alone(told.FRONT))
    metrics.opened("refused")
    metrics.ended("refused", None)
    metrics.opened("left")
    metrics.sent("left", request())
    metrics.ended("left", None)
    assert numbers(metrics, told.NUM_ABORTED_REQUESTS) == [1]
    assert numbers(metrics, told.NUM_REQUESTS) == [0]
    assert seen(metrics, told.E2E_REQUEST_LATENCY) == (0, 0)


def test_http_requests_and_their_routing_keys() -> None:
    metrics, path = SheetMetrics(Sheet.alone(told.FRONT)), "/generate"
    for key in ("a", "a", "b", ""):
        metrics.asked(path, key)
    assert numbers(metrics, told.HTTP_REQUESTS[path]) == numbers(metrics, told.HTTP_REQUESTS_ACTIVE[path]) == [4]
    assert numbers(metrics, told.HTTP_REQUESTS_ACTIVE["/v1/completions"]) == [0]
    assert numbers(metrics, told.ROUTING_KEYS_ACTIVE) == [2]
    metrics.answered(path, "a", 200)
    assert numbers(metrics, told.ROUTING_KEYS_ACTIVE) == [2]
    for key, status in (("a", 200), ("b", 418), ("", None)):
        metrics.answered(path, key, status)
    found = {label: numbers(metrics, told.HTTP_RESPONSES[path, label]) for label in ("200", "400", "other")}
    assert found == {"200": [2], "400": [0], "other": [1]}
    assert numbers(metrics, told.ROUTING_KEYS_ACTIVE) == numbers(metrics, told.HTTP_REQUESTS_ACTIVE[path]) == [0]
    assert numbers(metrics, told.HTTP_REQUESTS[path]) == [4]


def test_nobody_asks() -> None:
    metrics = NoMetrics()
    metrics.grew("unknown", 1, 1, 0)
    assert len(metrics.total_row()) == told.FRONT.width
    assert not any(metrics.total_row())


def test_without_a_look_nothing_is_counted_and_with_one_all_that_comes_for_a_while() -> None:
    clock = Clock()
    metrics = WatchedMetrics(Sheet.alone(told.WATCHED_FRONT), clock)

    def answer(rid: str) -> None:
        metrics.opened(rid)
        metrics.sent(rid, request())
        clock.now += 2
        metrics.grew(rid, 10, 1, 4)
        metrics.ended(rid, Stop())

    answer("unseen")
    assert seen(metrics, told.TIME_TO_FIRST_TOKEN) == (0, 0)
    assert len(metrics.total_row()) == told.FRONT.width
    metrics.watch()
    answer("seen")
    metrics.opened("open while somebody looks")
    clock.now += WATCHED_S
    metrics.grew("open while somebody looks", 3, 1, 0)
    answer("after the last look")
    assert seen(metrics, told.TIME_TO_FIRST_TOKEN) == (2, 2 + WATCHED_S)
    metrics.watch()
    answer("seen again")
    assert numbers(metrics, told.NUM_REQUESTS) == [2]


def test_a_look_at_one_front_wakes_the_others() -> None:
    memory = bytearray(2 * told.WATCHED_FRONT.width * 8)
    one, other = (WatchedMetrics(Sheet(told.WATCHED_FRONT, memory, row)) for row in range(2))
    one.watch()
    other.opened("r")
    other.grew("r", 5, 1, 0)
    assert numbers(one, told.PROMPT_TOKENS) == [5]
