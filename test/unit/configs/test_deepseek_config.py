"""The config.json of a DeepSeek model as published files spell it: the resulting plan, and refused values."""

import json
from pathlib import Path
from typing import Any

import pytest

from mysglang.srt.configs.layer_plan import LayerPlan, MixturePlan
from mysglang.srt.configs.model_config import ModelConfig
from mysglang.srt.errors import ConfigError

YARN = {
    "type": "yarn",
    "factor": 40,
    "original_max_position_embeddings": 4096,
    "beta_fast": 32,
    "beta_slow": 1,
    "mscale": 0.707,
    "mscale_all_dim": 0.707,
}
LITE: dict[str, Any] = {
    "architectures": ["DeepseekV2ForCausalLM"],
    "vocab_size": 102400,
    "hidden_size": 2048,
    "intermediate_size": 10944,
    "moe_intermediate_size": 1408,
    "num_hidden_layers": 27,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "n_shared_experts": 2,
    "n_routed_experts": 64,
    "routed_scaling_factor": 1.0,
    "kv_lora_rank": 512,
    "q_lora_rank": None,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "qk_nope_head_dim": 128,
    "topk_method": "greedy",
    "n_group": 1,
    "topk_group": 1,
    "num_experts_per_tok": 6,
    "moe_layer_freq": 1,
    "first_k_dense_replace": 1,
    "norm_topk_prob": False,
    "scoring_func": "softmax",
    "max_position_embeddings": 163840,
    "rope_theta": 10000,
    "rope_scaling": YARN,
    "attention_bias": False,
    "torch_dtype": "bfloat16",
}
V3: dict[str, Any] = LITE | {
    "architectures": ["DeepseekV3ForCausalLM"],
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "hidden_size": 7168,
    "num_hidden_layers": 61,
    "n_shared_experts": 1,
    "n_routed_experts": 256,
    "routed_scaling_factor": 2.5,
    "q_lora_rank": 1536,
    "topk_method": "noaux_tc",
    "n_group": 8,
    "topk_group": 4,
    "num_experts_per_tok": 8,
    "first_k_dense_replace": 3,
    "norm_topk_prob": True,
    "scoring_func": "sigmoid",
    "num_nextn_predict_layers": 1,
    "rope_scaling": YARN | {"mscale": 1.0, "mscale_all_dim": 1.0},
}


def read(folder: Path, config: dict[str, Any]) -> ModelConfig:
    (folder / "config.json").write_text(json.dumps(config))
    return ModelConfig.from_path(str(folder))


def problem(folder: Path, config: dict[str, Any]) -> str:
    with pytest.raises(ConfigError) as caught:
        read(folder, config)
    return str(caught.value)


def sparse_layers(layers: tuple[LayerPlan, ...]) -> list[int]:
    return [index for index, layer in enumerate(layers) if isinstance(layer.mlp, MixturePlan)]


def test_v2_lite(tmp_path: Path) -> None:
    config = read(tmp_path, LITE)
    plan, layers = config.plan.layers[0].attention, config.plan.layers
    assert config.context_len == 163840
    assert (plan.num_heads, plan.num_kv_heads, plan.head_dim, plan.value_dim, plan.rope_dim) == (16, 1, 576, 512, 64)
    assert plan.kept_size == 576
    # 0.707 * 0.1 * ln 40 + 1, squared, over the root of 192.
    assert plan.scale == pytest.approx(1.26080**2 / 192**0.5, rel=1e-4)
    assert plan.latent is not None and plan.latent.query_rank is None and plan.latent.interleaved
    assert sparse_layers(layers) == list(range(1, 27))
    mlp = layers[1].mlp
    assert isinstance(mlp, MixturePlan) and (mlp.experts, mlp.router.top_k, mlp.router.scale) == (64, 6, 1.0)
    assert mlp.shared is not None and (mlp.shared.intermediate_size, mlp.shared.gated) == (2 * 1408, False)
    assert config.plan.unused_layers == 0


def test_v3(tmp_path: Path) -> None:
    config = read(tmp_path, V3)
    plan, mlp = config.plan.layers[0].attention, config.plan.layers[3].mlp
    assert plan.scale == pytest.approx(1.36889**2 / 192**0.5, rel=1e-4)
    assert plan.latent is not None and plan.latent.query_rank == 1536
    assert sparse_layers(config.plan.layers) == list(range(3, 61))
    assert isinstance(mlp, MixturePlan)
    router = mlp.router
    assert (router.kind, router.groups, router.kept_groups, router.corrected) == ("sigmoid", 8, 4, True)
    assert (router.top_k, router.renormalize, router.scale) == (8, True, 2.5)
    assert config.plan.unused_layers == 1


