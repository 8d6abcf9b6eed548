"""Mamba-2's recurrence on the CPU: each row's state is updated where it is, one row after another.

As for the gated delta rule, a state is larger than most caches near a core: it is read once by a product, before it is
updated, and what the token itself writes is read without it.
"""

from __future__ import annotations

import torch
from torch import Tensor


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
