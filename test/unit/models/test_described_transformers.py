"""Models by transformers' code that are read from their traced graph: what is read is all that the model is, and any
other graph is refused with its reason.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel
from transformers.models.llama.modeling_llama import (
    LlamaAttention,
    LlamaForCausalLM,
    LlamaRotaryEmbedding,
)
from transformers.models.qwen3.modeling_qwen3 import Qwen3Attention

from fixtures.changed_llamas import CHANGES, UNCHANGED, changed_attention
from fixtures.dense_reference import logits_of
from fixtures.foreign_checkpoints import FOREIGN
from fixtures.tiny_checkpoints import FAMILIES, VOCAB_SIZE, YARN, save_random
from mysgl_kernel import decoder
from mysglang.srt.configs.load_config import LoadConfig
from mysglang.srt.configs.model_config import ModelConfig
from mysglang.srt.layers.quantization import unquantized
from mysglang.srt.mem_cache.kv_pool.mha import MhaKvPool
from mysglang.srt.model_executor.persistent_decode import decoder_tensors, describe_for_kernel
from mysglang.srt.model_loader.loader import load_model
from mysglang.srt.model_loader.weight_update import WeightUpdate, checkpoint_tensors
from mysglang.srt.models.checkpoint_model import TokenModel
from mysglang.srt.models.dense_decoder import CannotDescribe, DenseDecoder, DenseLinear
from mysglang.srt.models.transformers_backend import angles
from mysglang.srt.models.transformers_backend import described as described_module
from mysglang.srt.models.transformers_backend.model import TransformersCausalLM

CPU = torch.device("cpu")
IDS = torch.from_numpy(np.random.default_rng(0).integers(0, VOCAB_SIZE, 41))

ONES = dict.fromkeys(("embedding_multiplier", "residual_multiplier", "logits_scaling"), 1.0)

DESCRIBED: dict[str, Callable[[], PretrainedConfig]] = {
    "llama": FAMILIES["llama"],
    "llama with biases, tied": lambda: FAMILIES["llama"](tie_word_embeddings=True, attention_bias=True, mlp_bias=True),
    "llama with yarn": lambda: FAMILIES["llama"](rope_parameters=YARN),
    "llama of one head of keys": lambda: FAMILIES["llama"](num_attention_heads=2, num_key_value_heads=1, head_dim=32),
    "llama of 4 heads and no groups": lambda: FAMILIES["llama"](num_attention_heads=4, num_key_value_heads=4),
    "mistral with a window": FAMILIES["mistral"],
    "qwen2": FAMILIES["qwen2"],
    "qwen3": FAMILIES["qwen3"],
    "qwen3, tied": lambda: FAMILIES["qwen3"](tie_word_embeddings=True),
    "seed_oss": FAMILIES["seed_oss"],
    "granite with factors of one": lambda: FAMILIES["granite"](**ONES),
}


def saved(
    config: PretrainedConfig, folder: Path, *, dtype: torch.dtype = torch.float32, seed: int = 0
) -> PreTrainedModel:
    return save_random(config, folder, dtype=dtype, seed=seed)


def load(folder: Path, impl: Any = "transformers", dtype: torch.dtype = torch.float32, **options: Any) -> TokenModel:
    named = str(dtype).removeprefix("torch.")
    config = ModelConfig.from_path(str(folder), dtype=named, impl=impl)
    return load_model(config, LoadConfig(**options), CPU, dtype)


def described(config: PretrainedConfig, folder: Path) -> DenseDecoder:
    saved(config, folder)
    return load(folder).described()


def same(one: DenseLinear, other: DenseLinear) -> bool:
    biases = one.bias, other.bias
    alike = biases == (None, None) or (None not in biases and torch.equal(*biases))  # type: ignore[arg-type]
    return alike and torch.equal(one.weight, other.weight)


@pytest.mark.parametrize("variant", DESCRIBED)
@torch.no_grad()
def test_is_all_that_the_model_is(variant: str, tmp_path: Path) -> None:
    """The description of our own code of the same checkpoint, and transformers' logits."""
    theirs = saved(DESCRIBED[variant](), tmp_path)
    found, own = load(tmp_path).described(), load(tmp_path, "mysglang").described()
    torch.testing.assert_close(logits_of(found, IDS), theirs(IDS[None]).logits[0], rtol=1e-4, atol=1e-4)
    assert torch.equal(found.embedding, own.embedding) and torch.equal(found.lm_head, own.lm_head)
    assert torch.equal(found.norm.weight, own.norm.weight) and found.norm.eps == own.norm.eps
    assert (found.lm_head is found.embedding) is theirs.config.tie_word_embeddings
    assert len(found.layers) == len(own.layers) == 3
    for one, other in zip(found.layers, own.layers, strict=True):
        assert one.spec == other.spec and one.activation == other.activation and one.router is None
        for name in ("qkv", "o", "gate_up", "down"):
            assert same(getattr(one, name), getattr(other, name)), name
        for name in ("input_norm", "post_norm"):
            assert torch.equal(getattr(one, name).weight, getattr(other, name).weight)
            assert getattr(one, name).eps == getattr(other, name).eps
        assert one.rotation.cos_sin is found.layers[0].rotation.cos_sin
        torch.testing.assert_close(one.rotation.cos_sin, other.rotation.cos_sin, rtol=1e-5, atol=1e-5)
        assert (one.rotation.norms is None) is (other.rotation.norms is None)
        if one.rotation.norms is not None and other.rotation.norms is not None:
            assert all(
                torch.equal(*pair) for pair in zip(one.rotation.norms[:2], other.rotation.norms[:2], strict=True)
            )
            assert one.rotation.norms[2] == other.rotation.norms[2]


