"""Memory that is released and allocated again, on the CPU: everything is as it was, and in between less is used."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file

from fixtures.executors import pool_of, start_executor
from fixtures.tiny_checkpoints import make_checkpoint
from fixtures.worker_driver import GREEDY, Driver
from mysglang.srt.configs.load_config import LoadConfig
from mysglang.srt.configs.model_config import ModelConfig
from mysglang.srt.errors import InvalidRequest
from mysglang.srt.forward.weights import FixedOccupation
from mysglang.srt.kernels.kvcache import copy_pages
from mysglang.srt.model_executor.executor import Executor
from mysglang.srt.model_executor.live_weights import NOWHERE
from mysglang.srt.model_executor.runner_config import RunnerConfig
from mysglang.srt.models.checkpoint_model import TokenModel
from mysglang.srt.platforms.cpu import CpuPlatform
from mysglang.srt.platforms.interface import DeviceMemory

CPU = RunnerConfig(device="cpu", max_total_tokens=600, max_running_requests=6)
ALL = frozenset(("weights", "kv_cache", "cuda_graph"))
WEIGHTS = frozenset(("weights",))


def tick() -> None:
    """A sign of life."""


def started(folder: Path) -> Executor:
    return start_executor(CPU, ModelConfig.from_path(str(folder)), LoadConfig())


def says(worker: Executor) -> list[int]:
    return Driver.start(worker, [GREEDY]).generate([[5, 9, 33, 7, 120, 64]], 12)[0]


@pytest.mark.parametrize(
    ("family", "tied"), [("qwen3", True), ("llama", False), ("qwen3_moe", False), ("qwen3_next", False)]
)
def test_all_is_as_it_was(family: str, tied: bool, tmp_path: Path) -> None:
    make_checkpoint(family, tmp_path / "a", dtype=torch.bfloat16, tie_word_embeddings=tied)
    worker = started(tmp_path / "a")
    before, sums = says(worker), worker.weights.checksums(tick)
    memory = worker.occupation
    memory.release(frozenset(("kv_cache",)), tick)
    memory.release(WEIGHTS, tick)
    assert memory.released == {"kv_cache", "weights"}
    with pytest.raises(InvalidRequest, match="released already"):
        memory.release(WEIGHTS, tick)
    for ask in (lambda: worker.weights.checksums(tick), lambda: worker.weights.read("model.norm.weight", 1)):
        with pytest.raises(InvalidRequest, match="resume it first"):
            ask()
    memory.resume(WEIGHTS, tick)
    assert worker.weights.checksums(tick) == sums
    memory.resume(ALL, tick)
    assert not memory.released
    assert says(worker) == before
    with pytest.raises(InvalidRequest, match="none of these"):
        memory.resume(ALL, tick)


def test_weights_that_are_parts_of_one_tensor(tmp_path: Path) -> None:
    """The kernel for whole steps brings those of queries, keys and values together."""
    make_checkpoint("qwen2", tmp_path)
    worker = start_executor(CPU, ModelConfig.from_path(str(tmp_path), dtype="float32", impl="transformers"))
    before, sums = says(worker), worker.weights.checksums(tick)
    model = worker.weights._update._model
    assert isinstance(model, TokenModel)
    model.described()
    assert says(worker) == before and worker.weights.checksums(tick) == sums
    for _ in range(2):
        worker.occupation.release(ALL, tick)
        assert sum(parameter.untyped_storage().nbytes() for parameter in model.parameters()) == 0
        worker.occupation.resume(ALL, tick)
        layer = model.described().layers[1].qkv
        parts = [model.get_parameter(f"lm.model.layers.1.self_attn.{name}_proj.weight") for name in "qkv"]
        assert torch.equal(layer.weight, torch.cat(parts)) and layer.weight.data_ptr() == parts[0].data_ptr()
        assert says(worker) == before and worker.weights.checksums(tick) == sums


def test_nothing_stands_behind_what_is_released(tmp_path: Path) -> None:
    make_checkpoint("qwen3", tmp_path / "a", dtype=torch.bfloat16)
    worker = started(tmp_path / "a")
    worker.occupation.release(ALL, tick)
    tensors = [*worker.weights._update._model.parameters()]
    tensors += [buffer for pair in pool_of(worker)._layers.values() for buffer in pair]  # type: ignore[union-attr]
    assert sum(tensor.untyped_storage().nbytes() for tensor in tensors) == 0


@pytest.mark.parametrize("family", ["qwen3", "deepseek_v3"])
def test_pages_that_a_host_tier_has_copied_are_given_back_too(family: str, tmp_path: Path) -> None:
    make_checkpoint(family, tmp_path, dtype=torch.bfloat16)
    worker = started(tmp_path)
    before, pool = says(worker), pool_of(worker)
    numbers = torch.tensor([1, 2])
    for layer_id in pool.layer_ids:
        pages = pool.pages(layer_id)
        copy_pages(numbers, numbers, pages, [page.clone() for page in pages])
    worker.occupation.release(ALL, tick)
    worker.occupation.resume(ALL, tick)
    assert says(worker) == before


def test_weights_are_taken_from_where_they_are(tmp_path: Path) -> None:
    for seed, name in enumerate(("a", "b")):
        make_checkpoint("qwen3", tmp_path / name, seed=seed)
    worker = started(tmp_path / "a")
    # Other weights, given while they are released: those are what it comes back with.
    worker.occupation.release(ALL, tick)
    worker.weights.update_from_files(str(tmp_path / "b"), whole=True, pulse=tick)
    some = tmp_path / "some.safetensors"
    tensors = load_file(tmp_path / "a" / "model.safetensors")
    save_file({"model.norm.weight": tensors["model.norm.weight"]}, some)
    with pytest.raises(InvalidRequest, match="resume it first"):
        worker.weights.update_from_files(str(some), whole=False, pulse=tick)
    worker.occupation.resume(ALL, tick)
    assert says(worker) == says(started(tmp_path / "b"))
    # Weights that are in no file could not be read again.
    worker.weights.update_from_files(str(some), whole=False, pulse=tick)
    with pytest.raises(InvalidRequest, match="in no checkpoint"):
        worker.occupation.release(ALL, tick)
    assert not worker.occupation.released
    assert says(worker)


def test_a_checkpoint_that_changed_is_not_taken_for_the_old_one(tmp_path: Path) -> None:
    for seed, name in enumerate(("a", "b")):
        make_checkpoint("qwen3", tmp_path / name, seed=seed)
    worker = started(tmp_path / "a")
    before = says(worker)
    worker.occupation.release(WEIGHTS, tick)
    shutil.copy(tmp_path / "a" / "model.safetensors", tmp_path / "kept")
    shutil.copy(tmp_path / "b" / "model.safetensors", tmp_path / "a" / "model.safetensors")
    with pytest.raises(InvalidRequest, match="has changed since"):
        worker.occupation.resume(WEIGHTS, tick)
    assert worker.occupation.released == WEIGHTS
    shutil.copy(tmp_path / "kept", tmp_path / "a" / "model.safetensors")
    worker.weights.update_from_files(str(tmp_path / "a"), whole=True, pulse=tick)
    worker.occupation.resume(WEIGHTS, tick)
    assert says(worker) == before


@pytest.mark.parametrize("free", [0, 1 << 40])
def test_a_device_leaves_a_copy_on_the_host_if_there_is_room(
    free: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_checkpoint("qwen3", tmp_path)
    worker = started(tmp_path)
    weights, before = worker.weights, says(worker)
    weights._origin = NOWHERE  # as after tensors of a trainer
    weights._platform = SimpleNamespace(device=torch.device("meta"))  # type: ignore[assignment]  # not the host
    monkeypatch.setattr(CpuPlatform, "memory", lambda _platform: DeviceMemory(free=free, total=1 << 40))
    if free:
        weights.check_release()
        weights.release(tick)
        weights.resume(tick)
    else:
        with pytest.raises(InvalidRequest, match="has no room for a copy"):
            weights.check_release()
    assert says(worker) == before


def test_an_engine_that_keeps_its_memory_says_so() -> None:
    for ask in (FixedOccupation().release, FixedOccupation().resume):
        with pytest.raises(InvalidRequest, match="cannot give"):
            ask(ALL, tick)
