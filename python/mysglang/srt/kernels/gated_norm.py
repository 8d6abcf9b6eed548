"""Norms of what a layer with states computed, and of its gate."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from mysglang.srt.kernels.op import Op


def _gated_rms_norm(x: Tensor, weight: Tensor, gate: Tensor, eps: float, sigmoid: bool = False) -> Tensor:
    """Computes rms_norm(x) * weight * silu(gate) over the last dimension, in float32. x, gate: [..., D]; weight: [D].

    The normed value is rounded to x's dtype before it meets the weight, as models are trained.

    sigmoid: the factor is sigmoid(gate), and only the result is rounded, as in Kimi Linear.
    """
    inputs = x.float()
    normed = inputs * torch.rsqrt(inputs.square().mean(dim=-1, keepdim=True) + eps)
    if sigmoid:
        return (weight.float() * normed * gate.float().sigmoid()).to(x.dtype)
    normed = normed.to(x.dtype)
    return (weight * normed * F.silu(gate.float())).to(x.dtype)


def _gated_group_norm(x: Tensor, weight: Tensor, gate: Tensor, eps: float, groups: int) -> Tensor:
    """Computes rms_norm(x * silu(gate)) * weight, in float32. x, gate: [N, D], of which each of `groups` parts is
    normed by itself; weight: [D]. The normed value is rounded to x's dtype before it is multiplied with the weight.
    """
    gated = x.float() * F.silu(gate.float())
    parts = gated.view(len(x), groups, x.shape[-1] // groups)
    normed = parts * torch.rsqrt(parts.square().mean(dim=-1, keepdim=True) + eps)
    return weight * normed.view_as(x).to(x.dtype)


gated_rms_norm = Op(
    "gated_rms_norm", reference=_gated_rms_norm, cuda="mysglang.srt.kernels.cuda.gated_norm:gated_rms_norm"
)
gated_group_norm = Op(
    "gated_group_norm", reference=_gated_group_norm, cuda="mysglang.srt.kernels.cuda.gated_norm:gated_group_norm"
)
