"""Weights of a running worker: taken from files and from a trainer's broadcast, refused before anything changes."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from fixtures.executors import start_executor
from fixtures.patience import PATIENCE_S
from fixtures.ports import reserved_port
from fixtures.processes import running
from fixtures.tiny_checkpoints import make_checkpoint
from fixtures.worker_driver import GREEDY, Driver
from mysglang.srt.configs.load_config import LoadConfig
from mysglang.srt.configs.model_config import ModelConfig
from mysglang.srt.errors import Conflict, InvalidRequest
from mysglang.srt.forward.weights import GroupFacts, ModelWeights, NoWeights, TensorFacts
from mysglang.srt.model_executor import live_weights
from mysglang.srt.model_executor.executor import Executor
from mysglang.srt.model_executor.runner_config import RunnerConfig
from mysglang.srt.utils.sharded_state import DEFAULT_PATTERN, ShardPlace

# What a step must say of windows' pages is the scheduler's affair.
CPU = RunnerConfig(device="cpu", max_total_tokens=600, max_running_requests=6, disable_hybrid_swa_memory=True)
PROMPT = [5, 9, 33, 7, 120, 64]

# bfloat16 is packed on CPUs that have instructions for it, the output may be tied to the embedding, and norms may keep
# 1 + w beside w.
KINDS = [
    ("qwen3", torch.bfloat16, True),
    ("llama", torch.float32, False),
    ("qwen2", torch.bfloat16, False),
    ("gemma2", torch.bfloat16, False),
    ("qwen3_moe", torch.bfloat16, False),
    ("qwen3_moe", torch.float32, True),
    ("deepseek_v3", torch.bfloat16, False),
]


def tick() -> None:
    """A sign of life."""


def started(folder: Path) -> Executor:
    return start_executor(CPU, ModelConfig.from_path(str(folder)), LoadConfig())


def says(worker: Executor) -> list[int]:
    return Driver.start(worker, [GREEDY]).generate([PROMPT], 12)[0]


@pytest.fixture(params=KINDS, ids=lambda kind: f"{kind[0]}-{kind[1]}")
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, Path]:
    """Two checkpoints of one model."""
    family, dtype, tied = request.param
    for seed, name in enumerate(("old", "new")):
        make_checkpoint(family, tmp_path / name, dtype=dtype, seed=seed, tie_word_embeddings=tied)
    return tmp_path / "old", tmp_path / "new"


def test_a_checkpoint_takes_the_place_of_another(pair: tuple[Path, Path]) -> None:
    old, new = pair
    worker = started(old)
    before, checks = says(worker), worker.weights.checksums(tick)
    assert worker.weights.update_from_files(str(new), whole=True, pulse=tick) > 20
    assert says(worker) == says(started(new)) != before
    assert worker.weights.checksums(tick) == started(new).weights.checksums(tick) != checks
    worker.weights.update_from_files(str(old), whole=True, pulse=tick)
    assert says(worker) == before
    assert worker.weights.checksums(tick) == checks


def test_single_tensors_change_alone(pair: tuple[Path, Path], tmp_path: Path) -> None:
    old, new = pair
    worker = started(old)
    checks = worker.weights.checksums(tick)
    tensors = load_file(new / "model.safetensors")
    attention = "model.layers.1.self_attn.k_proj.weight"
    if attention not in tensors:
        attention = "model.layers.1.self_attn.kv_b_proj.weight"
    chosen = [attention, "model.embed_tokens.weight", "model.norm.weight"]
    save_file({name: tensors[name] for name in chosen}, tmp_path / "some.safetensors")
    assert worker.weights.update_from_files(str(tmp_path / "some.safetensors"), whole=False, pulse=tick) == 3
    now = worker.weights.checksums(tick)
    assert {name for name in checks if checks[name] != now[name]} == {name.removeprefix("model.") for name in chosen}
    rows = torch.tensor(worker.weights.read(chosen[0], 2))
    assert torch.equal(rows.bfloat16(), tensors[chosen[0]][:2].bfloat16())
    # As a model that was loaded with these tensors from the start.
    mixed = tmp_path / "mixed"
    shutil.copytree(old, mixed)
    whole = {**load_file(old / "model.safetensors"), **{name: tensors[name] for name in chosen}}
    save_file(whole, mixed / "model.safetensors", metadata={"format": "pt"})
    assert says(worker) == says(started(mixed))


Change = Callable[[dict[str, torch.Tensor]], object]
WRONG: dict[str, tuple[Change, str]] = {
    "missing": (lambda t: [t.pop(name) for name in list(t) if "2.mlp.down" in name], "lacks tensors"),
    "unknown": (lambda t: t.update({"model.extra.weight": torch.zeros(3)}), "does not know: model.extra.weight"),
    "shape": (lambda t: t.update({"model.norm.weight": torch.zeros(3)}), "norm.weight has shape"),
    "dtype": (lambda t: t.update({"model.norm.weight": torch.zeros(96, dtype=torch.int8)}), "is of int8"),
}


@pytest.mark.parametrize("fault", WRONG)
def test_what_does_not_fit_changes_nothing(fault: str, tmp_path: Path) -> None:
    make_checkpoint("qwen3", tmp_path / "old")
    make_checkpoint("qwen3", tmp_path / "new", seed=1)
    worker = started(tmp_path / "old")
    before, checks = says(worker), worker.weights.checksums(tick)
    change, message = WRONG[fault]
    tensors = load_file(tmp_path / "new" / "model.safetensors")
    change(tensors)
    save_file(tensors, tmp_path / "new" / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(InvalidRequest, match=message):
        worker.weights.update_from_files(str(tmp_path / "new"), whole=True, pulse=tick)
    assert (says(worker), worker.weights.checksums(tick)) == (before, checks)


def test_another_model_and_damaged_files_are_refused(tmp_path: Path) -> None:
    make_checkpoint("qwen3", tmp_path / "old")
    worker = started(tmp_path / "old")
    make_checkpoint("llama", tmp_path / "other")
    with pytest.raises(InvalidRequest, match="another model: its architecture"):
        worker.weights.update_from_files(str(tmp_path / "other"), whole=True, pulse=tick)
    make_checkpoint("qwen3", tmp_path / "wide", rope_theta=5.0)
    with pytest.raises(InvalidRequest, match=r"its decoder\.layers\.0\.attention\.rope\.parameters is"):
        worker.weights.update_from_files(str(tmp_path / "wide"), whole=True, pulse=tick)
    shutil.copytree(tmp_path / "old", tmp_path / "cut")
    whole = (tmp_path / "cut" / "model.safetensors").read_bytes()
    (tmp_path / "cut" / "model.safetensors").write_bytes(whole[:-100])
    with pytest.raises(InvalidRequest, match="damaged or incomplete"):
        worker.weights.update_from_files(str(tmp_path / "cut"), whole=True, pulse=tick)
    with pytest.raises(InvalidRequest, match="no tensor"):
        worker.weights.read("model.nowhere", 1)


@pytest.mark.parametrize("one_file", [False, True])
def test_a_sharded_state_is_no_checkpoint(one_file: bool, tmp_path: Path) -> None:
    """Its names fit, but rows of heads that are rotated in part have the order of this server there."""
    make_checkpoint("cohere", tmp_path / "old")
    worker = started(tmp_path / "old")
    before = says(worker)
    place = shutil.copytree(tmp_path / "old", tmp_path / "saved", ignore=shutil.ignore_patterns("*.safetensors"))
    worker.weights.save_sharded(ShardPlace(path=str(place), pattern=DEFAULT_PATTERN, max_size=None, saved="x"), tick)
    [file] = place.glob("*.safetensors")
    with pytest.raises(InvalidRequest, match="holds one rank's part of a model"):
        worker.weights.update_from_files(str(file if one_file else place), whole=not one_file, pulse=tick)
    assert says(worker) == before


TRAINER = """
import sys
import torch
from safetensors.torch import load_file
from mysglang.srt.distributed.update_group import UpdateGroup
port, path, names = int(sys.argv[1]), sys.argv[2], sys.argv[3:]
group = UpdateGroup("127.0.0.1", port, 0, 2, "trainer", "gloo", 60.0)
tensors = load_file(path)
group.broadcast([tensors[name] for name in names], lambda: None)
group.leave()
"""


def test_a_trainer_broadcasts(tmp_path: Path) -> None:
    make_checkpoint("qwen3", tmp_path / "old", dtype=torch.bfloat16)
    make_checkpoint("qwen3", tmp_path / "new", dtype=torch.bfloat16, seed=1)
    worker = started(tmp_path / "old")
    tensors = load_file(tmp_path / "new" / "model.safetensors")
    options = [str(tmp_path / "new" / "model.safetensors"), *tensors]
    with reserved_port() as port, running([sys.executable, "-c", TRAINER, str(port), *options]) as trainer:
        facts = GroupFacts(
            name="trainer", master_address="127.0.0.1", master_port=port, rank=1, world_size=2, backend="gloo"
        )
        with reserved_port() as silent:
            nowhere = replace(facts, master_port=silent)
            never = worker.weights.join_group(nowhere)
            worker.weights.leave_group("trainer")
            with pytest.raises(Conflict, match="was given up"):
                never.result(0)
        worker.weights.join_group(facts).result(PATIENCE_S)
        with pytest.raises(Conflict, match="in a group 'trainer' already"):
            worker.weights.join_group(facts)
        announced = [TensorFacts(name, "bfloat16", tuple(tensor.shape)) for name, tensor in tensors.items()]
        with pytest.raises(InvalidRequest, match="has shape"):
            worker.weights.receive([TensorFacts("model.norm.weight", "bfloat16", (7,))], "trainer", tick)
        beats: list[None] = []
        assert worker.weights.receive(announced, "trainer", lambda: beats.append(None)) == len(tensors)
        assert trainer.wait(PATIENCE_S) == 0
        assert beats
    assert says(worker) == says(started(tmp_path / "new"))
    worker.weights.leave_group("trainer")
    with pytest.raises(InvalidRequest, match="in no group"):
        worker.weights.receive(announced, "trainer", tick)
    with pytest.raises(InvalidRequest, match="nccl needs CUDA"):
        worker.weights.join_group(
            GroupFacts(name="x", master_address="127.0.0.1", master_port=port, rank=1, world_size=2, backend="nccl")
        )


@pytest.mark.parametrize("announced", ["bfloat16", "float16", "float32"])
def test_less_than_was_announced_changes_nothing(announced: str, tmp_path: Path) -> None:
    """Another shape, or numbers of fewer bytes: gloo reports neither, and leaves the rest of the memory as it was."""
    name, size = "model.norm.weight", 96
    make_checkpoint("qwen3", tmp_path / "old")
    worker = started(tmp_path / "old")
    before, sums = says(worker), worker.weights.checksums(tick)
    sent = torch.ones(size if announced == "float32" else size - 1, dtype=torch.bfloat16)
    save_file({name: sent}, path := tmp_path / "sent.safetensors")
    with reserved_port() as port, running([sys.executable, "-c", TRAINER, str(port), str(path), name]):
        facts = GroupFacts(
            name="trainer", master_address="127.0.0.1", master_port=port, rank=1, world_size=2, backend="gloo"
        )
        worker.weights.join_group(facts).result(PATIENCE_S)
        missing = size // 2 if announced == "float32" else 1
        with pytest.raises(InvalidRequest, match=rf"{missing} of the {size} numbers of tensor {name} did not arrive"):
            worker.weights.receive([TensorFacts(name, announced, (size,))], "trainer", tick)
        worker.weights.leave_group("trainer")
    assert (says(worker), worker.weights.checksums(tick)) == (before, sums)


def test_a_group_whose_trainer_does_not_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_weights, "GROUP_TIMEOUT_S", PATIENCE_S)
    make_checkpoint("qwen3", tmp_path)
    weights = started(tmp_path).weights
    with reserved_port() as port:
        facts = GroupFacts(name="x", master_address="127.0.0.1", master_port=port, rank=1, world_size=2, backend="gloo")
        joining = weights.join_group(facts)
        for ask in (lambda: weights.join_group(facts), lambda: weights.receive([], "x", tick)):
            with pytest.raises(Conflict, match=rf"still coming together; .* given up {PATIENCE_S:g} s after"):
                ask()
        weights.leave_group("x")
        with pytest.raises(Conflict, match="was given up"):
            joining.result(0)
        monkeypatch.setattr(live_weights, "GROUP_TIMEOUT_S", 0.0)
        with pytest.raises(InvalidRequest, match="did not come together"):
            weights.join_group(facts).result(PATIENCE_S)
        with pytest.raises(InvalidRequest, match="in no group"):
            weights.leave_group("x")


def test_an_engine_without_weights_refuses() -> None:
    weights: ModelWeights = NoWeights()
    facts = GroupFacts(name="x", master_address="", master_port=1, rank=1, world_size=2, backend="gloo")
    for ask in (
        lambda: weights.update_from_files("", whole=True, pulse=tick),
        lambda: weights.join_group(facts),
        lambda: weights.leave_group("x"),
        lambda: weights.receive([], "x", tick),
        lambda: weights.read("x", 1),
        lambda: weights.checksums(tick),
    ):
        with pytest.raises(InvalidRequest, match="no weights"):
            ask()
