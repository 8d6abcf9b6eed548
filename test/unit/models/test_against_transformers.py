"""Each family's logits equal those of transformers on a small random checkpoint, however a prompt is cut into steps."""

from pathlib import Path
from statistics import median
from typing import Any

import pytest
import torch
from torch import Tensor

from fixtures.forward_batches import PageRows
from fixtures.transformers_pair import PROMPTS, SCENARIOS, Pair, Scenario, check_scenario, decode, load_pair, run

# What distinguishes the variants of a family beyond its usual sizes.
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama with biases, tied": ("llama", {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True}),
    "mistral with a window": ("mistral", {}),
    "mistral without a window": ("mistral", {"sliding_window": None, "head_dim": 24}),
    "qwen2": ("qwen2", {}),
    "qwen2 with windows on some layers, tied": (
        "qwen2",
        {"tie_word_embeddings": True, "use_sliding_window": True, "sliding_window": 20, "max_window_layers": 1},
    ),
    "qwen3": ("qwen3", {}),
    "gemma2, tied": ("gemma2", {"tie_word_embeddings": True}),
    "gemma2 without windows and caps": (
        "gemma2",
        {"layer_types": ["full_attention"] * 3, "attn_logit_softcapping": None, "final_logit_softcapping": None},
    ),
    "qwen3, tied": ("qwen3", {"tie_word_embeddings": True, "attention_bias": True}),
    "qwen3_moe": ("qwen3_moe", {}),
    "qwen3_moe with a dense layer and a window": (
        "qwen3_moe",
        {"mlp_only_layers": [1], "norm_topk_prob": False, "use_sliding_window": True, "sliding_window": 20},
    ),
}


@pytest.fixture(scope="module", params=VARIANTS)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    family, overrides = VARIANTS[request.param]
    return load_pair(family, tmp_path_factory.mktemp("checkpoint"), torch.float32, **overrides)


@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
@pytest.mark.parametrize("last_only", [False, True])
def test_logits_in_float32(pair: Pair, scenario: Scenario, page_size: int, last_only: bool) -> None:
    check_scenario(pair, scenario, page_size, last_only=last_only)


@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_in_bfloat16(variant: str, tmp_path: Path) -> None:
    """Both worlds round, in different places: as far from the truth as transformers itself, or nearer.

    Of a family with experts the second bound is that of the middle position: rounding turns near ties of a router,
    which sends a token to other experts than in float32, in both worlds.
    """
    family, overrides = VARIANTS[variant]
    pair = load_pair(family, tmp_path, torch.bfloat16, **overrides)
    exact = pair.theirs.float()
    pages = PageRows(page_size=16)
    for slot, by_position in run(pair.ours, pages, decode(pages)).items():
        found = torch.stack(list(by_position.values()))
        with torch.no_grad():
            truth = exact(torch.tensor([PROMPTS[slot]])).logits[0][list(by_position)]
        ours = relative_error(found, truth)
        theirs = relative_error(pair.expected[slot][list(by_position)], truth)
        assert ours < max(1.25 * theirs, 0.01)
        by_token = [relative_error(*both) for both in zip(found, truth, strict=True)]
        assert (median(by_token) if "moe" in family else ours) < 0.05


def relative_error(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).norm() / expected.norm())
