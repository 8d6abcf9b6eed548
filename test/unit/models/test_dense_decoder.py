"""A description says everything: plain torch, given nothing else, gets the logits of the model."""

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel

from fixtures.tiny_checkpoints import VOCAB_SIZE, make_checkpoint
from mysglang.srt.configs.load_config import LoadConfig
from mysglang.srt.configs.model_config import ModelConfig
from mysglang.srt.layers.decoder_blocks import GatedMLP, RopeAttention
from mysglang.srt.layers.quantization.unquantized import UnquantizedLinearMethod
from mysglang.srt.model_loader.loader import load_model
from mysglang.srt.models.causal_lm import CausalLM
from mysglang.srt.models.dense_decoder import DenseDecoder, DenseLayer, DenseLinear, DenseNorm, describe

VARIANTS = {
    "llama": ("llama", {}),
    "llama with biases, tied": ("llama", {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True}),
    "mistral with a window": ("mistral", {}),
    "qwen2": ("qwen2", {}),
    "qwen3": ("qwen3", {}),
}

IDS = torch.from_numpy(np.random.default_rng(0).integers(0, VOCAB_SIZE, 41))


def load(variant: str, folder: Path) -> tuple[PreTrainedModel, CausalLM]:
    family, overrides = VARIANTS[variant]
    theirs = make_checkpoint(family, folder, **overrides)
    config = ModelConfig.from_path(str(folder), dtype="float32")
    return theirs, load_model(config, LoadConfig(), torch.device("cpu"), torch.float32)


def norm(x: Tensor, by: DenseNorm) -> Tensor:
    return F.rms_norm(x, by.weight.shape, by.weight, by.eps)


def times(x: Tensor, by: DenseLinear) -> Tensor:
    return F.linear(x, by.weight, by.bias)


def attend(x: Tensor, layer: DenseLayer) -> Tensor:
    spec, tokens = layer.spec, len(x)
    heads = times(x, layer.qkv).view(tokens, -1, spec.head_dim)
    q, k, v = heads.split((spec.num_heads, spec.num_kv_heads, spec.num_kv_heads), dim=1)
    if layer.rotation.norms is not None:
        for_q, for_k, eps = layer.rotation.norms
        q, k = norm(q, DenseNorm(for_q, eps)), norm(k, DenseNorm(for_k, eps))
    cos, sin = layer.rotation.cos_sin[:tokens].unsqueeze(1).chunk(2, -1)

    def turn(y: Tensor) -> Tensor:
        a, b = y.chunk(2, -1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)

    group = spec.num_heads // spec.num_kv_heads
    distance = torch.arange(tokens)[:, None] - torch.arange(tokens)
    visible = (distance >= 0) & (distance < (spec.window or tokens))
    q, k, v = (y.transpose(0, 1) for y in (turn(q), turn(k).repeat_interleave(group, 1), v.repeat_interleave(group, 1)))
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=visible, scale=spec.scale)
    return times(out.transpose(0, 1).reshape(tokens, -1), layer.o)


def logits_of(model: DenseDecoder, ids: Tensor) -> Tensor:
    x = model.embedding[ids]
    for layer in model.layers:
        x = x + attend(norm(x, layer.input_norm), layer)
        gate, up = times(norm(x, layer.post_norm), layer.gate_up).chunk(2, -1)
        assert layer.activation == "silu"
        x = x + times(F.silu(gate) * up, layer.down)
    return norm(x, model.norm) @ model.lm_head.T


@pytest.mark.parametrize("variant", VARIANTS)
@torch.no_grad()
def test_is_all_that_the_model_is(variant: str, tmp_path: Path) -> None:
    theirs, ours = load(variant, tmp_path)
    described = describe(ours)
    assert described is not None
    torch.testing.assert_close(logits_of(described, IDS), theirs(IDS[None]).logits[0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("part", "known"), [("layers.1.mlp", GatedMLP), ("layers.2.self_attn", RopeAttention), ("", CausalLM)]
)
def test_does_not_describe_what_computes_otherwise(part: str, known: type[nn.Module], tmp_path: Path) -> None:
    model = load("llama", tmp_path)[1]
    changed = model.get_submodule(part)
    changed.__class__ = type("Changed", (type(changed),), {"forward": lambda self, *args: known.forward(self, *args)})
    assert describe(model) is None


def test_does_not_describe_weights_of_another_kind(tmp_path: Path) -> None:
    class Wrapped(UnquantizedLinearMethod):
        pass

    model = load("llama", tmp_path)[1]
    model.get_submodule("layers.0.mlp.down_proj").method = Wrapped()
    assert describe(model) is None
