"""Weights that change, and memory that goes and comes, under captured graphs and the kernel of whole decode steps."""

import gc
from pathlib import Path

import orjson
import pytest
import torch
from safetensors.torch import save_file

from fixtures.executors import start_executor
from fixtures.worker_driver import GREEDY, Driver
from mysglang.srt.configs.load_config import LoadConfig
from mysglang.srt.configs.model_config import ModelConfig
from mysglang.srt.model_executor.executor import Executor
from mysglang.srt.model_executor.runner_config import RunnerConfig
from mysglang.srt.utils.hardware import GIB

CONFIG = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "vocab_size": 32000,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 6,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "eos_token_id": 2,
    "hidden_act": "silu",
}
SIZES = (1, 2, 8)
ALL = frozenset(("weights", "kv_cache", "cuda_graph"))
TOKENS = 400_000
PROMPTS = [[5, 9, 33, 7, 120, 64], [8, 1000, 31000, 4], *([i, i + 1, i + 2] for i in range(10, 16))]


def tick() -> None:
    """A sign of life."""


def started(folder: Path, load: LoadConfig = LoadConfig()) -> Executor:  # noqa: B008  a frozen value
    config = RunnerConfig(device="cuda", max_total_tokens=TOKENS, max_running_requests=16, cuda_graph_bs=SIZES)
    return start_executor(config, ModelConfig.from_path(str(folder)), load)


def says(worker: Executor) -> list[list[list[int]]]:
    """One, two and eight rows: the kernel of whole steps, and steps layer by layer."""
    found = []
    for rows in SIZES:
        driver = Driver.start(worker, [GREEDY] * rows)
        found.append(driver.generate(PROMPTS[:rows], 24))
    return found


@pytest.fixture
def checkpoints(tmp_path: Path) -> tuple[Path, Path]:
    """Two of one model, with the weights that dummies have."""
    for seed, name in enumerate(("a", "b")):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "config.json").write_bytes(orjson.dumps(CONFIG))
        worker = started(folder, LoadConfig(load_format="dummy", seed=seed))
        tensors = {name: (tensor * 3).cpu().contiguous() for name, tensor in worker.weights._update.tensors()}
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        del worker
        gc.collect()
        torch.cuda.empty_cache()
    return tmp_path / "a", tmp_path / "b"


def test_weights_change_under_graphs(checkpoints: tuple[Path, Path]) -> None:
    first, second = checkpoints
    expected = says(started(second))
    worker = started(first)
    before = says(worker)
    worker.weights.update_from_files(str(second), whole=True, pulse=tick)
    assert says(worker) == expected != before
    worker.weights.update_from_files(str(first), whole=True, pulse=tick)
    assert says(worker) == before


@pytest.mark.parametrize("only_on_device", [False, True])
def test_memory_goes_and_comes(checkpoints: tuple[Path, Path], only_on_device: bool) -> None:
    worker = started(checkpoints[0])
    if only_on_device:
        tensors = {"model.norm.weight": torch.linspace(0.5, 1.5, CONFIG["hidden_size"], dtype=torch.bfloat16)}  # type: ignore[call-overload]
        save_file(tensors, checkpoints[0].parent / "some.safetensors")
        worker.weights.update_from_files(str(checkpoints[0].parent / "some.safetensors"), whole=False, pulse=tick)
    before, sums = says(worker), worker.weights.checksums(tick)
    held, allocated = worker.capacity.memory_usage, torch.cuda.memory_allocated()
    for tags in (frozenset(("kv_cache",)), frozenset(("weights",)), ALL):
        # Not what `release` returns: that is about the whole device, where other processes come and go.
        reserved = torch.cuda.memory_reserved()
        assert worker.occupation.release(tags, tick) >= 0
        freed = (reserved - torch.cuda.memory_reserved()) / GIB
        wanted = sum(held[name] for name, tag in (("weights", "weights"), ("kvcache", "kv_cache")) if tag in tags)
        assert freed > 0.95 * wanted, (tags, freed, held)
        # Another tensor takes the memory in between, so that nothing returns to its old address.
        other = torch.full((int(0.5 * wanted * GIB) // 4,), 7.0, device="cuda")
        worker.occupation.resume(tags, tick)
        assert worker.weights.checksums(tick) == sums
        assert says(worker) == before
        del other
        assert torch.cuda.memory_allocated() <= allocated + 2**20