REFUSED: dict[str, tuple[Callable[[], PretrainedConfig], str]] = {
    "1 + w": (FAMILIES["gemma2"], r"its norms multiply by 1 \+ w"),
    "factors everywhere": (FAMILIES["granite"], "what is added to its residual stream is made by aten.mul"),
    "norms of another kind": (FOREIGN["gpt_neox"], "its result is made by aten.native_layer_norm, not by an RMS norm"),
    "learned positions": (FOREIGN["gpt2"], "its result is made by aten.native_layer_norm"),
    "a norm that is code of transformers": (FAMILIES["cohere"], "its result is made by aten.mul"),
    "experts": (FAMILIES["mixtral"], "it has experts that transformers' code chooses"),
    "norms after": (FAMILIES["olmo2"], "residual stream is made by an RMS norm, not by a gated MLP"),
    "another MLP": (FAMILIES["arcee"], "residual stream is made by a projection, not by a gated MLP"),
    "neighbours that turn together": (FAMILIES["ernie4_5"], "its queries in attention are made by aten.add"),
    "layers without positions": (FAMILIES["smollm3"], "layers without rotary positions"),
    "norms of what is turned": (FOREIGN["hunyuan"], "its queries in attention are made by an RMS norm"),
    "values in place": (FOREIGN["diffllama"], "its layers write in place"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str, tmp_path: Path) -> None:
    config, why = REFUSED[name]
    saved(config(), tmp_path)
    model = load(tmp_path)
    for _ in range(2):
        with pytest.raises(CannotDescribe, match=why):
            model.described()


def test_quantized_weights_are_refused(tmp_path: Path) -> None:
    saved(FAMILIES["llama"](), tmp_path)
    with pytest.raises(CannotDescribe, match="its weights are quantized"):
        load(tmp_path, quantization="int8wo").described()


def change(
    monkeypatch: pytest.MonkeyPatch, kind: type, forward: Callable[..., Any], folder: Path, *, layers: int = 3
) -> TokenModel:
    """A Llama, loaded while the class is changed. The check of a loaded model is left out."""
    monkeypatch.setattr(kind, "forward", forward)
    # As many heads of keys as of queries, where more can be mistaken.
    family = "qwen3" if kind is Qwen3Attention else "llama"
    saved(FAMILIES[family](num_key_value_heads=6, num_hidden_layers=layers), folder)
    return load(folder)


@pytest.mark.parametrize("name", CHANGES)
def test_almost_a_llama_is_refused(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    changed = CHANGES[name]
    model = change(monkeypatch, changed.kind, changed.forward, tmp_path, layers=changed.layers)
    with pytest.raises(CannotDescribe, match=changed.why):
        model.described()


@pytest.mark.parametrize("name", UNCHANGED)
def test_the_same_llama_without_a_change_is_described(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So the changes above are what is refused."""
    assert len(change(monkeypatch, *UNCHANGED[name], tmp_path).described().layers) == 3


@torch.no_grad()
def test_names_are_not_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A class whose projections of queries and keys have each other's names is read as what it computes."""
    model = change(monkeypatch, LlamaAttention, changed_attention(order=-1), tmp_path)
    found = model.described()
    expected = transformers.LlamaForCausalLM.from_pretrained(tmp_path, dtype=torch.float32, attn_implementation="eager")
    theirs = expected.model.layers[0].self_attn
    assert torch.equal(found.layers[0].qkv.weight[:96], theirs.k_proj.weight)
    torch.testing.assert_close(logits_of(found, IDS), expected(IDS[None]).logits[0], rtol=1e-4, atol=1e-4)


def embedded_twice(self: nn.Embedding, ids: Tensor) -> Tensor:
    return F.embedding(ids, self.weight) * 2


def with_logits(changed: Callable[[Tensor], Tensor]) -> Callable[..., Any]:
    """LlamaForCausalLM.forward with a change of its logits."""
    plain = LlamaForCausalLM.forward

    def forward(self: Any, *arguments: Any, **more: Any) -> Any:
        out = plain(self, *arguments, **more)
        out.logits = changed(out.logits)
        return out

    return forward


def with_bias(config: PretrainedConfig, folder: Path, monkeypatch: pytest.MonkeyPatch) -> TokenModel:
    plain = LlamaForCausalLM.__init__

    def build(self: Any, config: Any) -> None:
        plain(self, config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=True)

    monkeypatch.setattr(LlamaForCausalLM, "__init__", build)
    saved(config, folder)
    return load(folder)


@pytest.mark.parametrize(
    ("kind", "forward", "why"),
    [
        (nn.Embedding, embedded_twice, "its residual stream is made by aten.mul"),
        (LlamaForCausalLM, with_logits(lambda x: x * 2), "a logit is made by aten.mul"),
        (LlamaForCausalLM, with_logits(lambda x: x.tanh()), "a logit is made by aten.tanh"),
        (LlamaForCausalLM, with_logits(lambda x: x.transpose(1, 2).reshape(x.shape)), "a logit is moved"),
    ],
    ids=["scaled embeddings", "scaled logits", "capped logits", "logits in another order"],
)
def test_what_is_before_and_behind_the_layers(
    kind: type, forward: Any, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(CannotDescribe, match=why):
        change(monkeypatch, kind, forward, tmp_path).described()


def test_logits_with_a_bias(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = with_bias(FAMILIES["llama"](), tmp_path, monkeypatch)
    with pytest.raises(CannotDescribe, match="its logits have a bias"):
        model.described()


def test_a_layer_that_is_used_twice(tmp_path: Path) -> None:
    """Its weights would have to be parts of two tensors."""
    saved(FAMILIES["llama"](), tmp_path)
    model = load(tmp_path)
    one, other = (model.get_submodule(f"lm.model.layers.{index}") for index in (0, 1))
    other._modules["mlp"] = one._modules["mlp"]
    with pytest.raises(CannotDescribe, match="some of its layers share weights"):
        model.described()


def test_calls_of_attention_in_another_order(tmp_path: Path) -> None:
    """Pages of a layer would be those of another one."""
    saved(FAMILIES["llama"](), tmp_path)
    model = load(tmp_path)
    assert isinstance(model, TransformersCausalLM)
    model._calls = model._calls[::-1]
    with pytest.raises(CannotDescribe, match="do not attend in the order of the residual stream"):
        model.described()


def test_norms_of_heads_that_differ_in_eps(tmp_path: Path) -> None:
    saved(FAMILIES["qwen3"](), tmp_path)
    model = load(tmp_path)
    model.get_submodule("lm.model.layers.1.self_attn.k_norm").eps = 1e-3  # type: ignore[assignment]
    with pytest.raises(CannotDescribe, match="norms of queries and of keys differ in eps"):
        model.described()


Turned = Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        (lambda x, at, cos, sin: (cos * at.float().mean(), sin), "the angles of a row depend on other rows"),
        (
            lambda x, at, cos, sin: (cos * (1 + (at[:, 0] - at[:, -1]).relu()), sin),
            "the angles of a row depend on other",
        ),
        (lambda x, at, cos, sin: (cos, sin * torch.arange(16)), "the halves of its heads are turned by different"),
        (lambda x, at, cos, sin: (cos * 2 if x.shape[1] == 1 else cos, sin), "the angles of a row depend on other"),
        (lambda x, at, cos, sin: (cos * x.mean(), sin), "its angles depend on tokens"),
        (lambda x, at, cos, sin: (cos * torch.rand_like(cos), sin), "its angles are made by aten.rand_like"),
    ],
    ids=["the mean of all positions", "the order of positions", "halves", "one row", "tokens", "chance"],
)
def test_angles_that_are_no_table(changed: Turned, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved(FAMILIES["llama"](), tmp_path)
    model = load(tmp_path)
    plain = LlamaRotaryEmbedding.forward

    def forward(self: Any, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        return changed(x, position_ids, *plain(self, x, position_ids))

    monkeypatch.setattr(LlamaRotaryEmbedding, "forward", forward)
    with pytest.raises(CannotDescribe, match=why):
        model.described()


def test_angles_that_an_update_may_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table of them would stay as it is."""
    plain = LlamaRotaryEmbedding.__init__

    def build(self: Any, *arguments: Any, **more: Any) -> None:
        plain(self, *arguments, **more)
        self.register_buffer("inv_freq", self.inv_freq, persistent=True)

    monkeypatch.setattr(LlamaRotaryEmbedding, "__init__", build)
    with pytest.raises(CannotDescribe, match="its angles depend on weights"):
        described(FAMILIES["llama"](), tmp_path)


@pytest.mark.parametrize("piece", [1, 7, 255, 256, 1000])
def test_angles_of_any_number_of_positions(piece: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pieces in which they are computed do not show, a last one of a single position included."""
    monkeypatch.setattr(angles, "PIECE", piece)
    saved(FAMILIES["llama"](), tmp_path)
    model, own = load(tmp_path), load(tmp_path, "mysglang")
    found, expected = (each.described().layers[0].rotation.cos_sin for each in (model, own))
    assert found.shape == (256, 16)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("length", [1, 2, 3])
def test_a_very_short_context(length: int, tmp_path: Path) -> None:
    saved(FAMILIES["llama"](), tmp_path)
    config = ModelConfig.from_path(str(tmp_path), dtype="float32", context_length=length, impl="transformers")
    found = load_model(config, LoadConfig(), CPU, torch.float32).described()
    assert len(found.layers[0].rotation.cos_sin) == length


@torch.no_grad()
def test_weights_change_in_place_and_come_back_after_a_release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that knows the addresses sees new weights; after a release the same values are described again. The
    graph is read once.
    """
    one, other = tmp_path / "one", tmp_path / "other"
    bias = {"attention_bias": True}
    theirs = [saved(FAMILIES["llama"](**bias), folder, seed=seed) for seed, folder in enumerate((one, other))]
    expected = [each(IDS[None]).logits[0] for each in theirs]
    model = load(one)
    bytes_before = WeightUpdate(model).nbytes
    found, update = model.described(), WeightUpdate(model)
    monkeypatch.setattr(described_module, "trace_body", lambda *_, **__: pytest.fail("traced again"))
    again = model.described()
    for layer, same_layer in zip(found.layers, again.layers, strict=True):
        assert layer.qkv.weight.data_ptr() == same_layer.qkv.weight.data_ptr()
        assert layer.qkv.bias is not None and same_layer.qkv.bias is not None
        assert layer.qkv.bias.data_ptr() == same_layer.qkv.bias.data_ptr()
    stored = {id(each.untyped_storage()): each.untyped_storage() for each in model.parameters()}
    assert update.nbytes == bytes_before == sum(each.nbytes() for each in stored.values())
    update.apply(update.plan(checkpoint_tensors(other), whole=True), lambda: None)
    torch.testing.assert_close(logits_of(found, IDS), expected[1], rtol=1e-4, atol=1e-4)
    update.release()
    update.reserve()
    update.apply(update.plan(checkpoint_tensors(one), whole=True), lambda: None)
    torch.testing.assert_close(logits_of(model.described(), IDS), expected[0], rtol=1e-4, atol=1e-4)
    parts = [model.get_parameter(f"lm.model.layers.2.self_attn.{name}_proj.weight") for name in "qkv"]
    whole = model.described().layers[2].qkv.weight
    assert torch.equal(whole, torch.cat(parts))
    assert len({each.untyped_storage().data_ptr() for each in (*parts, whole)}) == 1


@pytest.mark.parametrize(("family", "head_dim"), [("llama", 64), ("qwen3", 128)])
def test_the_kernel_takes_such_a_model(
    family: str, head_dim: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tensors in bfloat16, as a GPU has them: a CPU would pack weights."""
    monkeypatch.setattr(unquantized, "pack_linear_weight", lambda weight: weight)
    sizes = {"hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 4, "num_key_value_heads": 2}
    config = FAMILIES[family](**sizes, head_dim=head_dim)
    saved(config, tmp_path, dtype=torch.bfloat16)
    model = load(tmp_path, dtype=torch.bfloat16)
    with torch.inference_mode():
        found = describe_for_kernel(model)
    pool = MhaKvPool(model.attention_specs(), num_pages=4, page_size=2, dtype=torch.bfloat16, device=CPU)
    tensors = decoder_tensors(found, pool, [torch.zeros(3, 4, dtype=torch.int32)])
    decoder.check(tensors, 4)
    assert tensors.cos_sin.dtype is torch.float32 and (tensors.layers[0].q_norm is not None) is (family == "qwen3")
    # The numbers that transformers multiplies by.
    assert torch.equal(tensors.cos_sin, tensors.cos_sin.bfloat16().float())


def test_a_cap_of_scores_is_refused_with_the_other_reasons(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved(FOREIGN["vaultgemma"](), tmp_path, dtype=torch.bfloat16)
    with pytest.raises(CannotDescribe, match=r"its norms multiply by 1 \+ w; its scores are capped"):
        describe_for_kernel(load(tmp_path, dtype=torch.bfloat16))
