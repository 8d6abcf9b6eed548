"""Models over pages of eight-bit numbers: which numbers are taken, what they cost, and that an answer is one answer,
whatever was cached.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from fixtures.executors import pool_of, start_executor
from fixtures.tiny_checkpoints import VOCAB_SIZE, make_checkpoint
from fixtures.worker_driver import GREEDY, Driver
from mysglang.srt.configs.kv_cache_scheme import kv_cache_dtype_of
from mysglang.srt.configs.load_config import LoadConfig
from mysglang.srt.configs.model_config import ModelConfig
from mysglang.srt.errors import ConfigError
from mysglang.srt.forward.forward_batch import AttentionSpec
from mysglang.srt.kernels.kvcache import UNSCALED, KvScales
from mysglang.srt.model_executor.executor import Executor
from mysglang.srt.model_executor.kv_setup import ModelStores, kv_cost
from mysglang.srt.model_executor.memory_budget import cuda_budget
from mysglang.srt.model_executor.model_memory import plan_memory
from mysglang.srt.model_executor.runner_config import RunnerConfig
from mysglang.srt.model_executor.stored_numbers import stores_of
from mysglang.srt.platforms import platform_named
from mysglang.srt.platforms.interface import DeviceMemory
from mysglang.srt.utils.hardware import GIB

CPU = RunnerConfig(device="cpu", max_total_tokens=900, max_running_requests=6, disable_hybrid_swa_memory=True)
PROMPTS = [np.random.default_rng(i).integers(3, VOCAB_SIZE, n).tolist() for i, n in enumerate((40, 3, 90, 1))]
SCHEME = {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False, "symmetric": True}
SPEC = AttentionSpec(layer_id=0, num_heads=4, num_kv_heads=2, head_dim=64, scale=0.125)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose checkpoint has scales of its own for two layers."""
    path = tmp_path_factory.mktemp("llama")
    make_checkpoint("llama", path)
    weights = load_file(path / "model.safetensors")
    for layer, (key, value) in enumerate(((0.021, 0.013), (0.017, 0.009))):
        weights |= {
            f"model.layers.{layer}.self_attn.k_scale": torch.tensor(key),
            f"model.layers.{layer}.self_attn.v_scale": torch.tensor(value),
        }
    save_file(weights, path / "model.safetensors", {"format": "pt"})
    return path


def read(folder: Path, dtype: str = "float32", **overrides: Any) -> ModelConfig:
    return ModelConfig.from_path(str(folder), dtype=dtype, overrides=overrides)


def started(folder: Path, dtype: str = "float32", **options: Any) -> Executor:
    return start_executor(replace(CPU, **options), read(folder, dtype))


def stores(folder: Path, **options: Any) -> ModelStores:
    overrides = options.pop("overrides", {})
    model = read(folder, **overrides)
    return stores_of(replace(CPU, **options), model, LoadConfig(), [SPEC], torch.bfloat16)


def test_which_numbers(folder: Path) -> None:
    kv_only = {"quantization_config": {"quant_method": "compressed-tensors", "kv_cache_scheme": SCHEME}}
    assert stores(folder).dtype is torch.bfloat16 and stores(folder).scales == {}
    assert stores(folder, kv_cache_dtype="fp8_e5m2").dtype is torch.float8_e5m2
    assert stores(folder, kv_cache_dtype="fp8_e5m2").scales == {}
    for chosen in (stores(folder, kv_cache_dtype="fp8_e4m3"), stores(folder, overrides=kv_only)):
        assert chosen.dtype is torch.float8_e4m3fn
        assert chosen.scales[0] == pytest.approx(KvScales(0.021, 0.013)) and len(chosen.scales) == 2
    assert stores(folder, kv_cache_dtype="bfloat16", overrides=kv_only).dtype is torch.bfloat16


def test_scales_of_a_file_come_before_those_of_the_checkpoint(folder: Path, tmp_path: Path) -> None:
    layers = {str(layer): 0.5 for layer in range(read(folder).num_layers)}
    path = tmp_path / "scales.json"
    path.write_text(json.dumps({"kv_cache": {"dtype": "float8_e4m3fn", "scaling_factor": {"0": layers}}}))
    given = {"quantization_param_path": str(path)}
    assert stores(folder, kv_cache_dtype="fp8_e4m3", **given).scales[1] == KvScales(0.5, 0.5)
    for other in ("auto", "fp8_e5m2"):
        with pytest.raises(ConfigError, match="--quantization-param-path: its scales are for"):
            stores(folder, kv_cache_dtype=other, **given)


