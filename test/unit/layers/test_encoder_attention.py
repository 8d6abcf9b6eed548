"""Whole prompts attend as each does alone, however they are grouped; and every pool is what its name says."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from mysglang.srt.layers.encoder_attention import SHORTEST, PromptGroups, PromptLayout, attend
from mysglang.srt.layers.pooler import POOLS, Pooler

HEADS, DIM = 2, 8


@settings(max_examples=40)
@given(st.lists(st.integers(1, 90), min_size=1, max_size=12))
def test_as_each_prompt_alone(lens: list[int]) -> None:
    torch.set_num_threads(1)
    layout = PromptLayout.of(lens)
    groups = PromptGroups(
        layout.groups, *(torch.from_numpy(column) for column in (layout.tokens, layout.real, layout.places))
    )
    q, k, v = torch.randn(3, sum(lens), HEADS * DIM, generator=torch.Generator().manual_seed(sum(lens)))
    found = attend(q, k, v, groups, HEADS)
    parts = [
        [one.view(1, -1, HEADS, DIM).transpose(1, 2) for one in prompt]
        for prompt in zip(*(x.split(lens) for x in (q, k, v)), strict=True)
    ]
    alone = [F.scaled_dot_product_attention(*prompt).transpose(1, 2).reshape(-1, HEADS * DIM) for prompt in parts]
    torch.testing.assert_close(found, torch.cat(alone), rtol=1e-5, atol=1e-5)


@settings(max_examples=100)
@given(st.lists(st.integers(1, 600), min_size=1, max_size=40))
def test_at_most_half_of_a_group_is_padding(lens: list[int]) -> None:
    layout = PromptLayout.of(lens)
    start = 0
    for group in layout.groups:
        real = layout.real[start : start + group.rows * group.length]
        assert group.padded == (not real.all())
        assert group.length <= SHORTEST or real.sum() * 2 >= len(real)
        start += len(real)
    assert layout.tokens[layout.places].tolist() == list(range(sum(lens)))


ROWS = [3, 1, 4]


@pytest.mark.parametrize("mode", POOLS)
def test_pools(mode: str) -> None:
    hidden = torch.randn(sum(ROWS), 5, generator=torch.Generator().manual_seed(0))
    expected = {
        "last": [part[-1] for part in hidden.split(ROWS)],
        "cls": [part[0] for part in hidden.split(ROWS)],
        "mean": [part.mean(0) for part in hidden.split(ROWS)],
        "max": [part.max(0).values for part in hidden.split(ROWS)],
        "mean_sqrt_len_tokens": [part.sum(0) / len(part) ** 0.5 for part in hidden.split(ROWS)],
        "weightedmean": [
            sum((i + 1) * token for i, token in enumerate(part)) / sum(range(1, len(part) + 1))
            for part in hidden.split(ROWS)
        ],
    }
    plain = Pooler(mode, normalize=False, head=lambda pooled: 2 * pooled)
    torch.testing.assert_close(plain.rows(hidden, torch.tensor(ROWS)), 2 * torch.stack(expected[mode]))
    normed = Pooler(mode, normalize=True, head=lambda pooled: 2 * pooled)
    torch.testing.assert_close(normed.rows(hidden, torch.tensor(ROWS)).norm(dim=1), torch.ones(3))


def test_pools_add_up_in_float32() -> None:
    hidden = torch.full((1000, 4), 1.01, dtype=torch.bfloat16)
    found = Pooler("mean", normalize=False, head=lambda pooled: pooled).rows(hidden, torch.tensor([1000]))
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, hidden[:1].float())
