"""Rotary positions in both spellings: overriding keys over files in either one, and files with both."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mysglang.srt.configs.model_config import ModelConfig
from mysglang.srt.errors import ConfigError

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 300,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 2048,
}


def read(folder: Path, hf: dict[str, Any], **overrides: Any) -> ModelConfig:
    (folder / "config.json").write_text(json.dumps(hf))
    return ModelConfig.from_path(str(folder), overrides=overrides)


def rope(config: ModelConfig) -> dict[str, Any]:
    plan = config.plan.attentions[-1].rope
    assert plan is not None
    return dict(plan.parameters)


@pytest.mark.parametrize("key", ["rope_scaling", "rope_parameters"])
@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize(
    "stored",
    [
        {"rope_theta": 5e5, "rope_scaling": None},
        {"rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 2}},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}},
        {"rope_parameters": {"rope_type": "linear", "factor": 2, "rope_theta": 5e5}},
    ],
)
def test_overrides_in_either_spelling(key: str, nested: bool, stored: dict[str, Any], tmp_path: Path) -> None:
    """The base stays, where it is not overridden, too; what was scaled before is not."""
    hf = {**LLAMA, "text_config": stored} if nested else LLAMA | stored
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2048}
    assert rope(read(tmp_path, hf, **{key: yarn})) == yarn | {"rope_theta": 5e5}
    assert rope(read(tmp_path, hf, **{key: yarn, "rope_theta": 7e5})) == yarn | {"rope_theta": 7e5}
    assert rope(read(tmp_path, hf, **{key: yarn | {"rope_theta": 7e5}})) == yarn | {"rope_theta": 7e5}
    assert rope(read(tmp_path, hf, **{key: None})) == {"rope_type": "default", "rope_theta": 5e5}
    plain = rope(read(tmp_path, hf))
    assert rope(read(tmp_path, hf, rope_theta=7e5)) == plain | {"rope_theta": 7e5}
    assert rope(read(tmp_path, hf, vocab_size=77)) == plain


def test_overrides_of_layers_that_see_all(tmp_path: Path) -> None:
    """Layers with a window keep the parameters of their own."""
    layers = {
        "sliding_attention": {"rope_type": "default", "rope_theta": 7e4},
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 2e6},
    }
    gemma = LLAMA | {"architectures": ["Gemma3ForCausalLM"], "sliding_window": 8, "rope_parameters": layers}
    gemma |= {"layer_types": ["sliding_attention", "full_attention"], "query_pre_attn_scalar": 16}

    def bases(**overrides: Any) -> list[tuple[object, object]]:
        ropes = [each.rope for each in read(tmp_path, gemma, **overrides).plan.attentions]
        return [(each.parameters["rope_theta"], each.parameters.get("factor")) for each in ropes if each]

    assert bases() == [(7e4, None), (2e6, 8.0)]
    assert bases(rope_scaling={"rope_type": "linear", "factor": 2.0}) == [(7e4, None), (2e6, 2.0)]
    assert bases(rope_theta=5e6) == [(7e4, None), (5e6, 8.0)]
    assert bases(rope_parameters=layers | {"sliding_attention": {"rope_theta": 9e4}}) == [(9e4, None), (2e6, 8.0)]


def test_a_file_in_both_spellings_must_have_the_base_where_it_is_read(tmp_path: Path) -> None:
    """A user may add `rope_scaling`, which comes first, to a file that transformers 5 wrote."""
    both = LLAMA | {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}
    scaling = {"rope_type": "linear", "factor": 2.0}
    with pytest.raises(ConfigError, match="rope_scaling replaces rope_parameters"):
        read(tmp_path, both | {"rope_scaling": scaling})
    for more in ({"rope_scaling": scaling | {"rope_theta": 5e5}}, {"rope_scaling": scaling, "rope_theta": 5e5}):
        assert rope(read(tmp_path, both | more)) == scaling | {"rope_theta": 5e5}
