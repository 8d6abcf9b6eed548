"""Bit masks on the CPU: numpy unpacks bits eight at a time."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


def apply_token_bitmask(logits: Tensor, rows: Tensor, bits: Tensor) -> None:
    """See `kernels/bitmask.py`."""
    # One row after another: a row of logits stays in the cache while it is changed.
    for row, words in zip(rows.tolist(), bits.numpy(), strict=True):
        forbidden = np.unpackbits(~words.view(np.uint8), bitorder="little")[: logits.shape[1]]
        logits[row].masked_fill_(torch.from_numpy(forbidden.view(np.bool_)), float("-inf"))
