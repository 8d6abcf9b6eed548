"""The gated delta rule on the CPU: each row's state is updated where it is.

A state of a large model takes 2 MB, more than most caches near a core. So a row reads and writes it as seldom as
possible, and is done before the next row begins: the key and the query read the state in one product, before it is
updated, and what the query would read besides is the new value itself.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mysglang.srt.kernels.linear_attention import heads_of


def delta_step(q: Tensor, k: Tensor, v: Tensor, decay: Tensor, strength: Tensor, matrix: Tensor, at: Tensor) -> Tensor:
    """See `kernels/linear_attention.py`: o = S^T q = a S_before^T q + (k q) u."""
    queries, keys = heads_of(q, k, v.shape[1])
    values, kept = v.float(), decay.exp()[..., None, None]
    asked, overlap = torch.stack((keys, queries), dim=-2), (queries * keys).sum(dim=-1, keepdim=True)
    out = torch.empty_like(values)
    for row, entry in enumerate(at.tolist()):
        state = matrix[entry]
        said = (asked[row] @ state).mul_(kept[row])
        new = (values[row] - said[:, 0]).mul_(strength[row].unsqueeze(-1))
        state.mul_(kept[row]).addcmul_(keys[row].unsqueeze(-1), new.unsqueeze(-2))
        torch.addcmul(said[:, 1], overlap[row], new, out=out[row])
    return out.to(v.dtype)
