"""The config.json of hybrids as published files spell it: the resulting plan, and refused values."""

import json
from pathlib import Path
from types import EllipsisType
from typing import Any

import pytest

from mysglang.srt.configs.checkpoint_sizes import num_parameters
from mysglang.srt.configs.layer_plan import AttentionPlan, NoMlpPlan, NormedStreamPlan
from mysglang.srt.configs.mixer_plan import ConvolutionPlan, Mamba2Plan, NoMixerPlan, SharedBlockPlan
from mysglang.srt.configs.model_config import ModelConfig
from mysglang.srt.errors import ConfigError

NEMOTRON_H: dict[str, Any] = {
    "architectures": ["NemotronHForCausalLM"],
    "auto_map": {"AutoConfig": "configuration_nemotron_h.NemotronHConfig"},
    "vocab_size": 131072,
    "hidden_size": 4096,
    "intermediate_size": 21504,
    "num_hidden_layers": 52,
    "hybrid_override_pattern": "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-",
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "time_step_limit": [0.0, float("inf")],
}
NEMOTRON_3: dict[str, Any] = {
    **NEMOTRON_H,
    "hidden_size": 2688,
    "intermediate_size": 1856,
    "hybrid_override_pattern": "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME",
    "num_key_value_heads": 2,
    "mamba_num_heads": 64,
    "n_routed_experts": 128,
    "n_shared_experts": 1,
    "num_experts_per_tok": 6,
    "moe_intermediate_size": 1856,
    "moe_shared_expert_intermediate_size": 3712,
    "routed_scaling_factor": 2.5,
}
BAMBA: dict[str, Any] = {
    "architectures": ["BambaForCausalLM"],
    "vocab_size": 128256,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "attn_layer_indices": [9, 18, 27],
    "mamba_d_head": 64,
    "mamba_d_state": 128,
    "max_position_embeddings": 4096,
}
NEXT: dict[str, Any] = {
    "architectures": ["Qwen3NextForCausalLM"],
    "vocab_size": 151936,
    "hidden_size": 2048,
    "intermediate_size": 5120,
    "num_hidden_layers": 48,
    "num_attention_heads": 16,
    "max_position_embeddings": 262144,
}
GRANITE: dict[str, Any] = {
    "architectures": ["GraniteMoeHybridForCausalLM"],
    "vocab_size": 100352,
    "hidden_size": 1536,
    "intermediate_size": 512,
    "shared_intermediate_size": 1024,
    "num_hidden_layers": 40,
    "layer_types": ["attention" if layer % 10 == 5 else "mamba" for layer in range(40)],
    "num_attention_heads": 12,
    "num_key_value_heads": 4,
    "num_local_experts": 64,
    "num_experts_per_tok": 6,
    "mamba_n_heads": 48,
    "mamba_d_state": 128,
    "position_embedding_type": "nope",
    "tie_word_embeddings": True,
}
KIMI: dict[str, Any] = {
    "architectures": ["KimiLinearForCausalLM"],
    "auto_map": {"AutoConfig": "configuration_kimi.KimiLinearConfig"},
    "vocab_size": 163840,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 27,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "head_dim": 72,
    "kv_lora_rank": 512,
    "q_lora_rank": None,
    "linear_attn_config": {
        "full_attn_layers": [4, 8, 12, 16, 20, 24, 27],
        "kda_layers": [layer for layer in range(1, 27) if layer % 4],
        "head_dim": 128,
        "num_heads": 32,
        "short_conv_kernel_size": 4,
    },
    "mla_use_nope": True,
    "model_max_length": 1048576,
    "moe_intermediate_size": 1024,
    "moe_renormalize": True,
    "moe_router_activation_func": "sigmoid",
    "num_experts": 256,
    "num_experts_per_token": 8,
    "num_shared_experts": 1,
    "num_expert_group": 1,
    "topk_group": 1,
    "routed_scaling_factor": 2.446,
    "first_k_dense_replace": 1,
}
MINIMAX: dict[str, Any] = {
    "architectures": ["MiniMaxText01ForCausalLM"],
    "auto_map": {"AutoConfig": "configuration_minimax_text_01.MiniMaxText01Config"},
    "vocab_size": 200064,
    "hidden_size": 6144,
    "intermediate_size": 9216,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "rotary_dim": 64,
    "attn_type_list": [int(layer % 8 == 7) for layer in range(80)],
    "num_local_experts": 32,
    "num_experts_per_tok": 2,
    "max_position_embeddings": 10240000,
    "rope_theta": 10000000,
    "layernorm_full_attention_alpha": 3.5,
    "layernorm_linear_attention_alpha": 3.5,
    "layernorm_mlp_alpha": 3.5,
    "postnorm": True,
    "shared_intermediate_size": 0,
}
JAMBA: dict[str, Any] = {
    "architectures": ["JambaForCausalLM"],
    "vocab_size": 65536,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "mamba_dt_rank": 256,
    "max_position_embeddings": 262144,
}
FALCON_MAMBA: dict[str, Any] = {
    "architectures": ["FalconMambaForCausalLM"],
    "vocab_size": 65024,
    "hidden_size": 4096,
    "num_hidden_layers": 64,
    "intermediate_size": 8192,
    "expand": 16,
    "conv_kernel": 4,
    "state_size": 16,
    "time_step_rank": 256,
    "tie_word_embeddings": False,
}
CODESTRAL: dict[str, Any] = {
    "architectures": ["Mamba2ForCausalLM"],
    "vocab_size": 32768,
    "hidden_size": 4096,
    "num_hidden_layers": 64,
    "num_heads": 128,
    "head_dim": 64,
    "n_groups": 8,
    "state_size": 128,
    "time_step_limit": [0.0, float("inf")],
}
LFM2: dict[str, Any] = {
    "architectures": ["Lfm2ForCausalLM"],
    "vocab_size": 65536,
    "hidden_size": 2048,
    "intermediate_size": 12288,
    "block_ff_dim": 12288,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "full_attn_idxs": [2, 5, 8, 10, 12, 14],
    "conv_L_cache": 3,
    "tie_embedding": True,
}

