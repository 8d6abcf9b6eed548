"""Softmax and choice of experts in Triton: a program for each row, which it reads once. Of equals the lower wins."""

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _topk_softmax_kernel(
    logits,
    ids,
    gates,
    row_stride,
    experts,
    RENORMALIZE: tl.constexpr,
    TOP_K: tl.constexpr,
    PLACES: tl.constexpr,
    EXPERTS: tl.constexpr,
):
    """PLACES and EXPERTS: the next powers of two of TOP_K and `experts`."""
    row = tl.program_id(0).to(tl.int64)
    expert = tl.arange(0, EXPERTS)
    place = tl.arange(0, PLACES)
    free = expert < experts
    x = tl.load(logits + row * row_stride + expert, mask=free, other=float("-inf")).to(tl.float32)
    weights = tl.where(free, tl.exp(x - tl.max(x)), 0.0)
    weights = weights / tl.sum(weights)
    # What is no number makes all gates NaN by the sum above; a place is still given to an expert that exists.
    x = tl.where(x == x, x, float("-inf"))
    chosen = tl.zeros((PLACES,), tl.int32)
    gate = tl.zeros((PLACES,), tl.float32)
    for i in range(TOP_K):
        best = tl.max(tl.where(free, x, float("-inf")))
        first = tl.min(tl.where(free & (x == best), expert, EXPERTS))
        chosen = tl.where(place == i, first, chosen)
        gate = tl.where(place == i, tl.sum(tl.where(expert == first, weights, 0.0)), gate)
        free = free & (expert != first)
    if RENORMALIZE:
        gate = gate / tl.sum(tl.where(place < TOP_K, gate, 0.0))
    tl.store(ids + row * TOP_K + place, chosen, mask=place < TOP_K)
    tl.store(gates + row * TOP_K + place, gate, mask=place < TOP_K)


def topk_softmax(logits: Tensor, top_k: int, renormalize: bool) -> tuple[Tensor, Tensor]:
    """As `kernels.experts.topk_softmax`. logits: [N, E], rows dense."""
    rows, experts = logits.shape
    ids = torch.empty(rows, top_k, dtype=torch.int32, device=logits.device)
    gates = torch.empty(rows, top_k, dtype=torch.float32, device=logits.device)
    if rows:
        _topk_softmax_kernel[(rows,)](
            logits,
            ids,
            gates,
            logits.stride(0),
            experts,
            RENORMALIZE=renormalize,
            TOP_K=top_k,
            PLACES=triton.next_power_of_2(top_k),
            EXPERTS=triton.next_power_of_2(experts),
            num_warps=1,
        )
    return ids, gates
