"""Ops on the CPU whose rows do not depend on the rows beside them, bit for bit.

What makes torch's rows depend on each other, and what is done about it:

    products      the library chooses its kernel, and with it the order of a sum, by the number of rows
                      → always ROWS rows, the last ones padded, at the same alignment
    the others    from GRAIN values on, threads share a tensor anywhere, also in the midst of a row, and the values at
                  the end of a thread's share are not computed by vector instructions
                      → never as many at once, and whole vectors where functions are more than roundings
    over a        one row of many values is reduced by all threads, each row of several by one
    vocabulary        → row by row

Knows shapes and dtypes, no model.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from mysglang.srt.kernels import activation
from mysglang.srt.kernels.cpu import gemm, rotary, sampling
from mysglang.srt.kernels.kvcache import UNSCALED, KvScales
from mysglang.srt.kernels.norm import rms_norm as rms_norm_op
from mysglang.srt.kernels.rotary import Norms
from mysglang.srt.kernels.sampling import Filters

ROWS = 16
"""Rows of one product."""
GRAIN = 1 << 15
"""Values: `at::internal::GRAIN_SIZE`."""
VECTORS = 64
"""Values: the most that one turn of a vectorized loop takes."""
PROBES = 3

_rows_at_once: dict[tuple[torch.Size, torch.dtype, bool, int], int] = {}
"""Rows at once, by shape, dtype and form of a weight, and by the number of torch's threads."""


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Implements the op `linear`. `kernels/gemm.py` describes its arguments and result."""
    rows = _product_rows(weight)
    flat = x.reshape(-1, x.shape[-1])
    out = x.new_empty(len(flat), weight.shape[0])
    for first in range(0, len(flat), rows):
        part = flat[first : first + rows]
        # A tensor of its own: views are aligned differently.
        block = x.new_zeros(rows, x.shape[-1])
        block[: len(part)] = part
        out[first : first + rows] = gemm.linear(block, weight, bias)[: len(part)]
    return out.view(*x.shape[:-1], -1)


def heads_linear(x: Tensor, weight: Tensor) -> Tensor:
    """See `kernels/gemm.py`. Each head is a product of the same shape."""
    return torch.stack([linear(x[:, head], each, None) for head, each in enumerate(weight)], dim=1)


def silu_and_mul(x: Tensor) -> Tensor:
    """Implements the op `silu_and_mul`. `kernels/activation.py` describes its arguments and result."""
    return _gated(activation.silu_and_mul, x)


def gelu_and_mul(x: Tensor) -> Tensor:
    """Implements the op `gelu_and_mul`. `kernels/activation.py` describes its arguments and result."""
    return _gated(activation.gelu_and_mul, x)


def gelu_tanh_and_mul(x: Tensor) -> Tensor:
    """Implements the op `gelu_tanh_and_mul`. `kernels/activation.py` describes its arguments and result."""
    return _gated(activation.gelu_tanh_and_mul, x)


def swigluoai_and_mul(x: Tensor) -> Tensor:
    """Implements the op `swigluoai_and_mul`. `kernels/activation.py` describes its arguments and result."""
    return _gated(activation.swigluoai_and_mul, x)


def sigmoid_scores(logits: Tensor) -> Tensor:
    """See `kernels/experts.py`. Padded to whole vectors."""
    width = logits.shape[-1]
    whole = -(-width // VECTORS) * VECTORS
    out = logits.new_empty(logits.shape, dtype=torch.float32)
    for part in _parts(logits, width=whole):
        block = out.new_zeros(len(out[part]), whole)
        block[:, :width] = logits[part]
        out[part] = block.sigmoid_()[:, :width]
    return out


def soft_cap(x: Tensor, cap: float) -> Tensor:
    """Implements the op `soft_cap`. `kernels/activation.py` describes its arguments and result."""
    for row in _rows(x):
        activation.soft_cap.reference(x[row], cap)
    return x


def sigmoid_gated(x: Tensor, gate: Tensor) -> Tensor:
    """Implements the op `sigmoid_gated`. `kernels/activation.py` describes its arguments and result."""
    for row in _rows(x):
        activation.sigmoid_gated.reference(x[row], gate[row])
    return x


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Implements the op `rms_norm`. `kernels/norm.py` describes its arguments and result."""
    out = torch.empty_like(x)
    for part in _parts(x):
        out[part] = rms_norm_op.reference(x[part], weight, eps)
    return out


def fused_add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """See `kernels/norm.py`. The sum of two numbers is the same wherever it is computed."""
    residual = residual.add_(x)
    return rms_norm(residual, weight, eps), residual


