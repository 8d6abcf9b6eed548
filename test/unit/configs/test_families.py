"""Keys of config.json that only single families of decoders read, and values that they refuse by name."""

import json
from pathlib import Path
from typing import Any

import pytest

from mysglang.srt.configs.model_config import ModelConfig
from mysglang.srt.errors import ConfigError

LLAMA: dict[str, Any] = {
    "vocab_size": 1000,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 2048,
}


def read(folder: Path, config: dict[str, Any]) -> ModelConfig:
    (folder / "config.json").write_text(json.dumps(config))
    return ModelConfig.from_path(str(folder))


@pytest.mark.parametrize(
    ("name", "keys", "words"),
    [
        ("GptOssForCausalLM", {"swiglu_limit": 5.0}, ["swiglu_limit 5.0", "7.0"]),
        ("GptOssForCausalLM", {"hidden_act": "gelu"}, ["hidden_act 'gelu'"]),
        ("HunYuanDenseV1ForCausalLM", {"use_cla": True}, ["use_cla True"]),
        ("HunYuanMoEV1ForCausalLM", {"moe_intermediate_size": [128, 64]}, ["moe_intermediate_size 64", "128"]),
        ("HunYuanMoEV1ForCausalLM", {"moe_topk": [1]}, ["moe_topk", "1 of 2 layers"]),
        ("MiniMaxM2ForCausalLM", {"scoring_func": "softmax"}, ["scoring_func 'softmax'"]),
        ("MiniMaxM2ForCausalLM", {"attn_type_list": [1, 0]}, ["attn_type_list", "linear"]),
        ("MiniMaxM2ForCausalLM", {"rotary_dim": 32, "head_dim": 16}, ["rotary_dim 32", "16"]),
        ("PhiMoEForCausalLM", {"num_experts_per_tok": 1}, ["num_experts_per_tok 1", "2"]),
        ("Llama4ForCausalLM", {"no_rope_layers": [1]}, ["no_rope_layers", "1 of 2 layers"]),
        ("Gemma4ForCausalLM", {"num_kv_shared_layers": 1, "num_hidden_layers": 1}, ["layer 0", "num_kv_shared_layers"]),
        (
            "Gemma4ForCausalLM",
            {"num_kv_shared_layers": 1, "num_hidden_layers": 2, "layer_types": ["full_attention"] * 2}
            | {"per_layer_config": {"0": {"head_dim": 16}, "1": {"head_dim": 32}}},
            ["layer 1 has", "of 32 numbers", "layer 0"],
        ),
        (
            "Gemma4ForCausalLM",
            {"per_layer_config": {"0": {"sliding_window": 7}}},
            ["sliding_window", "per_layer_config"],
        ),
        ("Gemma4ForCausalLM", {"per_layer_config": {"2": {}}}, ["per_layer_config names layer '2'", "0 to 1"]),
        (
            "Qwen3ForCausalLM",
            {"per_layer_config": {"0": {"rms_norm_eps": 1e-3}}},
            ["per_layer_config is not supported"],
        ),
        ("Gemma3nForCausalLM", {"num_kv_shared_layers": 15}, ["num_kv_shared_layers"]),
        ("Gemma3nForCausalLM", {"intermediate_size": [64]}, ["intermediate_size has 1 values for 2 layers"]),
        ("Gemma3nForCausalLM", {"activation_sparsity_pattern": [1.0, 0.0]}, ["activation_sparsity_pattern"]),
        ("Gemma3nForCausalLM", {"altup_active_idx": 4, "num_kv_shared_layers": 0}, ["altup_active_idx is 4"]),
        (
            "Gemma4ForCausalLM",
            {"hidden_size_per_layer_input": 0, "enable_moe_block": True},
            ["moe_intermediate_size"],
        ),
        ("GPTJForCausalLM", {"rotary_dim": 32}, ["rotary_dim 32", "16 numbers of a head"]),
        (
            "GPTNeoForCausalLM",
            {"attention_types": [[["local"], 3]]},
            ["3 layers in attention_types", "num_layers is 2"],
        ),
        ("GPTNeoForCausalLM", {"attention_types": [[["sparse"], 2]]}, ["sparse"]),
        ("Ernie4_5_MoeForCausalLM", {"moe_k": 65}, ["65 experts", "moe_num_experts"]),
    ],
)
def test_what_families_do_not_serve(tmp_path: Path, name: str, keys: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, LLAMA | {"architectures": [name], "num_key_value_heads": 2} | keys)
    for word in words:
        assert word in str(caught.value)


