"""Which program computes a captured step, and which models the kernel for whole steps takes."""

import copy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fixtures.tiny_checkpoints import make_checkpoint
from mysgl_kernel import decoder
from mysglang.srt.configs.load_config import LoadConfig
from mysglang.srt.configs.model_config import ModelConfig
from mysglang.srt.forward.forward_batch import Rotation
from mysglang.srt.kernels.fp8 import LARGEST
from mysglang.srt.mem_cache.kv_pool.mha import MhaKvPool
from mysglang.srt.mem_cache.kv_pool.stores import KvStores
from mysglang.srt.model_executor.persistent_decode import decoder_tensors, describe_for_kernel, lacks, persistent_steps
from mysglang.srt.model_executor.programs import DoesNotCover
from mysglang.srt.model_executor.step_program import LayerByLayer, whole_steps
from mysglang.srt.model_loader.loader import load_model
from mysglang.srt.models.causal_lm import CausalLM
from mysglang.srt.models.dense_decoder import CannotDescribe, DenseLayer, DenseNorm


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> CausalLM:
    folder = tmp_path_factory.mktemp("model")
    make_checkpoint("qwen3", folder)
    config = ModelConfig.from_path(str(folder), dtype="float32")
    return load_model(config, LoadConfig(), torch.device("cpu"), torch.float32)


def pool_of(model: CausalLM) -> MhaKvPool:
    device = torch.device("cpu")
    return MhaKvPool(model.attention_specs(), num_pages=4, page_size=2, dtype=torch.bfloat16, device=device)


def test_another_device_computes_layer_by_layer(model: CausalLM) -> None:
    table = torch.zeros(3, 4, dtype=torch.int32)
    with pytest.raises(DoesNotCover, match="CUDA"):
        whole_steps(model, pool_of(model), [table], (1, 2))


def test_the_kernel_for_whole_steps_reads_no_eight_bit_pages(model: CausalLM) -> None:
    specs, table = model.attention_specs(), torch.zeros(3, 4, dtype=torch.int32)
    for dtype in LARGEST:
        pool = MhaKvPool(specs, num_pages=4, page_size=2, dtype=dtype, device=torch.device("cpu"))
        with pytest.raises(DoesNotCover, match="it does not read KV pages of float8"):
            persistent_steps(model, pool, [table], (1, 2))


def test_layer_by_layer_plans_computes_and_chooses() -> None:
    calls: list[str] = []
    model: Any = SimpleNamespace(forward=lambda batch: calls.append("forward") or batch)
    logits: Any = SimpleNamespace(next_token_logits=lambda hidden, rows: torch.tensor([[0.0, 2.0, 1.0]]))
    backend: Any = SimpleNamespace(begin_step=lambda batch: calls.append("begin"))
    batch: Any = "batch"
    left = LayerByLayer(model, logits, backend).run(batch)
    assert (calls, left.tokens.tolist(), left.logits.shape) == (["begin", "forward"], [1], (1, 3))
    assert left.hidden == "batch", "what the model gave"


def test_takes_a_plain_model(model: CausalLM) -> None:
    assert lacks(model.described()) == []


OTHER_EPS = DenseNorm(torch.ones(96), 1e-3)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (lambda layer: replace(layer, activation="gelu"), "silu"),
        (lambda layer: replace(layer, spec=replace(layer.spec, scale=1.0)), "scale"),
        (lambda layer: replace(layer, rotation=Rotation(layer.rotation.cos_sin)), "scale"),
        (lambda layer: replace(layer, rotation=replace(layer.rotation, cos_sin=torch.zeros(256, 32))), "scale"),
        (lambda layer: replace(layer, input_norm=OTHER_EPS), "eps"),
        (lambda layer: replace(layer, post_norm=OTHER_EPS), "eps"),
    ],
)
def test_says_what_the_kernel_lacks(model: CausalLM, change: Callable[[DenseLayer], DenseLayer], word: str) -> None:
    described = model.described()
    first, second, *rest = described.layers
    (said,) = lacks(replace(described, layers=(first, change(second), *rest)))
    assert word in said


def test_takes_experts_of_all_layers_or_of_none(tmp_path: Path) -> None:
    for folder, bare, reasons in (("all", [], 0), ("some", [0], 1)):
        make_checkpoint("qwen3_moe", tmp_path / folder, mlp_only_layers=bare)
        config = ModelConfig.from_path(str(tmp_path / folder), dtype="float32")
        said = lacks(load_model(config, LoadConfig(), torch.device("cpu"), torch.float32).described())
        assert len(said) == reasons and all("others have none" in each for each in said)