def rope_and_store(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    positions: Tensor,
    cos_sin: Tensor,
    norms: Norms | None,
    k_cache: Tensor,
    v_cache: Tensor,
    locations: Tensor,
    scales: KvScales = UNSCALED,
) -> None:
    """Implements the op `rope_and_store`. `kernels/rotary.py` describes its arguments and result."""
    for part in _parts(q, width=q.shape[1] + k.shape[1]):
        rotary.rope_and_store(
            q[part], k[part], v[part], positions[part], cos_sin, norms, k_cache, v_cache, locations[part], scales
        )


def draw_tokens(
    logits: Tensor,
    uniforms: Tensor,
    temperature: Tensor,
    filters: Filters,
) -> Tensor:
    """See `kernels/sampling.py`. A filter that only other rows use is neutral for a row."""
    tokens = [
        sampling.draw_tokens(logits[row], uniforms[row], temperature[row], filters.of(row)) for row in _rows(logits)
    ]
    return torch.cat(tokens) if tokens else logits.new_empty(0, dtype=torch.int64)


def log_probabilities(logits: Tensor) -> Tensor:
    """Implements the op `log_probabilities`. `kernels/sampling.py` describes its arguments and result."""
    out = logits.new_empty(logits.shape, dtype=torch.float32)
    for row in _rows(logits):
        out[row] = logits[row].float().log_softmax(dim=-1)
    return out


def most_likely(logprobs: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """See `kernels/sampling.py`. Among equal values the lower id wins, for any `count`."""
    values = logprobs.new_empty(len(logprobs), count)
    ids = values.new_empty(values.shape, dtype=torch.int64)
    if count:
        for row, line in enumerate(logprobs):
            lowest = line.topk(count).values[-1]
            # At least `count`, and more if some equal the lowest. A row of NaN has none, and keeps its order.
            found = (line >= lowest).nonzero().squeeze(1) if not lowest.isnan() else torch.arange(count, device="cpu")
            ranked, order = line[found].sort(descending=True, stable=True)
            values[row], ids[row] = ranked[:count], found[order[:count]]
    return values, ids


def _gated(op: activation.GatedOp, x: Tensor) -> Tensor:
    """Computes a gated activation in blocks of one shape, since torch may choose another library for a lone row. Both
    halves are padded to whole vectors, so that no value is left over for slower and different instructions.
    """
    width = x.shape[-1] // 2
    whole = -(-width // VECTORS) * VECTORS
    size = min(ROWS, max(1, (GRAIN - 1) // (2 * whole)))
    flat = x.reshape(-1, 2, width)
    out = x.new_empty(len(flat), width)
    for first in range(0, len(flat), size):
        part = flat[first : first + size]
        block = x.new_zeros(size, 2, whole)
        block[: len(part), :, :width] = part
        out[first : first + size] = op.reference(block.flatten(1))[: len(part), :width]
    return out.view(*x.shape[:-1], width)


def _parts(x: Tensor, width: int | None = None) -> Iterator[slice]:
    """Yields slices of the first dimension with fewer values than threads would share, but at least one row.

    One row has the same shape as every other that is too long to be taken with others.
    """
    if len(x) == 0:
        return
    size = max(1, (GRAIN - 1) // (x[0].numel() if width is None else width))
    for first in range(0, len(x), size):
        yield slice(first, first + size)


def _rows(x: Tensor) -> Iterator[slice]:
    """Yields a slice for each single row, so that each row is computed without the others."""
    return (slice(row, row + 1) for row in range(len(x)))


def _product_rows(weight: Tensor) -> int:
    """Returns how many rows may be multiplied at once so that a row's place among them changes no bit."""
    key = (weight.shape, weight.dtype, weight.is_mkldnn, torch.get_num_threads())
    rows = _rows_at_once.get(key)
    if rows is None:
        rows = ROWS
        while rows > 1 and not _places_are_alike(weight, rows):
            rows //= 2
        _rows_at_once[key] = rows
    return rows


def _places_are_alike(weight: Tensor, rows: int) -> bool:
    """True if a row gets the same products at every place of a block. Shapes and threads decide which code runs."""
    draw = torch.Generator().manual_seed(rows)
    for _ in range(PROBES):
        row = torch.randn(1, weight.shape[1], generator=draw, device="cpu").to(weight.dtype)
        products = gemm.linear(row.expand(rows, -1).contiguous(), weight, None)
        if not torch.equal(products, products[:1].expand(rows, -1)):
            return False
    return True
