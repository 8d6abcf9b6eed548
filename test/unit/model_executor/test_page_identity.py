"""Stored pages are interchangeable only if they were computed with the same weights, in the same way."""

import os
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
import torch

from fixtures.tiny_checkpoints import make_checkpoint
from mysglang.srt.configs.load_config import LoadConfig
from mysglang.srt.configs.model_config import ModelConfig
from mysglang.srt.distributed.ranks import rank_contexts
from mysglang.srt.forward.forward_batch import AttentionSpec
from mysglang.srt.kernels.kvcache import UNSCALED, KvScales
from mysglang.srt.mem_cache.kv_pool.mha import MhaKvPool
from mysglang.srt.model_executor.page_identity import page_identity
from mysglang.srt.model_executor.runner_config import RunnerConfig

SPEC = AttentionSpec(layer_id=0, num_heads=4, num_kv_heads=2, head_dim=8, scale=1.0)


def pool(
    spec: AttentionSpec = SPEC,
    page_size: int = 2,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
    scales: KvScales = UNSCALED,
) -> MhaKvPool:
    options = {"page_size": page_size, "dtype": dtype, "device": torch.device(device)}
    return MhaKvPool([spec], num_pages=4, scales={spec.layer_id: scales}, **options)  # type: ignore[arg-type]


def identity(
    model: ModelConfig,
    load: LoadConfig | None = None,
    pages: MhaKvPool | None = None,
    config: RunnerConfig | None = None,
) -> str:
    return page_identity(model, load or LoadConfig(), config or RunnerConfig(), pages or pool())


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> ModelConfig:
    folder = tmp_path_factory.mktemp("model")
    make_checkpoint("llama", folder)
    return ModelConfig.from_path(str(folder), dtype="float32")


def test_a_later_worker_of_the_same_model_has_the_same(model: ModelConfig) -> None:
    assert identity(model) == identity(ModelConfig.from_path(model.path, dtype="float32"))


def test_every_fact_that_changes_a_key_or_a_value_tells_workers_apart(model: ModelConfig) -> None:
    wider = replace(SPEC, num_kv_heads=4)
    found = [
        identity(model),
        identity(model, LoadConfig(quantization="int8wo")),
        identity(replace(model, context_len=model.context_len // 2)),
        identity(ModelConfig.from_path(model.path, dtype="float32", overrides={"rope_theta": 7.0})),
        identity(replace(model, decoder=msgspec.structs.replace(model.plan, layers=model.plan.layers[:-1]))),
        identity(replace(model, dtype="bfloat16")),
        identity(model, pages=pool(dtype=torch.bfloat16)),
        identity(model, pages=pool(dtype=torch.float8_e5m2)),
        *(
            identity(model, pages=pool(dtype=torch.float8_e4m3fn, scales=scales))
            for scales in (UNSCALED, KvScales(0.5, 1.0), KvScales(1.0, 0.5), KvScales(0.5, 0.5))
        ),
        identity(model, pages=pool(page_size=4)),
        identity(model, pages=pool(wider)),
        identity(model, LoadConfig(load_format="dummy")),
        identity(model, LoadConfig(load_format="dummy", seed=1)),
        identity(model, pages=pool(device="meta")),
        identity(model, config=RunnerConfig(numerics="invariant")),
        *(identity(model, config=RunnerConfig(ranks=ranks)) for ranks in rank_contexts(2, device="cpu")),
    ]
    assert len(set(found)) == len(found)


def test_a_checkpoint_that_is_written_anew_is_another(model: ModelConfig) -> None:
    before = identity(model)
    weights = next(Path(model.path).glob("*.safetensors"))
    os.utime(weights, ns=(1, 1))
    assert identity(model) != before


@pytest.mark.parametrize("part", [0.0, 0.5, 1.0])
def test_times_that_are_the_same_do_not_hide_other_weights(model: ModelConfig, part: float) -> None:
    """Images and archives may give all files one time, and a trained model has the sizes of the one before."""
    before = identity(model)
    weights = next(Path(model.path).glob("*.safetensors"))
    known, data = weights.stat(), bytearray(weights.read_bytes())
    for at in range(int(part * len(data) / 2), int((1 + part) * len(data) / 2)):
        data[at] ^= 1
    weights.write_bytes(data)
    os.utime(weights, ns=(known.st_atime_ns, known.st_mtime_ns))
    assert identity(model) != before