def test_takes_sinks_biases_of_experts_and_windows_with_pages_of_their_own(tmp_path: Path) -> None:
    make_checkpoint("gpt_oss", tmp_path)
    config = ModelConfig.from_path(str(tmp_path), dtype="bfloat16")
    model = load_model(config, LoadConfig(), torch.device("cpu"), torch.bfloat16)
    specs, device = model.attention_specs(), torch.device("cpu")
    tables = [torch.zeros(3, 4, dtype=torch.int32) for _ in range(2)]
    stores = [
        MhaKvPool(
            [spec for spec in specs if bool(spec.window) == bool(space)],
            num_pages=4,
            page_size=2,
            dtype=torch.bfloat16,
            device=device,
            space=space,
        )
        for space in (0, 1)
    ]
    tensors = decoder_tensors(describe_for_kernel(model), KvStores(stores), tables)
    assert [table.data_ptr() for table in tensors.page_tables] == [table.data_ptr() for table in tables]
    assert tensors.activation.limit == 7.0 and tensors.renormalize
    for layer, spec in zip(tensors.layers, specs, strict=True):
        own = model.layers[str(spec.layer_id)]
        assert (layer.window, layer.space) == ((spec.window, 1) if spec.window else (0, 0))
        assert layer.sinks is spec.sinks is not None
        assert layer.router_bias is own.mlp.gate.bias is not None
        assert layer.gate_up_bias is own.mlp.experts.w13_bias and layer.down_bias is own.mlp.experts.w2_bias


def test_says_all_that_a_model_asks_for_in_vain(tmp_path: Path) -> None:
    """One line for the log and /server_info."""
    make_checkpoint("gemma2", tmp_path)
    config = ModelConfig.from_path(str(tmp_path))
    gemma = load_model(config, LoadConfig(), torch.device("cpu"), torch.bfloat16)
    with pytest.raises(CannotDescribe, match=r"embeddings are scaled; .*1 \+ w; .*norms after.*; .*scores are capped"):
        describe_for_kernel(gemma)


class Halved(CausalLM):
    """A class of a package, with its own way to logits."""

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return super().compute_logits(hidden) / 2


def test_a_class_that_computes_more_than_its_plan_says_is_not_taken(model: CausalLM) -> None:
    halved = copy.copy(model)
    halved.__class__ = Halved
    with pytest.raises(CannotDescribe, match="logits in a way of its own"):
        halved.described()


def test_refusals_that_cost_nothing_come_before_a_description(model: CausalLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """A description of transformers' code takes seconds."""
    monkeypatch.setattr(CausalLM, "described", lambda _: pytest.fail("described"))
    pool, tables = pool_of(model), [torch.zeros(3, 4, dtype=torch.int32)]
    with pytest.raises(DoesNotCover, match="written for Hopper"):
        persistent_steps(model, pool, tables, (1, 2))
    monkeypatch.setattr(decoder, "fits_device", lambda: True)
    with pytest.raises(DoesNotCover, match="none of these sizes is captured"):
        persistent_steps(model, pool, tables, (8, 16))
    with pytest.raises(DoesNotCover, match="it computes in float32"):
        persistent_steps(model, pool, tables, (1, 2))


def test_float32_is_not_taken(model: CausalLM) -> None:
    with pytest.raises(CannotDescribe, match="float32"):
        describe_for_kernel(model)


def test_the_kernel_gets_the_model_s_own_tensors(model: CausalLM) -> None:
    pool, table = pool_of(model), torch.zeros(3, 4, dtype=torch.int32)
    tensors = decoder_tensors(model.described(), pool, [table])
    for i, layer in enumerate(tensors.layers):
        assert layer.keys.data_ptr() == pool.slots(i)[0].data_ptr()
        assert layer.values.data_ptr() == pool.slots(i)[1].data_ptr()
        own = model.layers[str(i)]
        assert layer.qkv.data_ptr() == own.self_attn.qkv_proj.weight.data_ptr()
        assert layer.gate_up.data_ptr() == own.mlp.gate_up_proj.weight.data_ptr()
        assert layer.q_norm is not None
        assert layer.window == 0
    assert (tensors.page_size, tensors.q_heads, tensors.page_tables[0].data_ptr()) == (2, 6, table.data_ptr())