@pytest.mark.parametrize("key", ["num_bits", "type", "strategy", "dynamic", "symmetric"])
def test_a_scheme_of_another_kind_is_refused(key: str) -> None:
    other = {"num_bits": 4, "type": "int", "strategy": "token", "dynamic": True, "symmetric": False}[key]
    quantization = {"quant_method": "compressed-tensors", "kv_cache_scheme": SCHEME | {key: other}}
    with pytest.raises(ConfigError, match="kv_cache_scheme asks for"):
        kv_cache_dtype_of({"quantization_config": quantization})


def test_weights_that_are_quantized_too_are_refused_as_before(folder: Path) -> None:
    both = {"quant_method": "compressed-tensors", "kv_cache_scheme": SCHEME, "config_groups": {"group_0": {}}}
    with pytest.raises(ConfigError, match="the checkpoint is quantized"):
        read(folder, quantization_config=both)


def test_twice_the_tokens_in_the_same_memory() -> None:
    half, eight = (kv_cost(CPU, [ModelStores((SPEC,), dtype)], 8192) for dtype in (torch.bfloat16, torch.float8_e4m3fn))
    before, after = DeviceMemory(free=139 * GIB, total=140 * GIB), DeviceMemory(free=123 * GIB, total=140 * GIB)
    tokens = [
        cuda_budget(RunnerConfig(), fraction=0.9, before=before, after=after, cost=cost, context=8192).num_pages
        for cost in (half, eight)
    ]
    assert tokens[1] == pytest.approx(2 * tokens[0], rel=0.01)


@pytest.mark.parametrize("dtype", ["fp8_e4m3", "fp8_e5m2"])
def test_an_encoder_has_no_pages(dtype: Any) -> None:
    platform = platform_named("cpu")
    with pytest.raises(ConfigError, match="--kv-cache-dtype and --quantization-param-path are for models with a KV"):
        plan_memory(
            RunnerConfig(kv_cache_dtype=dtype), platform, [], context=64, graph_sizes=(), before=platform.memory()
        )


@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("dtype", ["fp8_e4m3", "fp8_e5m2"])
def test_whole_in_chunks_alone_and_together(folder: Path, dtype: str, page_size: int) -> None:
    """The same tokens in float32, which no plain cache would give: rounding is done once, when a number is stored."""
    worker = started(folder, kv_cache_dtype=dtype, page_size=page_size)
    pool = pool_of(worker)
    assert (pool.scales(0) == UNSCALED) == (dtype == "fp8_e5m2")
    whole = Driver.start(worker, [GREEDY] * 4).generate(PROMPTS, 12)
    assert Driver.start(worker, [GREEDY] * 4).generate(PROMPTS, 12, chunk=7) == whole
    assert [Driver.start(worker, [GREEDY]).generate([prompt], 12)[0] for prompt in PROMPTS] == whole


@pytest.mark.parametrize(("dtype", "bound"), [("fp8_e4m3", 0.05), ("fp8_e5m2", 0.1)])
def test_near_the_plain_cache(folder: Path, dtype: str, bound: float) -> None:
    """Measured by the largest change of a probability, for tokens that both are taught."""
    answers = [np.random.default_rng(9 + i).integers(3, VOCAB_SIZE, 8).tolist() for i in range(4)]
    lines = [
        Driver.start(started(folder, kv_cache_dtype=kind), [GREEDY] * 4).teach(PROMPTS, answers)[1]
        for kind in ("auto", dtype)
    ]
    difference = np.abs(lines[0] - lines[1]).max()
    assert 0 < difference < bound


def test_half_the_bytes_of_bfloat16(folder: Path) -> None:
    worker = started(folder, "bfloat16", kv_cache_dtype="fp8_e4m3")
    assert pool_of(worker).nbytes * 2 == pool_of(started(folder, "bfloat16")).nbytes
