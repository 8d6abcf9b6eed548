"""Matrix products on the CPU, with bfloat16 weights converted once to oneDNN's layout.

Otherwise oneDNN converts them in every call, which for a few rows costs as much as the product itself. The results
are the same bit for bit.
"""

from __future__ import annotations

from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Implements the op `linear`. `kernels/gemm.py` describes its arguments and result."""
    if weight.is_mkldnn:
        out: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
        return out
    if x.element_size() == 2 and x.shape[-1] % 2:
        # Such rows oneDNN may read in pairs. The pair behind the last whole one has the first number of the next row,
        # times zero: a row with NaN would reach the row before it.
        return F.linear(F.pad(x, (0, 1)), F.pad(weight, (0, 1)), bias)
    return F.linear(x, weight, bias)


def pack_linear_weight(weight: Tensor) -> Tensor:
    """See `kernels/gemm.py`. The copy is opaque; `to_dense` gives the weight back."""
    if weight.dtype is torch.bfloat16 and weight.shape[1] % 2 == 0 and _onednn_knows_bfloat16():
        packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), None)
        return packed
    return weight


def unpack_linear_weight(weight: Tensor) -> Tensor:
    """Implements the op `unpack_linear_weight`. `kernels/gemm.py` describes its arguments and result."""
    return weight.to_dense() if weight.is_mkldnn else weight


@cache
def _onednn_knows_bfloat16() -> bool:
    """Returns whether oneDNN multiplies bfloat16. False also if torch was built without oneDNN, which then registers
    none of its operators.
    """
    return hasattr(torch.ops.mkldnn, "_linear_pointwise") and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
