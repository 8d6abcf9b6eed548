"""The sampler of rows on a GPU against its definition in float64, at real sizes, and each row alone and in company."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import pytest
import torch

from mysgl_kernel import sampling

sys.path.insert(0, str(Path(__file__).parent))
from sampling_case import TOP, Case, check

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0), reason="no Hopper device"
)


def sampled(case: Case, dtype: torch.dtype) -> tuple[torch.Tensor, sampling.RowLogprobs]:
    """The kernel's answers on the host; what it changed is put back into the case."""
    there = case.arguments("cuda", dtype)
    # Freed at once: the allocator hands out poison next, so that nothing unwritten passes.
    torch.full((len(there[0]) * (2 + 2 * TOP),), math.nan, device="cuda")
    tokens, logprobs = sampling.sample_rows(*there, TOP)
    assert logprobs is not None
    case.counts, case.newest = there[3].cpu(), there[7].cpu()
    return tokens.cpu(), sampling.RowLogprobs.over(logprobs.packed.cpu(), len(tokens))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("vocab", "rows", "spread"), [(151936, 16, 3.0), (32001, 60, 1.0), (262144, 9, 6.0), (77, 30, 2.0)]
)
def test_every_mix_of_options(vocab: int, rows: int, spread: float, dtype: torch.dtype) -> None:
    case = Case(vocab + rows, rows, vocab, spread=spread)
    case.logits = case.logits.to(dtype).float()
    case.greedy = case.logits.argmax(dim=-1)
    check(case, *sampled(case, dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("vocab", "rows", "spread"), [(151936, 70, 3.0), (201088, 40, 1.0), (77, 30, 2.0)])
def test_plain_rows_have_the_same_tokens(vocab: int, rows: int, spread: float, dtype: torch.dtype) -> None:
    case = Case(vocab + rows, rows, vocab, spread=spread).without_options()
    case.greedy = case.logits.to(dtype).argmax(dim=-1)
    case.greedy[3] = -1
    there = case.arguments("cuda", dtype)
    tokens, _ = sampling.sample_rows(*there, None, plain=True)
    newest = there[-1].clone()
    assert torch.equal(tokens, sampling.sample_rows(*there, None)[0]) and torch.equal(there[-1], newest)
    assert tokens[3] == -1 and len(tokens.unique()) > 5


def test_alone_as_in_company() -> None:
    case = Case(5, 64, 151936)
    there = case.arguments("cuda")
    counts = there[3].clone()
    together, _ = sampling.sample_rows(*there, None)
    there[3].copy_(counts)
    logits, rows, bias, counts, greedy, lengths, slots, newest = there
    table = rows.view(len(logits), -1)
    for row in range(len(logits)):
        one = slice(row, row + 1)
        alone, _ = sampling.sample_rows(
            logits[one], table[one].reshape(-1), bias, counts, greedy[one], lengths[one], slots[one], newest, None
        )
        assert alone.item() == together[row].item()


def test_frequencies_follow_the_probabilities() -> None:
    """Chi-square over the most likely tokens of one row that is drawn from with many seeds."""
    draws, vocab = 20000, 1000
    case = Case(9, draws, vocab)
    case.logits = case.logits[:1].expand(draws, vocab).contiguous()
    case.greedy = case.logits.argmax(dim=-1)
    for name, value in {"line": -1, "top_k": 40, "top_p": 1, "min_p": 0, "temperature": 1, "top_logprobs": -1}.items():
        case.rows[name] = value
    case.rows["bias_end"], case.rows["forbidden_end"] = case.rows["bias_begin"], case.rows["forbidden_begin"]
    case.slots = torch.arange(draws) % len(case.newest)
    tokens, _ = sampled(case, torch.float32)
    weights, ids = case.logits[0].double().softmax(-1).topk(40)
    expected = weights / weights.sum() * draws
    counted = torch.bincount(tokens, minlength=vocab)[ids]
    assert int(counted.sum()) == draws
    # 39 degrees of freedom: beyond 90 once in 200 000 times.
    assert float(((counted - expected) ** 2 / expected).sum()) < 90
