"""Forbidding tokens by bit masks, as grammars give them."""

from __future__ import annotations

import torch
from torch import Tensor

from mysglang.srt.kernels.op import Op


def _apply_token_bitmask(logits: Tensor, rows: Tensor, bits: Tensor) -> None:
    """Set forbidden logits to -inf, in place. Token i of row rows[c] is allowed if its bit in bits[c] is set.

    logits: [S, vocab] floating; rows: [C] int64, distinct; bits: [C, >= vocab / 32] int32, lowest bit first.
    """
    ids = torch.arange(logits.shape[1], device=logits.device)
    allowed = bits.index_select(1, ids >> 5) >> (ids & 31).to(torch.int32) & 1
    logits[rows] = logits[rows].masked_fill_(allowed == 0, float("-inf"))


apply_token_bitmask = Op(
    "apply_token_bitmask",
    reference=_apply_token_bitmask,
    cpu="mysglang.srt.kernels.cpu.bitmask:apply_token_bitmask",
    cuda="mysglang.srt.kernels.cuda.bitmask:apply_token_bitmask",
)
