"""Ops before and after attention over latent rows (DeepSeek-AI, "DeepSeek-V2", arXiv 2405.04434, section 2.1)."""

from __future__ import annotations

import torch
from torch import Tensor

from mysglang.srt.kernels.gemm import heads_linear
from mysglang.srt.kernels.norm import rms_norm
from mysglang.srt.kernels.op import Op
from mysglang.srt.kernels.rotary import rope


def _norm_and_turn(
    q: Tensor, rows: Tensor, gain: Tensor, eps: float, positions: Tensor, cos_sin: Tensor, interleaved: bool
) -> None:
    """Norms the latent part of `rows`, and rotates their rotary part and q, all in place.

    q: [T, num_heads, rope_dim], maybe a slice; rows: [T, latent_dim + rope_dim]; gain: [latent_dim]. The rest is as of
    `rope`; positions must not come from a kernel that may still be running.
    """
    latent = rows[:, : len(gain)]
    latent.copy_(rms_norm(latent, gain, eps))
    rope(q, rows[:, len(gain) :], positions, cos_sin, interleaved)


def _absorb_queries(q: Tensor, up_keys: Tensor) -> Tensor:
    """Turns q [T, num_heads, key_dim + rope_dim] into queries over latent rows, [T, num_heads * (latent_dim +
    rope_dim)].

    up_keys: [num_heads, latent_dim, key_dim], the first part of a head's query is multiplied with its matrix.
    """
    key_dim = up_keys.shape[2]
    return torch.cat((heads_linear(q[..., :key_dim], up_keys), q[..., key_dim:]), dim=-1).flatten(1)


norm_and_turn = Op(
    "norm_and_turn", reference=_norm_and_turn, cuda="mysglang.srt.kernels.cuda.latent_rows:norm_and_turn"
)
absorb_queries = Op(
    "absorb_queries",
    reference=_absorb_queries,
    cuda="mysglang.srt.kernels.cuda.latent_rows:absorb_queries",
    # Composed of the products of single heads.
    invariant={"cuda": ()},
)