ZAMBA2_USES = [6, 11, 17, 23, 29, 35, 41, 47, 53, 59, 65, 71, 77]
ZAMBA2: dict[str, Any] = {
    "architectures": ["Zamba2ForCausalLM"],
    "vocab_size": 32000,
    "hidden_size": 3584,
    "intermediate_size": 14336,
    "num_hidden_layers": 81,
    "layers_block_type": ["hybrid" if layer in ZAMBA2_USES else "mamba" for layer in range(81)],
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "n_mamba_heads": 112,
    "mamba_ngroups": 2,
    "mamba_d_state": 64,
    "num_mem_blocks": 2,
    "adapter_rank": 128,
    "use_mem_rope": True,
    "use_shared_attention_adapter": False,
}

OLMO: dict[str, Any] = {
    "architectures": ["OlmoHybridForCausalLM"],
    "vocab_size": 100352,
    "hidden_size": 3840,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 30,
}


def read(folder: Path, keys: dict[str, Any], **more: Any) -> ModelConfig:
    (folder / "config.json").write_text(json.dumps({**keys, **more}))
    return ModelConfig.from_path(str(folder))


@pytest.mark.parametrize(
    ("keys", "billions"),
    [
        (NEMOTRON_H, 8.10),
        (NEMOTRON_3, 31.58),
        (BAMBA, 9.78),
        (KIMI, 49.12),
        (MINIMAX, 456.1),
        (JAMBA, 51.57),
        (GRANITE, 6.94),
        (LFM2, 1.17),
        (FALCON_MAMBA, 7.27),
        (CODESTRAL, 7.29),
        (ZAMBA2, 7.36),
    ],
    ids=lambda each: str(each)[:30],
)
def test_sizes_are_those_of_the_published_models(keys: dict[str, Any], billions: float, tmp_path: Path) -> None:
    assert num_parameters(read(tmp_path, keys)) / 1e9 == pytest.approx(billions, rel=0.005)


@pytest.mark.parametrize(("keys", "billions"), [(MINIMAX, 45.9), (JAMBA, 11.6), (KIMI, 2.73)])
def test_a_token_meets_a_few_experts(keys: dict[str, Any], billions: float, tmp_path: Path) -> None:
    """The published number of parameters that are active, in thousand millions: without embeddings and head, which are
    small beside all experts.
    """
    config = read(tmp_path, keys)
    plan, hidden = config.plan, config.hidden_size
    assert plan.used_parameters(hidden) / 1e9 == pytest.approx(billions, rel=0.005)
    of_layers = num_parameters(config) - 2 * hidden * config.vocab_size
    assert plan.used_share(hidden) == pytest.approx(billions * 1e9 / of_layers, rel=0.01)


def test_layers_of_one_part(tmp_path: Path) -> None:
    config = read(tmp_path, NEMOTRON_H)
    kinds = {"M": (Mamba2Plan, NoMlpPlan), "*": (AttentionPlan, NoMlpPlan), "-": NoMixerPlan}
    for letter, layer in zip(NEMOTRON_H["hybrid_override_pattern"], config.plan.layers, strict=True):
        kind = kinds[letter]
        assert isinstance(layer.attention, kind) if letter == "-" else isinstance(layer.mlp, NoMlpPlan)
        assert letter == "-" or isinstance(layer.attention, kind[0])
    assert [attention.rope for attention in config.plan.attentions] == [None] * 4