def test_the_other_spelling_of_rope(tmp_path: Path) -> None:
    """Spelling of transformers 5."""
    given = {key: value for key, value in LITE.items() if key not in ("rope_scaling", "rope_theta")}
    given["rope_parameters"] = {**YARN, "rope_type": "yarn", "rope_theta": 10000}
    assert read(tmp_path, given).plan == read(tmp_path, LITE).plan


def test_code_that_published_files_name_is_passed_over(tmp_path: Path) -> None:
    """A built-in family stands in for it. What no family stands in for is refused."""
    named = {"auto_map": {"AutoModelForCausalLM": "modeling_deepseek.DeepseekV2ForCausalLM"}}
    assert read(tmp_path, LITE | named).plan == read(tmp_path, LITE).plan
    other = {"architectures": ["LlamaForCausalLM"]}
    assert "never runs such code" in problem(tmp_path, LITE | named | other)


def test_layers_of_glm(tmp_path: Path) -> None:
    """A model whose hidden state is no multiple of its heads."""
    glm = V3 | {"architectures": ["Glm4MoeLiteForCausalLM"], "num_hidden_layers": 4, "first_k_dense_replace": 2}
    glm |= {"hidden_size": 2048, "num_attention_heads": 20, "num_key_value_heads": 20}
    assert sparse_layers(read(tmp_path, glm).plan.layers) == [2, 3]
    types = ["sparse", "dense", "sparse", "dense"]
    assert sparse_layers(read(tmp_path, glm | {"mlp_layer_types": types}).plan.layers) == [0, 2]
    for wrong in (types[:3], [*types[:3], "other"]):
        assert "mlp_layer_types must name one of dense, sparse" in problem(tmp_path, glm | {"mlp_layer_types": wrong})


def test_experts_in_every_second_layer(tmp_path: Path) -> None:
    layers = read(tmp_path, LITE | {"moe_layer_freq": 2, "num_hidden_layers": 6}).plan.layers
    assert sparse_layers(layers) == [2, 4]
    for none in ({"n_routed_experts": None}, {"n_routed_experts": 0}, {"first_k_dense_replace": 6}):
        assert sparse_layers(read(tmp_path, LITE | {"num_hidden_layers": 6} | none).plan.layers) == []


def test_without_a_stretch_scores_are_as_they_are(tmp_path: Path) -> None:
    plain = ({"rope_scaling": None}, {"rope_scaling": {key: YARN[key] for key in YARN if key != "mscale_all_dim"}})
    for keys in plain:
        assert read(tmp_path, LITE | keys).plan.layers[0].attention.scale == 192**-0.5


@pytest.mark.parametrize(
    ("base", "changes", "says"),
    [
        (
            LITE,
            {"topk_method": "noaux_tc"},
            "topk_method 'noaux_tc' is not supported; it may be greedy or group_limited_greedy",
        ),
        (V3, {"topk_method": "greedy"}, "topk_method 'greedy' is not supported; it may be noaux_tc"),
        (LITE, {"scoring_func": "sigmoid"}, "scoring_func 'sigmoid' is not supported"),
        (V3, {"scoring_func": "softmax"}, "scoring_func 'softmax' is not supported"),
        (LITE, {"norm_topk_prob": True}, "norm_topk_prob is not supported for DeepSeek-V2"),
        (LITE, {"num_key_value_heads": 8}, "num_key_value_heads is 8"),
        (LITE, {"qk_rope_head_dim": 63}, "qk_rope_head_dim 63 must be even"),
        (LITE, {"num_experts_per_tok": None}, "a token goes to 0 experts (num_experts_per_tok)"),
        (LITE, {"num_experts_per_tok": 65}, "a token goes to 65 experts"),
        (LITE, {"topk_method": "group_limited_greedy", "n_group": None}, "64 experts make no 0 groups"),
        (V3, {"n_group": 7}, "256 experts make no 7 groups of one size (n_group)"),
        (V3, {"topk_group": 9}, "9 (topk_group) of 8 groups"),
        (V3, {"topk_group": 1, "num_experts_per_tok": 33}, "1 (topk_group) of 8 groups (n_group) of 32 experts"),
        (V3, {"n_group": 256, "topk_group": 8}, "ranked by their best two experts, and have 1"),
        (V3, {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}, "the checkpoint is"),
    ],
)
def test_what_is_refused(base: dict[str, Any], changes: dict[str, Any], says: str, tmp_path: Path) -> None:
    assert says in problem(tmp_path, base | changes)
