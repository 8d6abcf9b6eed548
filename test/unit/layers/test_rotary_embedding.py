"""The table of each scaling equals what transformers computes, far out in the text too."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from mysglang.srt.configs.model_config import ModelConfig
from mysglang.srt.configs.rope_config import REQUIRED
from mysglang.srt.layers.rotary_embedding import SCALINGS, RotaryEmbedding, cos_sin_table

HEAD_DIM = 64

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2048}
CASES: list[dict[str, Any]] = [
    {"rope_type": "default"},
    {"rope_type": "default", "rope_theta": 1e6},
    {"rope_type": "linear", "factor": 4.0},
    {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 1024,
        "rope_theta": 5e5,
    },
    {
        "rope_type": "llama3",
        "factor": 16.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 1.0,
        "original_max_position_embeddings": 1024,
    },
    YARN,
    YARN | {"rope_theta": 1e6, "beta_fast": 16.0, "beta_slow": 2.0},
    YARN | {"attention_factor": 1.5},
    YARN | {"mscale": 0.707, "mscale_all_dim": 1.2},
    YARN | {"truncate": False},
]


def theirs(rope: dict[str, Any], **more: Any) -> LlamaConfig:
    return LlamaConfig(
        hidden_size=4 * HEAD_DIM,
        num_attention_heads=4,
        max_position_embeddings=2048,
        rope_parameters={"rope_theta": 10000.0} | rope,
        architectures=["LlamaForCausalLM"],
        **more,
    )


def ours(config: LlamaConfig, folder: Path, **options: Any) -> ModelConfig:
    """Through config.json, so that reading it is tested as well."""
    config.save_pretrained(folder)
    return ModelConfig.from_path(str(folder), **options)


def rope_of(config: ModelConfig) -> Mapping[str, Any]:
    rope = config.plan.layers[0].attention.rope
    assert rope is not None
    return rope.parameters


@pytest.mark.parametrize("rope", CASES, ids=str)
def test_equals_transformers(rope: dict[str, Any], tmp_path: Path) -> None:
    config = theirs(rope)
    mine = ours(config, tmp_path)
    positions = torch.arange(mine.context_len)
    cos, sin = LlamaRotaryEmbedding(config)(torch.zeros(1, dtype=torch.float32), positions[None])
    expected = torch.cat((cos[0, :, : HEAD_DIM // 2], sin[0, :, : HEAD_DIM // 2]), dim=-1)
    table = cos_sin_table(rope_of(mine), HEAD_DIM, mine.context_len)
    # A float32 frequency may differ in its last bit, which an angle of thousands of radians multiplies.
    torch.testing.assert_close(table, expected, rtol=0, atol=2e-3)
    torch.testing.assert_close(table[:256], expected[:256], rtol=0, atol=1e-4)


@pytest.mark.parametrize("context_length", [1000, 2048, 5000, None])
def test_dynamic_is_the_one_of_the_longest_text(context_length: int | None, tmp_path: Path) -> None:
    config = theirs({"rope_type": "dynamic", "factor": 3.0})
    mine = ours(config, tmp_path, context_length=context_length)
    expected, stretch = ROPE_INIT_FUNCTIONS["dynamic"](config, seq_len=mine.context_len)
    found, our_stretch = SCALINGS["dynamic"](rope_of(mine), HEAD_DIM, mine.context_len)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=0)
    assert stretch == our_stretch == 1.0


def test_every_known_type_has_its_function() -> None:
    assert SCALINGS.keys() == REQUIRED.keys()


def test_keeps_lengths_and_is_no_weight() -> None:
    rotary = RotaryEmbedding({"rope_type": "default", "rope_theta": 10000.0}, HEAD_DIM, 128)
    cos, sin = rotary.cos_sin.chunk(2, dim=-1)
    torch.testing.assert_close(cos.square() + sin.square(), torch.ones(128, HEAD_DIM // 2))
    assert cos[0].eq(1).all() and sin[0].eq(0).all()  # position 0 turns by nothing
    assert not rotary.state_dict()
