"""Attention of some queries over keys and values that stand side by side, as one part of a softmax over more keys."""

from __future__ import annotations

import torch
from torch import Tensor

from mysglang.srt.kernels.op import Op


def _dense_attention(q: Tensor, k: Tensor, v: Tensor, scale: float, causal: bool) -> tuple[Tensor, Tensor]:
    """What each query makes of these keys [heads, n, value_dim] float32, and the logarithm of the sum of the exponents
    of its scores [heads, n] float32: with both, parts are merged.

    q: [heads, n, dim]; k: [heads, L, dim]; v: [heads, L, value_dim], of one dtype. causal: L equals n, and query i sees
    keys 0 ... i; else all queries see all keys.
    """
    scores = torch.matmul(q.float(), k.float().transpose(1, 2)) * scale
    if causal:
        scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), float("-inf"))
    lse = scores.logsumexp(dim=-1)
    return torch.matmul(torch.exp(scores - lse[..., None]), v.float()), lse


dense_attention = Op(
    "dense_attention", reference=_dense_attention, cpu="mysglang.srt.kernels.cpu.dense_attention:dense_attention"
)
