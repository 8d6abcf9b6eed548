"""Short convolutions over the tokens of a row, whose state is its newest inputs, for one token of many rows or for many
of some rows. See `states.py` for entries and runs.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from mysglang.srt.kernels.op import Op
from mysglang.srt.kernels.states import Runs, take_runs


def _conv_step(
    x: Tensor, weight: Tensor, recent: Tensor, at: Tensor, bias: Tensor | None = None, *, silu: bool = True
) -> Tensor:
    """Returns a causal depthwise convolution of one new token of each of R rows, and silu of it. Returns [R, channels]
    in x's dtype.

    x: [R, channels]. weight: [channels, kernel]. recent: [N, kernel - 1, channels], the inputs before, which lose the
    oldest and get x. at: [R] int64 entries of `recent`, distinct but for padding. bias: [channels].
    """
    seen = torch.cat((recent.index_select(0, at), x.to(recent.dtype).unsqueeze(1)), dim=1)
    recent.index_copy_(0, at, seen[:, 1:])
    return _convolved(seen, weight, bias, silu).squeeze(1).to(x.dtype)


def _conv_runs(
    x: Tensor, weight: Tensor, recent: Tensor, runs: Runs, bias: Tensor | None = None, *, silu: bool = True
) -> Tensor:
    """Returns the convolution of consecutive tokens of some rows. x: [T, channels]. Returns the same shape. Tokens in
    no run are unspecified on CUDA, and zeros on the CPU, where products with weights may read behind the end of a row.
    """

    def run(part: slice, entry: int) -> Tensor:
        tokens = x[part]
        seen = torch.cat((recent[entry], tokens.to(recent.dtype)))
        recent[entry] = seen[len(tokens) :]
        return _convolved(seen.unsqueeze(0), weight, bias, silu).squeeze(0).to(x.dtype)

    return take_runs(runs, x.new_zeros(x.shape), recent, run)


def _convolved(seen: Tensor, weight: Tensor, bias: Tensor | None, silu: bool) -> Tensor:
    """Convolves over the tokens: [R, kernel - 1 + T, channels] -> [R, T, channels] float32."""
    kernel = weight.shape[1]
    tokens = seen.shape[1] - kernel + 1
    inputs, factors = seen.float(), weight.float()
    total = inputs[:, :tokens] * factors[:, 0]
    for tap in range(1, kernel):
        total.addcmul_(inputs[:, tap : tap + tokens], factors[:, tap])
    if bias is not None:
        total += bias.float()
    return F.silu(total) if silu else total


conv_step = Op("conv_step", reference=_conv_step, cuda="mysglang.srt.kernels.cuda.short_convolution:conv_step")
conv_runs = Op(
    "conv_runs",
    reference=_conv_runs,
    cuda=(
        "mysglang.srt.kernels.cuda.walked_convolution:conv_runs",
        "mysglang.srt.kernels.cuda.short_convolution:conv_runs",
    ),
)
