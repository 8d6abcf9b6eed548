"""The floors against sums done by hand, and the tables made of known times."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import psutil
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmark"))

from floors import Ceilings, ModelSizes, decode_step, offline, prefill
from offline_throughput import bench, report, run_engine
from offline_throughput.engines import HALF_WIDTH, FillsAsOurs, share
from offline_throughput.seats import RunningEngine, SeatError
from offline_throughput.workloads import SETS, chosen
from shapes import SHAPES

from fixtures.patience import PATIENCE_S
from fixtures.processes import running, wait_until_gone

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


class AnyRMSNorm(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(64))


def two_layers() -> torch.nn.Sequential:
    return torch.nn.Sequential(*(torch.nn.Sequential(AnyRMSNorm(), torch.nn.Linear(64, 8)) for _ in range(2)))


def check_drawn_as_ours(model: torch.nn.Sequential) -> None:
    for name, weight in model.named_parameters():
        centre = 1.0 if weight.dim() == 1 and name.endswith("0.weight") else 0.0
        distance = (weight - centre).abs().max()
        assert 0 < distance <= HALF_WIDTH + 1e-6, name
    first, second = (list(layer.parameters()) for layer in model)
    assert not any(torch.equal(a, b) for a, b in zip(first, second, strict=True)), "layers differ"


def test_vllm_s_weights_are_drawn_as_ours() -> None:
    """vLLM's loader asks for the model, then for every module in it."""
    model = two_layers()
    fill = FillsAsOurs()
    for module in model.modules():
        fill(module)
    check_drawn_as_ours(model)


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_sglang_s_weights_are_drawn_as_ours(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """SGLang's worker is a spawned process, which runs the file of its parent under another name before anything."""
    loader = ModuleType("sglang.srt.model_loader.loader")
    package = ModuleType("sglang.srt.model_loader")
    package.loader = loader  # type: ignore[attr-defined]
    for name, module in [("sglang.srt.model_loader", package), (loader.__name__, loader)]:
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(sys, "argv", ["run_engine.py", engine, "a-model"])
    monkeypatch.setattr(sys, "path", list(sys.path))
    runpy.run_path(run_engine.__file__, run_name="__mp_main__")
    if engine != "sglang":
        assert not hasattr(loader, "initialize_dummy_weights")
        return
    model = two_layers()
    loader.initialize_dummy_weights(model)  # type: ignore[attr-defined]
    check_drawn_as_ours(model)


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
    for work in chosen(list(SETS), []).values():
        assert len({tuple(prompt[: work.shared]) for prompt in work.prompts}) == 1
        differ = {tuple(prompt[: work.shared + 8]) for prompt in work.prompts}
        assert len(differ) == len(work.prompts) or not work.has_floor
        assert len(work.prompts) == len(work.output_lens)


def outcome(model: str, **times: list[float]) -> dict[str, Any]:
    engines = {
        engine: {"version": "1", "ready_s": 2.0, "workloads": {"work": {"rounds_s": rounds}} if rounds else {}}
        for engine, rounds in times.items()
    }
    return {"ceilings": {}, "models": {model: {"floor_s": {"work": 1.0}, "engines": engines}}}


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_the_table_gives_medians_spread_and_ratios() -> None:
    table = report.table(outcome("m", mysglang=[2.0, 1.25, 1.5], vllm=[3.0, 3.0, 4.0], sglang=[6.0])).splitlines()
    rows = dict(zip(cells(table[2]), cells(table[-1]), strict=True))
    assert rows == {
        "workload": "work",
        "mysglang": "1.500 (1.250-2.000)",
        "vllm": "3.000 (3.000-4.000)",
        "sglang": "6.000 (6.000-6.000)",
        "vllm / mysglang": "2.000",
        "sglang / mysglang": "4.000",
        "floor": "1.000",
        "floor / mysglang": "0.67",
    }


def test_an_engine_that_failed_and_an_unknown_floor_leave_gaps() -> None:
    found = outcome("m", mysglang=[2.0], vllm=[])
    assert cells(report.table(found).splitlines()[-1]) == ["work", "2.000 (2.000-2.000)", "-", "", "1.000", "0.50"]
    found["models"]["m"]["floor_s"]["work"] = None
    assert cells(report.table(found).splitlines()[-1]) == ["work", "2.000 (2.000-2.000)", "-", "", "", ""]


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


def test_engines_share_a_device() -> None:
    assert share("vllm", ["vllm"]) is None
    assert share("mysglang", ["vllm", "mysglang"]) is None, "it takes what is left"
    assert share("vllm", ["vllm", "mysglang"]) == share("before", ["before", "mysglang"]) == pytest.approx(0.425)


def test_engines_take_turns() -> None:
    assert [bench.turned(["a", "b", "c"], turn) for turn in range(3)] == [
        ["a", "b", "c"],
        ["b", "c", "a"],
        ["c", "a", "b"],
    ]
    assert bench.turned([], 2) == []


ENGINE = """
import json, sys
print("noise of its own")
print("\u00bb" + json.dumps({"version": "1", "ready_s": 0.5}), flush=True)
for line in sys.stdin:
    if "bad" in line:
        raise RuntimeError("out of pages")
    print("\u00bb" + json.dumps({"workload": line.strip(), "seconds": 2.5}), flush=True)
"""


def test_an_engine_answers_until_it_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("offline_throughput.seats.DEATH_S", 0.0)
    engine = RunningEngine([sys.executable, "-X", "utf8", "-c", ENGINE], {}, tmp_path / "log")
    try:
        assert engine.ready(PATIENCE_S) == {"version": "1", "ready_s": 0.5}
        assert engine.seconds("good", PATIENCE_S) == 2.5
        with pytest.raises(SeatError, match="out of pages"):
            engine.seconds("bad", PATIENCE_S)
    finally:
        engine.end()
    assert "noise of its own" in (tmp_path / "log").read_text()


LEFT_OVER = """
import signal
from offline_throughput.run_engine import end_with_parent
end_with_parent()
print("started", flush=True)
signal.pause()
"""
PARENT = """
import sys
from subprocess import PIPE, Popen
child = Popen([sys.executable, "-c", sys.argv[1]], stdin=PIPE, stdout=PIPE)
child.stdout.readline()
print(child.pid, flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process that its parent has ended")
def test_an_engine_ends_with_a_benchmark_that_is_killed() -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(bench.__file__).parents[1])}
    command = [sys.executable, "-c", PARENT, LEFT_OVER]
    with running(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as parent:
        assert parent.stdout is not None
        engine = psutil.Process(int(parent.stdout.readline()))
        parent.kill()
    wait_until_gone([engine])


class Answers:
    """An engine of a comparison, which fails at its third question if it is said to."""

    def __init__(self, asked: list[str], name: str) -> None:
        self._asked = asked
        self._name = name

    def ready(self, limit_s: float) -> dict[str, Any]:
        return {"version": "1", "ready_s": 1.0}

    def seconds(self, workload: str, limit_s: float) -> float:
        self._asked.append(f"{self._name} {workload}")
        if self._name == "vllm" and len(self._asked) > 4:
            raise SeatError("gone")
        return float(len(self._asked))

    def end(self) -> None:
        self._asked.append(f"{self._name} ends")


def test_a_comparison_goes_on_without_an_engine_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(bench.RunningEngine, "start", lambda engine, *rest, **more: Answers(asked, engine))
    args = bench.parse(["--engines", "mysglang", "vllm", "--rounds", "2"])
    comparison = bench.Comparison(args, "toy", tmp_path)
    comparison.run(args.engines, ["a", "b"], lambda: None)
    assert asked == [
        *("vllm a", "mysglang a", "vllm b", "mysglang b"),
        *("mysglang a", "vllm a", "vllm ends", "mysglang b"),
        *("mysglang a", "mysglang b", "mysglang ends"),
    ]
    assert comparison.results["vllm"]["status"] == "gone"
    assert comparison.results["mysglang"]["workloads"] == {
        "a": {"warm_s": 2.0, "rounds_s": [5.0, 9.0]},
        "b": {"warm_s": 4.0, "rounds_s": [8.0, 10.0]},
    }
