"""Mamba-2's recurrence on the CPU: each row's state is updated where it is, one row after another.

As for the gated delta rule, a state is larger than most caches near a core: it is read once by a product, before it is
updated, and what the token itself writes is read without it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mysglang.srt.kernels import state_space
from mysglang.srt.kernels.state_space import CHUNK

PIECE = 2 * CHUNK
"""Tokens of a prompt whose chunks are computed together. What is made of all chunks of a long prompt leaves the caches:
with 128 heads of 64 x 128, 1024 tokens took twice as long at once as in pieces.
"""


def scan_step(
    x: Tensor, b: Tensor, c: Tensor, time: Tensor, rate: Tensor, skip: Tensor, matrix: Tensor, at: Tensor
) -> Tensor:
    """See `kernels/state_space.py`: y = S^T c + D x = a S_before^T c + (b c) d x + D x, with a = exp(d A)."""
    shared = x.shape[1] // b.shape[1]
    write, read = b.float(), c.float()
    overlap = (write * read).sum(dim=-1).repeat_interleave(shared, dim=1).unsqueeze(-1)
    write, read = write.repeat_interleave(shared, dim=1), read.repeat_interleave(shared, dim=1)
    inputs, kept = x.float(), (time * rate).exp()[..., None, None]
    scaled = inputs * time.unsqueeze(-1)
    out = torch.addcmul(scaled * overlap, inputs, skip.unsqueeze(-1))
    for row, entry in enumerate(at.tolist()):
        state = matrix[entry]
        said = (read[row].unsqueeze(-2) @ state).squeeze(-2)
        state.mul_(kept[row]).addcmul_(write[row].unsqueeze(-1), scaled[row].unsqueeze(-2))
        out[row].addcmul_(said, kept[row, :, 0])
    return out.to(x.dtype)


def scan_run(
    x: Tensor, b: Tensor, c: Tensor, time: Tensor, rate: Tensor, skip: Tensor, matrix: Tensor, at: int
) -> Tensor:
    """See `kernels/state_space.py`, which computes each piece."""
    whole = state_space.scan_run.reference
    pieces = [slice(start, start + PIECE) for start in range(0, len(x), PIECE)]
    return torch.cat([whole(x[i], b[i], c[i], time[i], rate, skip, matrix, at) for i in pieces])
