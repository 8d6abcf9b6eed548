"""The gated delta rule on the CPU: each row's state is updated where it is.

A state of a large model takes 2 MB, more than most caches near a core. So a row reads and writes it as seldom as
possible, and is done before the next row begins: the key and the query read the state in one product, before it is
updated, and what the query would read besides is the new value itself. A prompt is computed in pieces for the same
reason.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mysglang.srt.kernels import linear_attention
from mysglang.srt.kernels.linear_attention import CHUNK, heads_of

PIECE = 2 * CHUNK
"""Tokens of a prompt whose chunks are computed together. What is made of all chunks of a long prompt leaves the caches:
at the sizes of Qwen3-Next, 1024 tokens took 1.5 times as long at once as in pieces.
"""


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


def delta_run(q: Tensor, k: Tensor, v: Tensor, decay: Tensor, strength: Tensor, matrix: Tensor, at: int) -> Tensor:
    """See `kernels/linear_attention.py`, which computes each piece."""
    whole = linear_attention.delta_run.reference
    pieces = [slice(start, start + PIECE) for start in range(0, len(v), PIECE)]
    return torch.cat([whole(q[i], k[i], v[i], decay[i], strength[i], matrix, at) for i in pieces])
