"""Each family's logits equal those of transformers on a small random checkpoint, however a prompt is cut into steps."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from fixtures.forward_batches import PageRows, Row, forward_batch, worker_batch
from fixtures.reference_attention import ReferenceAttention
from fixtures.tiny_checkpoints import VOCAB_SIZE, make_checkpoint
from mysglang.srt.configs.load_config import LoadConfig
from mysglang.srt.configs.model_config import ModelConfig
from mysglang.srt.forward.forward_mode import ForwardMode
from mysglang.srt.model_executor.tail import tail_of
from mysglang.srt.model_loader.loader import load_model
from mysglang.srt.models.causal_lm import CausalLM

# What distinguishes the variants of a family beyond its usual sizes.
VARIANTS = {
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
    "gemma2": ("gemma2", {}),
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

PROMPTS = {
    slot: np.random.default_rng(slot).integers(0, VOCAB_SIZE, length).tolist()
    for slot, length in enumerate((49, 5, 32, 17))
}
# Rows 4 and 5 begin as row 0 does.
PROMPTS[4] = PROMPTS[0][:32] + PROMPTS[3]
PROMPTS[5] = PROMPTS[0][:48] + PROMPTS[1]


def whole(pages: PageRows) -> list[list[Row]]:
    return [[Row(slot, PROMPTS[slot]) for slot in (0, 1, 2, 3)]]


def chunked(pages: PageRows) -> list[list[Row]]:
    """Chunks of 7 of the long row, beside chunks of 3 and 1 of others, until all is in."""
    sizes = {0: 7, 2: 3, 3: 1}
    return [
        [
            Row(slot, PROMPTS[slot][start : start + size], start)
            for slot, size in sizes.items()
            if (start := step * size) < len(PROMPTS[slot])
        ]
        for step in range(17)
    ]


def cached_prefix(pages: PageRows) -> list[list[Row]]:
    """Row 4 shares pages that row 0 writes in the same step; row 5 shares them a step later."""
    pages.extend(0, 48)
    pages.share(4, 0, 32)
    pages.share(5, 0, 48)
    return [
        [Row(4, PROMPTS[4][32:], 32), Row(0, PROMPTS[0])],
        [Row(5, PROMPTS[5][48:], 48), Row(1, PROMPTS[1])],
    ]


def decode(pages: PageRows) -> list[list[Row]]:
    """A prompt each, then token by token."""
    prompt = {0: 40, 1: 1, 2: 31}
    steps = [[Row(slot, PROMPTS[slot][:length]) for slot, length in prompt.items()]]
    for i in range(9):
        alive = [slot for slot, length in prompt.items() if length + i < len(PROMPTS[slot])]
        steps.append([Row(slot, [PROMPTS[slot][prompt[slot] + i]], prompt[slot] + i) for slot in alive])
    return steps


SCENARIOS: list[Callable[[PageRows], list[list[Row]]]] = [whole, chunked, cached_prefix, decode]


@dataclass(frozen=True)
class Pair:
    """The same checkpoint in both worlds, and what transformers says of each prompt."""

    theirs: PreTrainedModel
    ours: CausalLM
    expected: dict[int, Tensor]


@pytest.fixture(scope="module", params=VARIANTS)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return load_pair(tmp_path_factory.mktemp("checkpoint"), request.param, torch.float32)


def load_pair(folder: Path, variant: str, dtype: torch.dtype) -> Pair:
    family, overrides = VARIANTS[variant]
    theirs = make_checkpoint(family, folder, dtype=dtype, **overrides)
    config = ModelConfig.from_path(str(folder), dtype=str(dtype).removeprefix("torch."))
    ours = load_model(config, LoadConfig(), torch.device("cpu"), dtype)
    with torch.no_grad():
        expected = {slot: theirs(torch.tensor([ids])).logits[0].float() for slot, ids in PROMPTS.items()}
    return Pair(theirs, ours, expected)


@torch.no_grad()
def run(
    model: CausalLM, pages: PageRows, steps: list[list[Row]], *, last_only: bool = False
) -> dict[int, dict[int, Tensor]]:
    """Logits by slot and position, of every token that the steps hold, or of the last of each row in each step."""
    backend = ReferenceAttention(pages)
    logits: dict[int, dict[int, Tensor]] = {}
    for i, rows in enumerate(steps):
        mode = ForwardMode.DECODE if i and all(len(row.ids) == 1 for row in rows) else ForwardMode.EXTEND
        batch = forward_batch(worker_batch(rows, pages, mode=mode), backend)
        if last_only:
            batch.tail = tail_of(batch, batch.extend_lens.cumsum(0) - 1)
        of_tokens = iter(model.compute_logits(model(batch)).float())
        for row in rows:
            for position in range(row.start, row.start + len(row.ids))[-1 if last_only else 0 :]:
                logits.setdefault(row.slot, {})[position] = next(of_tokens)
    return logits


@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
@pytest.mark.parametrize("last_only", [False, True])
def test_logits_in_float32(
    pair: Pair, scenario: Callable[[PageRows], list[list[Row]]], page_size: int, last_only: bool
) -> None:
    pages = PageRows(page_size=page_size, num_pages=400)
    for slot, by_position in run(pair.ours, pages, scenario(pages), last_only=last_only).items():
        found = torch.stack(list(by_position.values()))
        torch.testing.assert_close(found, pair.expected[slot][list(by_position)], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_in_bfloat16(variant: str, tmp_path: Path) -> None:
    """Both worlds round, in different places: as far from the truth as transformers itself, or nearer.

    The second bound is that of the middle position: rounding turns near ties of a router, which sends a token to other
    experts than in float32, in both worlds.
    """
    pair = load_pair(tmp_path, variant, torch.bfloat16)
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
        assert median(by_token) < 0.05


def relative_error(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).norm() / expected.norm())
