"""Weights rounded to eight bits: close to the plain ones, and the same again after they were taken apart."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from fixtures.executors import start_executor
from fixtures.tiny_checkpoints import make_checkpoint
from fixtures.worker_driver import GREEDY, Driver
from mysglang.srt.configs.load_config import LoadConfig
from mysglang.srt.configs.model_config import ModelConfig
from mysglang.srt.layers.context import LayerContext
from mysglang.srt.layers.linear import GatedColumnParallelLinear, LinearBase, ReplicatedLinear
from mysglang.srt.layers.moe.experts import Experts
from mysglang.srt.layers.quantization.int8wo import Int8WeightOnly, quantize
from mysglang.srt.model_executor.executor import Executor
from mysglang.srt.model_executor.runner_config import RunnerConfig
from mysglang.srt.model_loader.loader import load_model

DTYPES = [torch.float32, torch.bfloat16]


def draw(*shape: int, seed: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def context(dtype: torch.dtype) -> LayerContext:
    return LayerContext(dtype=dtype, quant=Int8WeightOnly())


def close(found: Tensor, wanted: Tensor) -> None:
    assert found.shape == wanted.shape
    assert (found.float() - wanted).norm() < 0.02 * wanted.norm()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("outputs", [64, 50])
@pytest.mark.parametrize("count", [1, 20])
def test_products(dtype: torch.dtype, outputs: int, count: int) -> None:
    """Also in shapes that no kernel takes."""
    layer = ReplicatedLinear(96, outputs, bias=True, context=context(dtype))
    weight, bias, x = (
        draw(outputs, 96, seed=1, dtype=dtype),
        draw(outputs, seed=2, dtype=dtype),
        draw(count, 96, seed=3, dtype=dtype),
    )
    layer.weight.load(weight)
    assert layer.bias is not None
    layer.bias.load(bias)
    layer.process_weights_after_loading()
    close(layer(x), x.float() @ weight.float().T + bias.float())
    close(layer(x[None]), (x.float() @ weight.float().T + bias.float())[None])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("activation", ["silu", "gelu_tanh", "gelu"])
def test_gated_products(dtype: torch.dtype, activation: str) -> None:
    layer = GatedColumnParallelLinear(96, 64, activation, context=context(dtype))  # type: ignore[arg-type]
    plain = GatedColumnParallelLinear(96, 64, activation, context=LayerContext(dtype=dtype))  # type: ignore[arg-type]
    weight, x = draw(128, 96, seed=1, dtype=dtype), draw(7, 96, seed=3, dtype=dtype)
    for one in (layer, plain):
        one.weight.load(weight)
        one.process_weights_after_loading()
    close(layer(x), plain(x).float())


@pytest.mark.parametrize("dtype", DTYPES)
def test_rounding_again_changes_nothing(dtype: torch.dtype) -> None:
    weight = draw(300, 700, seed=5, dtype=dtype)
    weight[3] = 0
    rounded, scales = quantize(weight)
    assert rounded.abs().amax(dim=1).eq(127).sum() == 299 and rounded[3].eq(0).all()
    assert (rounded.float() * scales[:, None] - weight.float()).abs().max() <= scales.max() * 0.501
    again, same = quantize((rounded.float() * scales[:, None]).to(dtype))
    assert torch.equal(again, rounded) and torch.allclose(same, scales, rtol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("activation", ["silu", "gelu"])
@pytest.mark.parametrize("inner", [64, 40])
def test_experts(dtype: torch.dtype, activation: str, inner: int) -> None:
    """Also in shapes, and with an activation, that no kernel takes. Each expert has scales of its own."""
    x, gates = draw(7, 96, seed=3, dtype=dtype), torch.rand(7, 2)
    ids = torch.tensor([[row % 3, 3] for row in range(7)], dtype=torch.int32)
    layers = [Experts(5, 96, inner, activation, context=each) for each in (context(dtype), LayerContext(dtype=dtype))]  # type: ignore[arg-type]
    for layer in layers:
        for expert in range(5):
            for part in range(2):
                layer.w13_weight.load(
                    draw(inner, 96, seed=9 * expert + part, dtype=dtype) * (1 + expert), 2 * expert + part
                )
            layer.w2_weight.load(draw(96, inner, seed=9 * expert + 2, dtype=dtype), expert)
        layer.process_weights_after_loading()
    rounded, plain = layers
    close(rounded(x, ids, gates), plain(x, ids, gates).float())
    close(rounded.values_of("w13_weight"), plain.values_of("w13_weight"))


@pytest.mark.parametrize(
    ("family", "name"),
    [
        ("qwen3", "model.layers.1.self_attn.k_proj.weight"),
        ("qwen3_moe", "model.layers.1.mlp.experts.3.up_proj.weight"),
        ("qwen3_moe", "model.layers.1.mlp.experts.8.down_proj.weight"),
        ("qwen3_next", "model.layers.0.linear_attn.in_proj_qkvz.weight"),
        ("qwen3_next", "model.layers.2.linear_attn.A_log"),
        ("deepseek_v2", "model.layers.1.self_attn.kv_b_proj.weight"),
        ("deepseek_v3", "model.layers.1.mlp.gate.e_score_correction_bias"),
    ],
)
def test_a_model_whose_weights_change(family: str, name: str, tmp_path: Path) -> None:
    """Weights that are not in an update stay the same, to the bit."""
    make_checkpoint(family, tmp_path / "model", dtype=torch.bfloat16, seed=0)
    make_checkpoint(family, tmp_path / "other", dtype=torch.bfloat16, seed=1)
    model = ModelConfig.from_path(str(tmp_path / "model"))
    runner = RunnerConfig(device="cpu", max_total_tokens=600, max_running_requests=6)
    worker = start_executor(runner, model, LoadConfig(quantization="int8wo"))
    plain = start_executor(runner, model, LoadConfig())
    assert worker.capacity.memory_usage["weights"] < plain.capacity.memory_usage["weights"]
    before, says = worker.weights.checksums(lambda: None), speaks(worker)
    other = load_file(tmp_path / "other" / "model.safetensors")[name]
    save_file({name: other}, tmp_path / "one.safetensors")
    worker.weights.update_from_files(str(tmp_path / "one.safetensors"), whole=False, pulse=lambda: None)
    after = worker.weights.checksums(lambda: None)
    assert [key for key in before if before[key] != after[key]] == [name.removeprefix("model.")]
    worker.weights.update_from_files(str(tmp_path / "model"), whole=True, pulse=lambda: None)
    assert worker.weights.checksums(lambda: None) == before and speaks(worker) == says


def speaks(worker: Executor) -> list[int]:
    return Driver.start(worker, [GREEDY]).generate([[5, 9, 33, 7]], 12)[0]


@pytest.mark.parametrize("tied", [False, True])
def test_the_projection_to_logits_stays_as_it_is(tied: bool, tmp_path: Path) -> None:
    """A quantization is asked for each linear by its name, and this one says that of the logits is none of its own."""
    make_checkpoint("qwen3", tmp_path, tie_word_embeddings=tied)
    config = ModelConfig.from_path(str(tmp_path), dtype="float32")
    device = torch.device("cpu")
    rounded, plain = (
        load_model(config, LoadConfig(quantization=name), device, torch.float32) for name in ("int8wo", None)
    )
    x = draw(3, config.hidden_size, seed=7, dtype=torch.float32)
    assert torch.equal(rounded.compute_logits(x), plain.compute_logits(x))
    down = rounded.get_submodule("layers.0.mlp.down_proj")
    assert isinstance(down, LinearBase) and down.method.dense_weight(down) is None
