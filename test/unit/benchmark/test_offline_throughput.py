"""The floors against sums done by hand, and the tables made of known times."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmark"))

from floors import Ceilings, ModelSizes, decode_step, offline, prefill
from offline_throughput import bench, report
from offline_throughput.workloads import workloads
from shapes import SHAPES

TINY = {
    "hidden_size": 8,
    "intermediate_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 4,
    "vocab_size": 10,
}
SIZES = ModelSizes.of(TINY)
LAYER = 8 * (8 + 4 + 4 + 8) + 3 * 8 * 16
PLAIN = Ceilings(read=1.0, gemm=1e30, attention=1e30)
"""A device that only reading costs anything."""
COUNTING = Ceilings(read=1e30, gemm=1.0, attention=1.0)
"""And one that only computes."""


def test_sizes_of_a_shape() -> None:
    assert (SIZES.layer_weights, SIZES.head_weights) == (2 * LAYER, 8 * 10)
    assert (SIZES.kv_bytes, SIZES.query_width) == (2 * 2 * 4 * 2, 2 * 2 * 4)
    llama = ModelSizes.of(SHAPES["llama-8b"])
    assert llama.weight_bytes == pytest.approx(15.01e9, rel=1e-3) and llama.kv_bytes == 131072


def test_a_decode_step_reads_weights_and_keys() -> None:
    weights = 2 * (2 * LAYER + 80)
    assert decode_step(SIZES, PLAIN, rows=3, cached_tokens=100) == weights + 100 * SIZES.kv_bytes
    assert decode_step(SIZES, COUNTING, rows=3, cached_tokens=100) == pytest.approx(3 * weights)


def test_prefill_computes_every_token_once() -> None:
    products = 2 * (5 * 2 * LAYER + 2 * 80)
    assert prefill(SIZES, COUNTING, [2, 3]) == products + 4 * (2**2 + 3**2) / 2 * SIZES.query_width
    assert prefill(SIZES, PLAIN, [2, 3]) == pytest.approx(SIZES.weight_bytes)


def test_a_shared_prefix_counts_once() -> None:
    alone = prefill(SIZES, COUNTING, [6])
    assert prefill(SIZES, COUNTING, [6], shared=4) == alone
    both = prefill(SIZES, COUNTING, [6, 6], shared=4)
    rest = 2 * (2 * 2 * LAYER + 80) + 4 * (6**2 - 4**2) / 2 * SIZES.query_width
    assert both == alone + rest
    assert offline(SIZES, PLAIN, [6, 6], [2, 2], shared=4) == pytest.approx(
        2 * SIZES.weight_bytes + (4 + 2 * 3) * SIZES.kv_bytes
    )


def test_requests_leave_when_they_are_done() -> None:
    steps = [decode_step(SIZES, PLAIN, 2, 2 * 5 + 2), decode_step(SIZES, PLAIN, 1, 5 + 2)]
    assert offline(SIZES, PLAIN, [5, 5], [2, 3]) == pytest.approx(prefill(SIZES, PLAIN, [5, 5]) + sum(steps))


def test_shared_tokens_are_what_the_prompts_share() -> None:
    for work in workloads().values():
        assert len({tuple(prompt[: work.shared]) for prompt in work.prompts}) == 1
        assert len({tuple(prompt[: work.shared + 8]) for prompt in work.prompts}) == len(work.prompts)


def outcome(model: str, **times: list[float]) -> dict[str, Any]:
    engines = {
        engine: {"version": "1", "ready_s": 2.0, "workloads": {"work": {"rounds_s": rounds}} if rounds else {}}
        for engine, rounds in times.items()
    }
    return {"ceilings": {}, "models": {model: {"floor_s": {"work": 1.0}, "engines": engines}}}


def test_the_table_gives_medians_spread_and_ratios() -> None:
    row = report.table(outcome("m", mysglang=[2.0, 1.25, 1.5], vllm=[3.0, 3.0, 4.0], sglang=[5.0])).splitlines()[-1]
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells == [
        "work",
        "1.500 (1.250-2.000)",
        "3.000 (3.000-4.000)",
        "5.000 (5.000-5.000)",
        "2.00",
        "1.000",
        "0.67",
    ]


def test_an_engine_that_failed_leaves_a_gap() -> None:
    row = report.table(outcome("m", mysglang=[2.0], vllm=[])).splitlines()[-1]
    assert [cell.strip() for cell in row.strip("|").split("|")] == [
        "work",
        "2.000 (2.000-2.000)",
        "-",
        "",
        "1.000",
        "0.50",
    ]


def test_runs_are_put_together(tmp_path: Path) -> None:
    first, second = outcome("a", mysglang=[2.0]), outcome("a", vllm=[3.0])
    merged = report.merge([first, second, outcome("b", mysglang=[1.0])])
    assert {model: list(found["engines"]) for model, found in merged["models"].items()} == {
        "a": ["mysglang", "vllm"],
        "b": ["mysglang"],
    }
    assert json.loads(json.dumps(merged)) == merged


def test_options_find_their_engine() -> None:
    args = bench.parse(["--option", "sglang.attention_backend=flashinfer", "--page-size", "16", "--disable-cuda-graph"])
    assert args.options == {
        "mysglang": {"page_size": 16, "disable_cuda_graph": True},
        "sglang": {"attention_backend": "flashinfer"},
    }
    with pytest.raises(SystemExit, match="ENGINE"):
        bench.parse(["--option", "llama.x=1"])