def test_kimi_k2_is_deepseek_v3(tmp_path: Path) -> None:
    """Its published config.json: one group, and a model_type and code of its own."""
    own = {"architectures": ["DeepseekV3ForCausalLM"], "model_type": "kimi_k2", "auto_map": {"AutoModel": "x.Y"}}
    chosen = {"scoring_func": "sigmoid", "topk_method": "noaux_tc", "n_group": 1, "topk_group": 1}
    sizes = {"n_routed_experts": 384, "first_k_dense_replace": 1, "q_lora_rank": 1536, "moe_layer_freq": 1}
    config = read(tmp_path, LLAMA | own | chosen | sizes)
    assert [each.experts for each in config.plan.mixtures] == [384]
    assert config.plan.attentions[0].latent is not None


@pytest.mark.parametrize(
    "name",
    [
        "PhiForCausalLM",
        "Phi3ForCausalLM",
        "Phi3ForSequenceClassification",
        "Ernie4_5ForCausalLM",
        "Ernie4_5_ForCausalLM",
        "Qwen2ForRewardModel",
        "Qwen3ForRewardModel",
    ],
)
def test_published_files_that_name_code_of_their_own(name: str, tmp_path: Path) -> None:
    """It is never run: code here replaces it."""
    named = {"auto_map": {"AutoModel": "modeling_x.Model"}, "architectures": [name], "num_key_value_heads": 2}
    assert read(tmp_path, LLAMA | named).architecture == name


def test_phi_4_mini(tmp_path: Path) -> None:
    """Its published config.json."""
    factors = {"short_factor": [1.0] * 48, "long_factor": [2.0] * 48}
    keys = {
        "architectures": ["Phi3ForCausalLM"],
        "auto_map": {"AutoModelForCausalLM": "modeling_phi3.Phi3ForCausalLM", "AutoTokenizer": "Xenova/gpt-4o"},
        "hidden_size": 3072,
        "intermediate_size": 8192,
        "max_position_embeddings": 131072,
        "model_type": "phi3",
        "num_attention_heads": 24,
        "num_hidden_layers": 32,
        "num_key_value_heads": 8,
        "original_max_position_embeddings": 4096,
        "partial_rotary_factor": 0.75,
        "rms_norm_eps": 1e-05,
        "rope_scaling": {"type": "longrope", **factors},
        "rope_theta": 10000.0,
        "sliding_window": 262144,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "vocab_size": 200064,
    }
    config = read(tmp_path, keys)
    rope = config.plan.attentions[0].rope
    assert config.context_len == 131072 and config.plan.tied_embeddings
    assert rope is not None and rope.part == 0.75 and rope.parameters["factor"] == 32.0


@pytest.mark.parametrize("name", ["LlamaForCausalLM", "MiniCPM3ForCausalLM"])
def test_code_that_may_do_something_else(name: str, tmp_path: Path) -> None:
    """The user may say that it does not."""
    named = {"auto_map": {"AutoModel": "modeling_x.Model"}, "architectures": [name]}
    with pytest.raises(ConfigError, match=f"a plain {name}, serve it without this code: --json-model-override-args"):
        read(tmp_path, LLAMA | named)
    config = ModelConfig.from_path(str(tmp_path), overrides={"auto_map": None})
    assert config.architecture == name
    with pytest.raises(ConfigError, match="choose a checkpoint of a built-in architecture"):
        read(tmp_path, LLAMA | named | {"architectures": ["AbcForCausalLM"]})


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("Ernie4_5_MoeForCausalLM", {"num_experts": 9, "num_experts_per_tok": 3}),
        ("Ernie4_5_MoeForCausalLM", {"num_experts": 9, "num_experts_per_tok": 3, "moe_k": 2, "moe_num_experts": 8}),
        ("HunYuanMoEV1ForCausalLM", {"num_local_experts": 9, "num_experts_per_tok": 3, "moe_topk": [1, 1]}),
    ],
)
def test_other_names_of_keys_come_first(name: str, keys: dict[str, Any], tmp_path: Path) -> None:
    """transformers reads them so."""
    config = read(tmp_path, LLAMA | {"architectures": [name]} | keys)
    assert {(each.experts, each.router.top_k) for each in config.plan.mixtures} == {(9, 3)}
