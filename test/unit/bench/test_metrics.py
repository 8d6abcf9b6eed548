"""Figures of hand-made timings, worked out on paper."""

import pytest

from mysglang.bench.metrics import Spread, measure, tokens_by_second
from mysglang.bench.records import RequestRecord
from mysglang.bench.vocabulary import Vocabulary

NO_TEXTS = Vocabulary.of_size(10)


def record(start: float, *arrivals: tuple[float, int], tokens: int | None = None, **known: object) -> RequestRecord:
    """One whose last chunk is its end."""
    count = sum(new for _, new in arrivals) if tokens is None else tokens
    end = arrivals[-1][0] if arrivals else start + 1
    made = RequestRecord(start, 10, end, list(arrivals), count)
    for name, value in known.items():
        setattr(made, name, value)
    return made


STEADY = record(0.0, (0.5, 1), (0.6, 1), (0.9, 1), cached_tokens=4)
"""First token after 500 ms, then gaps of 100 and 300."""
BURST = record(1.0, (1.2, 2), (1.8, 3), cached_tokens=0)
"""Five tokens in two chunks: 200 ms, then 600 ms for three."""


class TestRecord:
    def test_one_token_in_each_chunk(self) -> None:
        assert (STEADY.ttft, STEADY.latency) == pytest.approx((0.5, 0.9))
        assert STEADY.tpot == pytest.approx(0.2)
        assert STEADY.itls() == pytest.approx([0.1, 0.3])

    def test_tokens_of_a_chunk_share_its_gap(self) -> None:
        assert BURST.tpot == pytest.approx(0.6 / 4)
        assert BURST.itls() == pytest.approx([0.2, 0.2, 0.2])

    def test_what_cannot_be_told_is_not(self) -> None:
        assert record(0.0, (0.5, 1)).tpot is None
        assert record(0.0, (0.5, 7)).tpot is None
        assert record(0.0).itls() == []
        assert record(0.0).ttft == 1.0


class TestSpread:
    def test_percentiles(self) -> None:
        spread = Spread.of([number / 1000 for number in range(1, 101)])
        assert (spread.mean, spread.median, spread.max) == pytest.approx((50.5, 50.5, 100))
        assert (spread.p90, spread.p95, spread.p99) == pytest.approx((90.1, 95.05, 99.01))
        assert spread.std == pytest.approx(((100**2 - 1) / 12) ** 0.5)
        assert set(spread.named("ttft")) == {
            f"{name}_ttft_ms" for name in ("mean", "median", "std", "p90", "p95", "p99", "max")
        }

    def test_nothing(self) -> None:
        assert Spread.of([]) == Spread(0, 0, 0, 0, 0, 0, 0)


class TestMeasure:
    def test_totals_and_rates(self) -> None:
        failed = record(0.0, (0.1, 100), error="it broke")
        metrics = measure([STEADY, BURST, failed], start=0.0, duration=2.0, vocabulary=NO_TEXTS)
        assert (metrics.completed, metrics.failed) == (2, 1)
        assert (metrics.total_input_tokens, metrics.total_output_tokens) == (20, 8)
        assert (metrics.request_throughput, metrics.input_throughput) == (1.0, 10.0)
        assert (metrics.output_throughput, metrics.total_throughput) == (4.0, 14.0)
        assert metrics.concurrency == pytest.approx((0.9 + 0.8) / 2)
        assert (metrics.total_cached_tokens, metrics.cache_hit_rate_pct) == (4, 20.0)
        assert (metrics.total_output_tokens_retokenized, metrics.request_goodput) == (None, None)
        assert metrics.ttft.mean == pytest.approx(350)
        assert metrics.tpot.mean == pytest.approx((200 + 150) / 2)
        assert metrics.itl.mean == pytest.approx((100 + 300 + 600) / 5)
        assert metrics.itl.max == pytest.approx(300)
        assert metrics.e2e_latency.median == pytest.approx(850)

    @pytest.mark.parametrize(
        ("objectives", "met"),
        [
            ({"ttft": 600.0}, 2),
            ({"ttft": 400.0}, 1),
            ({"tpot": 175.0}, 1),
            ({"e2el": 850.0}, 1),
            ({"ttft": 400.0, "tpot": 100.0}, 0),
        ],
    )
    def test_goodput(self, objectives: dict[str, float], met: int) -> None:
        metrics = measure([STEADY, BURST], 0.0, 4.0, NO_TEXTS, objectives)
        assert metrics.request_goodput == met / 4

    def test_most_at_once(self) -> None:
        records = [record(0.0, (2.0, 1)), record(1.0, (3.0, 1)), record(1.5, (1.8, 1)), record(2.0, (4.0, 1))]
        assert measure(records, 0.0, 4.0, NO_TEXTS).max_concurrent_requests == 3

    def test_tokens_of_each_second(self) -> None:
        assert tokens_by_second([STEADY, BURST], 0.0) == [3, 5]
        # Four pieces that were eight tokens.
        assert tokens_by_second([record(0.0, (0.1, 1), (0.2, 1), (2.1, 1), (2.2, 1), tokens=8)], 0.0) == [4, 0, 4]
        assert measure([STEADY, BURST], 0.0, 2.0, NO_TEXTS).max_output_tokens_per_s == 5

    def test_nothing_succeeded(self) -> None:
        metrics = measure([record(0.0, error="no")], 0.0, 1.0, NO_TEXTS)
        assert (metrics.completed, metrics.output_throughput, metrics.max_concurrent_requests) == (0, 0, 0)
        assert metrics.total_cached_tokens is None