def test_layers_named_otherwise(tmp_path: Path) -> None:
    plan = read(tmp_path, GRANITE).plan
    assert [index for index, layer in enumerate(plan.layers) if isinstance(layer.attention, AttentionPlan)] == [
        5,
        15,
        25,
        35,
    ]
    assert {attention.rope for attention in plan.attentions} == {None}
    config = read(tmp_path, KIMI)
    attends = [index for index, layer in enumerate(config.plan.layers) if isinstance(layer.attention, AttentionPlan)]
    assert attends == [3, 7, 11, 15, 19, 23, 26] and config.context_len == 1048576
    plan = read(tmp_path, MINIMAX).plan
    attends = [index for index, layer in enumerate(plan.layers) if isinstance(layer.attention, AttentionPlan)]
    assert attends == list(range(7, 80, 8)) and {attention.rope.part for attention in plan.attentions} == {0.5}
    assert {layer.normed_stream for layer in plan.layers} == {NormedStreamPlan(attention=(3.5, 1.0), mlp=(3.5, 1.0))}
    plan = read(tmp_path, LFM2).plan
    assert [index for index, layer in enumerate(plan.layers) if isinstance(layer.attention, ConvolutionPlan)] == [
        0, 1, 3, 4, 6, 7, 9, 11, 13, 15,
    ]  # fmt: skip
    assert plan.tied_embeddings


def test_uses_of_a_block(tmp_path: Path) -> None:
    """Uses take the blocks in turn. A token is multiplied with a block once for each use, and a block is counted once
    among the parameters.
    """
    config = read(tmp_path, ZAMBA2)
    plan = config.plan
    mixers = {index: each.attention for index, each in enumerate(plan.layers) if len(each.attention.members) == 2}
    assert list(mixers) == ZAMBA2_USES
    assert [block.uses for block in plan.blocks] == [(0, 2, 4, 6, 8, 10, 12), (1, 3, 5, 7, 9, 11)]
    assert [each.block for each in mixers.values() if isinstance(each, SharedBlockPlan)] == [0, 1] * 6 + [0]
    assert len(plan.attentions) == 13 and len(plan.states) == 81
    assert {each.head_dim for each in plan.attentions} == {224}
    # Eleven further uses of the matrices that have no adapters.
    block = 3 * 7168 * 7168 + 7168 * 3584 + 3 * 3584 * 14336
    assert plan.used_parameters(3584) == num_parameters(config) - 32000 * 3584 + 11 * block
    assert plan.used_share(3584) > 1.5
    long = read(tmp_path, ZAMBA2, use_long_context=True)
    assert (config.context_len, long.context_len) == (4096, 16384)
    unturned = read(tmp_path, ZAMBA2, use_mem_rope=False).plan
    assert {attention.rope for attention in unturned.attentions} == {None}


@pytest.mark.parametrize(
    ("whole", "rotary", "part"), [(0.5, None, 0.5), (0.5, 0.75, 0.75), (None, 0.75, 0.75), (..., None, 0.25)]
)
def test_the_turned_part_of_two_spellings(
    whole: float | EllipsisType | None, rotary: float | None, part: float, tmp_path: Path
) -> None:
    """The rotary parameters come first, as in transformers. Ellipsis: the key is missing."""
    parameters = {"rope_type": "default", "rope_theta": 1000.0, "partial_rotary_factor": rotary}
    top = {} if whole is ... else {"partial_rotary_factor": whole}
    plan = read(tmp_path, NEXT, rope_parameters=parameters, **top).plan
    assert {attention.rope.part for attention in plan.attentions if attention.rope is not None} == {part}


@pytest.mark.parametrize(
    ("keys", "theta"),
    [
        ({}, 10000.0),
        ({"rope_theta": 5e5}, 5e5),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}, 5e5),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": None}}, None),
        ({"rope_theta": None}, None),
        ({"rope_parameters": None}, None),
        ({"rope_parameters": {"rope_type": None}}, None),
        ({"rope_parameters": {"rope_type": None, "rope_theta": None}}, None),
    ],
)
def test_positions_that_are_null_are_none(keys: dict[str, Any], theta: float | None, tmp_path: Path) -> None:
    plan = read(tmp_path, OLMO, **keys).plan
    thetas = [None if each.rope is None else each.rope.parameters["rope_theta"] for each in plan.attentions]
    assert thetas == [theta] * 8
    few = read(tmp_path, OLMO, num_hidden_layers=3, **keys).plan
    assert [isinstance(layer.attention, AttentionPlan) for layer in few.layers] == [False, False, True]


@pytest.mark.parametrize("limits", [[0, 1e308], [0.0, float("inf")], [0.0, {"__float__": "Infinity"}]])
def test_time_steps_whose_limits_cut_nothing(limits: list[Any], tmp_path: Path) -> None:
    """The first is that of Nemotron 3 Ultra."""
    assert read(tmp_path, NEMOTRON_H, time_step_limit=limits).num_layers == 52


