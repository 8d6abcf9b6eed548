"""The tokens that rows sampled last, which only the device knows when the next step is launched."""

from __future__ import annotations

import torch
from torch import Tensor

from mysglang.srt.kernels.op import Op


def _resolve_tokens(input_ids: Tensor, slots: Tensor, newest: Tensor) -> Tensor:
    """[T] int64 ids, with newest[slots[t]] in place of each that is negative.

    input_ids, slots: [T] int64. newest: [slots] int64.
    """
    return torch.where(input_ids < 0, newest.index_select(0, slots), input_ids)


def _record_tokens(newest: Tensor, slots: Tensor, tokens: Tensor) -> None:
    """newest[slots[r]] = max(tokens[r], 0). All int64; slots [R] are distinct but for padding."""
    newest.index_copy_(0, slots, tokens.clamp(min=0))


resolve_tokens = Op("resolve_tokens", reference=_resolve_tokens, cuda="mysglang.srt.kernels.cuda.newest:resolve_tokens")
record_tokens = Op("record_tokens", reference=_record_tokens, cuda="mysglang.srt.kernels.cuda.newest:record_tokens")
