"""Which program computes a captured step, and which models the kernel for whole steps takes."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from msgspec.structs import replace

from fixtures.tiny_checkpoints import make_checkpoint
from mysglang.srt.configs.layer_plan import LayerPlan, NormPlan, RopePlan
from mysglang.srt.configs.load_config import LoadConfig
from mysglang.srt.configs.model_config import ModelConfig
from mysglang.srt.kernels.fp8 import LARGEST
from mysglang.srt.mem_cache.kv_pool.mha import MhaKvPool
from mysglang.srt.mem_cache.kv_pool.stores import KvStores
from mysglang.srt.model_executor.persistent_decode import decoder_tensors, describe_for_kernel, lacks, persistent_steps
from mysglang.srt.model_executor.programs import DoesNotCover
from mysglang.srt.model_executor.step_program import LayerByLayer, whole_steps
from mysglang.srt.model_loader.loader import load_model
from mysglang.srt.models.causal_lm import CausalLM
from mysglang.srt.models.dense_decoder import CannotDescribe, describe


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
    assert lacks(model.plan) == []


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (lambda layer: replace(layer, mlp=replace(layer.mlp, activation="gelu")), "silu"),
        (lambda layer: changed(layer, logit_cap=30.0), "capped"),
        (lambda layer: changed(layer, scale=1.0), "scale"),
        (lambda layer: changed(layer, qk_norm=None), "scale"),
        (lambda layer: changed(layer, rope=RopePlan({"rope_type": "default", "rope_theta": 5.0})), "scale"),
        (lambda layer: replace(layer, norms=replace(layer.norms, norm=NormPlan(eps=1e-3))), "eps"),
    ],
)
def test_says_what_the_kernel_lacks(model: CausalLM, change: Any, word: str) -> None:
    first, second, *rest = model.plan.layers
    (said,) = lacks(replace(model.plan, layers=(first, change(second), *rest)))
    assert word in said


def test_takes_experts_of_all_layers_or_of_none(tmp_path: Path) -> None:
    for folder, bare, reasons in (("all", [], 0), ("some", [0], 1)):
        make_checkpoint("qwen3_moe", tmp_path / folder, mlp_only_layers=bare)
        config = ModelConfig.from_path(str(tmp_path / folder), dtype="float32")
        plan = load_model(config, LoadConfig(), torch.device("cpu"), torch.float32).plan
        said = lacks(plan)
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


def changed(layer: LayerPlan, **more: Any) -> LayerPlan:
    return replace(layer, attention=replace(layer.attention, **more))


def test_says_all_that_a_model_asks_for_in_vain(tmp_path: Path) -> None:
    """One line for the log and /server_info."""
    make_checkpoint("gemma2", tmp_path)
    config = ModelConfig.from_path(str(tmp_path))
    gemma = load_model(config, LoadConfig(), torch.device("cpu"), torch.bfloat16)
    with pytest.raises(CannotDescribe, match=r"embeddings are scaled; .*1 \+ w; .*norms after.*; .*scores are capped"):
        describe_for_kernel(gemma)


def test_float32_is_not_taken(model: CausalLM) -> None:
    with pytest.raises(CannotDescribe, match="float32"):
        describe_for_kernel(model)


def test_the_kernel_gets_the_model_s_own_tensors(model: CausalLM) -> None:
    pool, table = pool_of(model), torch.zeros(3, 4, dtype=torch.int32)
    tensors = decoder_tensors(describe(model), pool, [table])
    for i, layer in enumerate(tensors.layers):
        assert layer.keys.data_ptr() == pool.slots(i)[0].data_ptr()
        assert layer.values.data_ptr() == pool.slots(i)[1].data_ptr()
        own = model.layers[str(i)]
        assert layer.qkv.data_ptr() == own.self_attn.qkv_proj.weight.data_ptr()
        assert layer.gate_up.data_ptr() == own.mlp.gate_up_proj.weight.data_ptr()
        assert layer.q_norm is not None
        assert layer.window == 0
    assert (tensors.page_size, tensors.q_heads, tensors.page_tables[0].data_ptr()) == (2, 6, table.data_ptr())