@pytest.mark.parametrize(
    ("keys", "more", "says"),
    [
        (NEMOTRON_H, {"time_step_limit": [0.0]}, "a time_step_limit other than 0 and Infinity is not supported"),
        (NEMOTRON_H, {"time_step_limit": [0.0, "most"]}, "a time_step_limit other than 0 and Infinity"),
        (BAMBA, {"time_step_limit": [0.001, 0.1]}, "a time_step_limit other than 0 and Infinity is not supported"),
        (
            BAMBA,
            {"mamba_d_head": 48},
            "128 heads of mamba .mamba_n_heads. of 48 numbers .mamba_d_head. do not make 8192",
        ),
        (BAMBA, {"mamba_n_groups": 3}, "128 heads of mamba cannot be divided among 3 groups"),
        (BAMBA, {"hidden_act": "relu"}, "'relu' is not supported for layers of mamba"),
        (BAMBA, {"attn_layer_indices": []}, "no layer attends over keys"),
        (NEMOTRON_H, {"hybrid_override_pattern": "M*?"}, "layer type '\\?' is not supported"),
        (NEMOTRON_3, {"n_shared_experts": 2}, "n_shared_experts must be 1, not 2"),
        (NEMOTRON_3, {"num_experts_per_tok": 129}, "a token goes to 129 experts"),
        (GRANITE, {"layer_types": ["mamba"] * 40}, "no layer attends over keys"),
        (GRANITE, {"num_experts_per_tok": 65}, "a token goes to 65 experts"),
        (KIMI, {"mla_use_nope": False}, "mla_use_nope False is not supported"),
        (KIMI, {"moe_router_activation_func": "softmax"}, "moe_router_activation_func 'softmax' is not supported"),
        (KIMI, {"layer_types": ["linear_attention"] * 27}, "no layer attends over keys"),
        (KIMI, {"moe_renormalize": None}, "moe_renormalize must be true or false, not null"),
        (KIMI, {"linear_attn_config": [4]}, "linear_attn_config must be an object"),
        (MINIMAX, {"postnorm": False}, "postnorm False is not supported"),
        (MINIMAX, {"rotary_dim": 256}, "rotary_dim 256 is more than the 128 numbers of a head"),
        (MINIMAX, {"attn_type_list": [0] * 80}, "no layer attends over keys"),
        (MINIMAX, {"layer_types": ["conv"] * 80}, "layer type 'conv' is not supported"),
        (JAMBA, {"attn_layer_offset": 8}, "no layer attends over keys"),
        (JAMBA, {"num_experts_per_tok": 17}, "a token goes to 17 experts"),
        (JAMBA, {"hidden_act": "gelu"}, "hidden_act 'gelu' is not supported"),
        (FALCON_MAMBA, {"hidden_act": "gelu"}, "hidden_act 'gelu' is not supported"),
        (
            CODESTRAL,
            {"head_dim": 48},
            "128 heads of mamba .mamba_n_heads. of 48 numbers .mamba_d_head. do not make 8192",
        ),
        (CODESTRAL, {"time_step_limit": [0.001, 0.1]}, "a time_step_limit other than 0 and Infinity is not supported"),
        (OLMO, {"layer_types": ["linear_attention"] * 32}, "no layer attends over keys"),
        (OLMO, {"linear_num_key_heads": 7}, "30 value heads .linear_num_value_heads. cannot share 7 keys"),
        (OLMO, {"hidden_act": "gelu"}, "hidden_act 'gelu' is not supported"),
        (LFM2, {"full_attn_idxs": []}, "no layer attends over keys"),
        (ZAMBA2, {"layers_block_type": ["mamba"] * 81}, "no layer attends over keys"),
        (ZAMBA2, {"layers_block_type": ["mamba", "hybrid"]}, "2 layer_types for 81 layers"),
        (ZAMBA2, {"layers_block_type": ["attention"] * 81}, "layer type 'full_attention' is not supported"),
        (ZAMBA2, {"tie_word_embeddings": False}, "tie_word_embeddings False is not supported"),
        (ZAMBA2, {"mamba_ngroups": 3}, "112 heads of mamba cannot be divided among 3 groups"),
        (ZAMBA2, {"time_step_min": -1.0}, "time_step_min"),
        (
            ZAMBA2,
            {"use_shared_attention_adapter": True, "num_key_value_heads": 8},
            "use_shared_attention_adapter needs as many key-value heads as attention heads, not 8 and 32",
        ),
        (LFM2, {"layer_types": ["conv"] * 15 + ["full"]}, "layer type 'full' is not supported"),
    ],
)
def test_what_is_not_there_is_refused(keys: dict[str, Any], more: dict[str, Any], says: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=says):
        read(tmp_path, keys, **more)
