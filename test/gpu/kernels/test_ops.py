"""Every op's CUDA kernel against its reference on the same device."""

import pytest
import torch
import torch.nn.functional as F

from fixtures.op_cases import OPS, check_op, mixture
from fixtures.sampling_cases import assert_true, random_draws
from fixtures.state_cases import RECURRENT, STEPS, check_bfloat16_states, check_rows_without_states
from mysglang.srt.kernels.activation import Activation, gated
from mysglang.srt.kernels.cuda.experts_plans import HOPPER, HOPPER_ROWS, best_plan
from mysglang.srt.kernels.cuda.kvcache import list_pages
from mysglang.srt.kernels.cuda.mixture import Mixture
from mysglang.srt.kernels.experts import Selection, fused_experts, route_experts
from mysglang.srt.kernels.gemm import gated_linear
from mysglang.srt.kernels.op import kernel_module
from mysglang.srt.kernels.sampling import draw_tokens, greedy_tokens

TOLERANCES = {torch.float32: 1e-5, torch.bfloat16: 7e-3, torch.float16: 1e-3}


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("name", OPS)
def test_layer_ops(name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    # Each case would have the kernels compiled that other numbers of rows need.
    monkeypatch.setattr(Mixture, "compile", lambda self, plans: None)
    check_op(name, "cuda", dtype, TOLERANCES[dtype])


@pytest.mark.parametrize("name", RECURRENT)
def test_states_in_bfloat16(name: str) -> None:
    check_bfloat16_states(name, "cuda")


@pytest.mark.parametrize("name", STEPS)
def test_rows_without_states(name: str) -> None:
    check_rows_without_states(name, "cuda")


@pytest.mark.parametrize(("rows", "experts", "active"), [(700, 24, 5), (3000, 24, None), (20_000, 100, None)])
@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
def test_experts_of_prompts(rows: int, experts: int, active: int | None, dtype: torch.dtype) -> None:
    """Pairs that are counted in pieces before they are sorted, and blocks of which the second half is empty. The same
    again has the same bits.
    """
    make = mixture(rows, experts, 4, width=136, inner=72, active=active, biased=True)
    x, gate_up, down, ids, gates, activation, biases = make("cuda", dtype)
    chosen = best_plan(Mixture(x, gate_up, down, ids, gates, activation, biases))
    hopper = (
        dtype is torch.bfloat16
        and ids.numel() / experts > HOPPER_ROWS
        and kernel_module("experts_products") is not None
    )
    assert (chosen is HOPPER) == hopper
    biases_in_float = tuple(each.float() for each in biases)
    wide = (x.float(), gate_up.float(), down.float())
    expected = fused_experts.reference(*wide, ids, gates, activation, biases_in_float)
    found = fused_experts(x, gate_up, down, ids, gates, activation, biases)
    assert float((found.float() - expected).norm() / expected.norm()) < TOLERANCES[dtype]
    assert torch.equal(fused_experts(x, gate_up, down, ids, gates, activation, biases), found)


@pytest.mark.parametrize("activation", ["silu", "gelu", "gelu_tanh"])
@pytest.mark.parametrize("rows", [1, 40, 100, 150, 256, 300])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_gated_linear(activation: Activation, rows: int, dtype: torch.dtype) -> None:
    """Against float32 of the same values: where it is one kernel, and where it is composed."""
    x = torch.randn(rows, 1032, device="cuda").to(dtype)
    weight = (torch.randn(8224, 1032, device="cuda") / 32).to(dtype)
    bias = torch.randn(8224, device="cuda").to(dtype)
    expected = gated[activation].reference(F.linear(x.float(), weight.float(), bias.float()))
    error = (gated_linear(x, weight, bias, activation).float() - expected).norm() / expected.norm()
    assert float(error) < (1e-5 if dtype is torch.float32 else 6e-3)


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("filters", ["", "k", "p", "m", "kp", "kpm"])
def test_draws_are_true(filters: str, ties: bool) -> None:
    for seed in range(4):
        draws = random_draws(seed, vocab=5000, ties=ties, **dict.fromkeys(filters, True))
        assert_true(draw_tokens(*draws.arguments("cuda")), draws)


def test_a_draw_does_not_depend_on_the_batch() -> None:
    draws = random_draws(1, rows=64, vocab=32000, k=True, p=True, m=True)
    together = draw_tokens(*draws.arguments("cuda"))
    for row in range(0, 64, 7):
        assert int(draw_tokens(*draws.alone(row).arguments("cuda"))) == int(together[row])


def test_draws_are_those_of_the_cpu() -> None:
    draws = random_draws(2, rows=200, vocab=32000, p=True, k=True)
    on_cpu, on_gpu = draw_tokens(*draws.arguments()), draw_tokens(*draws.arguments("cuda")).cpu()
    assert int((on_cpu != on_gpu).sum()) <= 1  # a draw may fall within rounding of a boundary


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("vocab", [100, 4096, 128256, 151936])
def test_greedy_tokens(vocab: int, dtype: torch.dtype) -> None:
    logits = torch.randn(9, vocab, device="cuda").to(dtype)
    logits[1, vocab // 2] = float("nan")
    logits[2, vocab - 1] = float("-inf")
    logits[3, 5] = logits[3, vocab - 2] = 100.0
    assert torch.equal(greedy_tokens(logits), greedy_tokens.reference(logits))
    assert greedy_tokens(logits)[1:4].tolist() == [-1, -1, 5]


@pytest.mark.parametrize("page_size", [1, 16])
def test_list_pages(page_size: int) -> None:
    table = torch.randint(1 << 30, (20, 9000), dtype=torch.int32, device="cuda")
    slots = torch.randperm(20, device="cuda")[:13]
    counts = torch.randint(1, 9000, (13,), dtype=torch.int32, device="cuda")
    last = torch.randint(1, page_size + 1, (13,), dtype=torch.int32, device="cuda")
    total = int(counts.sum())
    indptr, indices, found = (torch.full((n,), -1, dtype=torch.int32, device="cuda") for n in (14, total + 5, 13))
    list_pages(table, slots, (counts - 1) * page_size + last, page_size, indptr, indices, found)
    assert indptr.tolist() == [0, *counts.cumsum(0).tolist()]
    assert torch.equal(found, last)
    rows = [table[slot, :count] for slot, count in zip(slots.tolist(), counts.tolist(), strict=True)]
    assert torch.equal(indices[:total], torch.cat(rows))
    assert (indices[total:] == -1).all()


def test_logits_of_routers_in_float32() -> None:
    """A weight with the numbers of bfloat16 gives the experts and gates of a product of float32 numbers."""
    torch.manual_seed(0)
    x, short = (torch.randn(rows, 1024, device="cuda").bfloat16() for rows in (300, 64))
    selection = Selection(score="softmax", top_k=6, renormalize=False)
    found = route_experts(x, short.float() / 16, None, None, selection, short / 16)
    expected = route_experts.reference(x, short.float() / 16, None, None, selection)
    assert float((found[0] == expected[0]).float().mean()) > 0.999  # two logits may be equal but for rounding
    torch.testing.assert_close(found[1], expected[1], rtol=1e-4, atol=1e-6)
