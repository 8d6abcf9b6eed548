"""The config.json of models with an indexer, as published files and as transformers spell it, and refused values."""

from pathlib import Path
from typing import Any

import pytest
from transformers import GlmMoeDsaConfig

from mysglang.srt.configs.floors import ModelSizes
from mysglang.srt.configs.layer_plan import ChoicePlan
from mysglang.srt.configs.model_config import ModelConfig
from mysglang.srt.configs.rank_split import check_stages
from mysglang.srt.errors import ConfigError
from unit.configs.test_deepseek_config import V3, problem, read, sparse_layers

V32: dict[str, Any] = V3 | {
    "architectures": ["DeepseekV32ForCausalLM"],
    "model_type": "deepseek_v32",
    "index_head_dim": 128,
    "index_n_heads": 64,
    "index_topk": 2048,
}
GLM5: dict[str, Any] = V32 | {
    "architectures": ["GlmMoeDsaForCausalLM"],
    "num_hidden_layers": 6,
    "q_lora_rank": 2048,
    "index_n_heads": 32,
    "indexer_rope_interleave": True,
    "n_group": 1,
    "topk_group": 1,
}


def choices(config: ModelConfig) -> list[ChoicePlan]:
    plans = [each.latent for each in config.plan.attentions]
    return [plan.choice for plan in plans if plan is not None and plan.choice is not None]


def test_v32(tmp_path: Path) -> None:
    config = read(tmp_path, V32)
    plan, found = config.plan.attentions[0], choices(config)
    assert [choice.layer for choice in found] == list(range(61)) and sparse_layers(config.plan.layers) == [
        *range(3, 61)
    ]
    assert (found[0].top_k, plan.kept_size, plan.latent and plan.latent.interleaved) == (2048, 576 + 128, True)
    indexer = found[0].indexer
    assert indexer is not None and (indexer.heads, indexer.head_dim, indexer.interleaved) == (64, 128, False)
    # The layer after the last drafts tokens; it is not loaded.
    assert config.plan.unused_layers == 1
    without = read(tmp_path, {key: value for key, value in V32.items() if not key.startswith("index_")})
    assert without.plan == config.plan


def test_the_spelling_of_transformers(tmp_path: Path) -> None:
    rope = {**V32["rope_scaling"], "rope_type": "yarn", "rope_theta": 10000}
    theirs = {key: value for key, value in V32.items() if key not in ("rope_scaling", "rope_theta", "topk_method")}
    theirs |= {"rope_parameters": rope, "head_dim": 64, "layer_types": ["deepseek_sparse_attention"] * 61}
    theirs |= {"mlp_layer_types": ["dense"] * 3 + ["sparse"] * 58}
    assert read(tmp_path, theirs).plan == read(tmp_path, V32).plan


def test_a_step_reads_all_index_keys_and_few_rows(tmp_path: Path) -> None:
    sizes = ModelSizes.of(read(tmp_path, V32))
    assert sizes.kv_token_bytes() == 61 * (576 + 128) * 2
    assert sizes.read_bytes == {2048: 61 * 576 * 2, None: 61 * 128 * 2}


@pytest.mark.parametrize(
    ("keys", "layers"),
    [
        ({}, [0, 1, 2, 3, 4, 5]),
        ({"indexer_types": ["full", "shared", "shared", "full", "shared", "full"]}, [0, 0, 0, 3, 3, 5]),
        ({"index_topk_pattern": "FFSSFS"}, [0, 1, 1, 1, 4, 4]),
        ({"index_topk_freq": 3}, [0, 1, 1, 1, 4, 4]),
        ({"index_topk_freq": 2, "index_skip_topk_offset": 4}, [0, 1, 2, 3, 3, 5]),
    ],
)
def test_layers_of_glm_that_share_a_choice(keys: dict[str, Any], layers: list[int], tmp_path: Path) -> None:
    """The keys mean what they mean for transformers."""
    config = read(tmp_path, GLM5 | keys)
    found = choices(config)
    assert [choice.layer for choice in found] == layers
    kept = [each.kept_size for each in config.plan.attentions]
    assert kept == [704 if layer == index else 576 for index, layer in enumerate(layers)]
    assert all(choice.indexer.interleaved for choice in found if choice.indexer is not None)
    theirs = GlmMoeDsaConfig(num_hidden_layers=6, **keys).indexer_types
    assert theirs == ["full" if layer == index else "shared" for index, layer in enumerate(layers)]


def test_a_choice_does_not_cross_stages(tmp_path: Path) -> None:
    config = read(tmp_path, GLM5 | {"index_topk_pattern": "FSSFSS"})
    check_stages(config, 2)
    with pytest.raises(ConfigError, match=r"--pp-size 3: stage 1 would have layers 2 to 3, and some attend to the tok"):
        check_stages(config, 3)


@pytest.mark.parametrize(
    ("base", "changes", "says"),
    [
        (V32, {"layer_types": ["full_attention"] * 61}, "layer type 'full_attention' is not supported"),
        (V32, {"indexer_rope_interleave": True}, "indexer_rope_interleave True is not supported"),
        (GLM5, {"indexer_rope_interleave": False}, "indexer_rope_interleave False is not supported"),
        (V32, {"rope_interleave": False}, "rope_interleave False is not supported; it must be True"),
        (V32, {"q_lora_rank": None}, "q_lora_rank is null"),
        (V32, {"index_head_dim": 32}, "index_head_dim 32 must be at least qk_rope_head_dim 64"),
        (V32, {"index_topk": 0}, "index_topk"),
        (GLM5, {"indexer_types": ["shared"] + ["full"] * 5}, "indexer_types (or index_topk_pattern) must say full"),
        (GLM5, {"index_topk_pattern": "FFF"}, "each of 6 layers"),
        (GLM5, {"index_topk_pattern": "FFFFFX"}, "each of 6 layers"),
    ],
)
def test_what_is_refused(base: dict[str, Any], changes: dict[str, Any], says: str, tmp_path: Path) -> None:
    assert says in problem(tmp_path, base | changes)
