"""Rotary parameters of config.json in odd spellings: what transformers makes of them, or a refusal that names them."""

import json
from pathlib import Path
from typing import Any

import pytest
import transformers

from mysglang.srt.configs.layer_plan import RopePlan
from mysglang.srt.configs.model_config import ModelConfig
from mysglang.srt.errors import ConfigError

SIZES = {
    "vocab_size": 251,
    "hidden_size": 96,
    "intermediate_size": 136,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
}
YARN = {"rope_type": "yarn", "rope_theta": 500.0, "factor": 4.0, "original_max_position_embeddings": 64}
PLAIN = {"rope_type": "default", "rope_theta": 500.0}


def rope_of(folder: Path, architecture: str, keys: dict[str, Any]) -> RopePlan:
    """The rotary plan of the last layer."""
    (folder / "config.json").write_text(json.dumps({"architectures": [architecture], **SIZES, **keys}))
    rope = ModelConfig.from_path(str(folder)).plan.attentions[-1].rope
    assert rope is not None
    return rope


@pytest.mark.parametrize("family", ["Ministral3", "GptOss"])
@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"rope_theta": 77.0},
        {"rope_parameters": {}},
        {"rope_parameters": {}, "rope_theta": 77.0},
        {"rope_parameters": {"rope_type": "default"}},
        {"rope_parameters": None, "rope_scaling": {key: YARN[key] for key in YARN if key != "rope_theta"}},
        {"rope_scaling": {}},
    ],
)
def test_families_that_scale_positions_unless_told_otherwise(family: str, keys: dict[str, Any], tmp_path: Path) -> None:
    theirs = getattr(transformers, f"{family}Config").from_dict({**SIZES, **json.loads(json.dumps(keys))})
    ours = rope_of(tmp_path, f"{family}ForCausalLM", keys).parameters
    expected = theirs.rope_parameters
    assert {key: expected.get(key) for key in ours} == ours
    read = ("rope_theta", "rope_type", "factor", "truncate", "mscale", "mscale_all_dim", "beta_fast", "beta_slow")
    assert {key for key in read if key in expected} <= ours.keys()


def test_the_turned_part_of_bamba(tmp_path: Path) -> None:
    """Only that among the rotary parameters counts."""
    keys = {"attn_layer_indices": [2], "mamba_n_heads": 6, "mamba_d_state": 16, "mamba_n_groups": 2}
    for given, part in (
        ({"partial_rotary_factor": 0.25}, 0.5),
        ({"rope_parameters": PLAIN}, 0.5),
        ({"rope_parameters": PLAIN | {"partial_rotary_factor": 1.0}, "partial_rotary_factor": 0.25}, 1.0),
    ):
        assert rope_of(tmp_path, "BambaForCausalLM", {**keys, **given}).part == part


@pytest.mark.parametrize("architecture", ["Gemma3ForCausalLM", "Olmo3ForCausalLM"])
@pytest.mark.parametrize(
    ("parameters", "says"),
    [
        ({"full_attention": None, "sliding_attention": PLAIN}, "lack those of full_attention layers"),
        ({"full_attention": PLAIN, "sliding_attention": None}, "lack those of sliding_attention layers"),
        ({"full_attention": [4], "sliding_attention": PLAIN}, "of full_attention layers must be an object"),
        ({"full_attention": PLAIN}, "lack those of sliding_attention layers"),
    ],
)
def test_parameters_of_one_type_of_layer(
    architecture: str, parameters: dict[str, Any], says: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=f"config.json: rope_parameters {says}"):
        rope_of(tmp_path, architecture, {"rope_parameters": parameters, "sliding_window": 20})


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"rope_parameters": YARN | {"truncate": None}}, "truncate of the rotary embedding must be true or false"),
        ({"rope_parameters": YARN | {"original_max_position_embeddings": 0}}, "must be a number above 0"),
        ({"rope_scaling": YARN, "original_max_position_embeddings": 0}, "must be a number above 0"),
        ({"rope_scaling": {"type": "yarn"}, "original_max_position_embeddings": 0}, "needs factor"),
        ({"rope_parameters": {"sliding_attention": PLAIN, "full_attention": None}}, "for each type of layer"),
    ],
)
def test_values_that_transformers_would_compute_with(keys: dict[str, Any], says: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=says):
        rope_of(tmp_path, "LlamaForCausalLM", keys)


def test_gemma_4_has_one_base_of_layers_with_a_window(tmp_path: Path) -> None:
    """It is among the parameters by type of layer; the key of Gemma 3 has no effect."""
    keys = {"rope_local_base_freq": 77.0, "head_dim": 32, "num_hidden_layers": 6}
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["Gemma4ForCausalLM"], **SIZES, **keys}))
    local = ModelConfig.from_path(str(tmp_path)).plan.attentions[0].rope
    theirs = transformers.Gemma4TextConfig.from_dict({**SIZES, **keys}).rope_parameters["sliding_attention"]
    assert local is not None and local.parameters["rope_theta"] == theirs["rope_theta"] == 10000.0


def test_a_factor_for_each_frequency_of_each_layer(tmp_path: Path) -> None:
    """Layers of Gemma 4 that see all keys have heads of another size."""
    longrope = {"rope_type": "longrope", "short_factor": [1.0] * 16, "long_factor": [2.0] * 16}
    ropes = {"full_attention": longrope | {"original_max_position_embeddings": 64}, "sliding_attention": PLAIN}
    keys = {"rope_parameters": ropes, "head_dim": 32, "global_head_dim": 48}
    with pytest.raises(ConfigError, match=r"short_factor .* holds 16 numbers, and a head has 24 frequencies"):
        rope_of(tmp_path, "Gemma4ForCausalLM", keys)


def test_a_part_of_frequencies_of_heads_that_are_turned_in_part(tmp_path: Path) -> None:
    proportional = PLAIN | {"rope_type": "proportional", "partial_rotary_factor": 0.5}
    with pytest.raises(ConfigError, match="rope type proportional is not supported for this architecture"):
        rope_of(tmp_path, "Qwen3NextForCausalLM", {"rope_parameters": proportional, "full_attention_interval": 3})


def test_a_turned_part_that_is_null(tmp_path: Path) -> None:
    """transformers would turn whole heads then, which no such family does."""
    with pytest.raises(ConfigError, match="partial_rotary_factor must be a number, not null"):
        rope_of(tmp_path, "Qwen3NextForCausalLM", {"partial_rotary_factor": None, "full_attention_interval": 3})
