"""Paged causal attention in bfloat16: `csrc/cpu/attention.cpp`, which says how it works."""

from __future__ import annotations

from ctypes import c_float, c_int, c_long, c_void_p
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt
from torch import Tensor

from mysgl_kernel.compiled import Launch
from mysgl_kernel.cpu.library import CpuLibrary
from mysgl_kernel.cpu.rows import FORMATS

HEAD_DIMS = (32, 64, 96, 128, 256)
"""Head dimensions for keys and values of the same size. Latent rows may have any multiples of `LATENT_STEP`."""
LATENT_STEP = 32
QUERIES = 48
"""Query heads of new tokens that are computed together; as in the source."""

_LIBRARY = CpuLibrary("cpu/attention.cpp")

available = _LIBRARY.available


@dataclass(frozen=True, slots=True)
class AttentionRows:
    """The rows of a step; what all layers share."""

    slots: npt.NDArray[np.int64]
    """[R] rows of the page table."""
    ends: npt.NDArray[np.int32]
    """[R] keys of each row, its new ones included."""
    queries: npt.NDArray[np.int32]
    """[R] its new tokens."""
    firsts: npt.NDArray[np.int64]
    """[R] where these begin among the tokens of the step."""
    items: npt.NDArray[np.int64]
    """[I, 2] row and block of queries, those with most keys first."""
    group: int
    """Query heads of each KV head."""
    addresses: tuple[int, ...]
    """Addresses of the arrays, in this order."""

    @classmethod
    def of(
        cls,
        slots: npt.NDArray[np.integer],
        ends: npt.NDArray[np.integer],
        queries: npt.NDArray[np.integer],
        group: int,
    ) -> AttentionRows:
        """Slots int64, ends and queries int32, dense, are not copied: they may change, and `reorder` follows."""
        arrays = (
            np.ascontiguousarray(slots, dtype=np.int64),
            np.ascontiguousarray(ends, dtype=np.int32),
            np.ascontiguousarray(queries, dtype=np.int32),
            np.cumsum(queries, dtype=np.int64) - queries,
            blocks_of(ends, queries, group),
        )
        return cls(*arrays, group, tuple(array.ctypes.data for array in arrays))

    def reorder(self) -> None:
        """After other ends were written into `ends`: the items in their order."""
        self.items[...] = blocks_of(self.ends, self.queries, self.group)


def blocks_of(ends: npt.NDArray[np.integer], queries: npt.NDArray[np.integer], group: int) -> npt.NDArray[np.int64]:
    """[I, 2] row and block of queries, those with most keys first."""
    blocks = -(-queries.astype(np.int64) * group // QUERIES)
    rows = np.repeat(np.arange(len(blocks)), blocks)
    block = np.arange(len(rows)) - np.repeat(np.cumsum(blocks) - blocks, blocks)
    seen = (ends - queries)[rows] + (block + 1) * QUERIES // group
    order = np.argsort(-seen, kind="stable")
    return np.stack((rows[order], block[order]), axis=1)


def attend(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    table: Tensor,
    rows: AttentionRows,
    *,
    page_size: int,
    window: int | None,
    scale: float,
    logit_cap: float,
    value_scale: float = 1.0,
    alike: bool = False,
    chunked: bool = False,
    sinks: Tensor | None = None,
) -> Tensor:
    """[T, heads * value_dim]; every new token of a row attends to the row's keys up to its own.

    q: [T, heads * dim], rows at any distance. keys, values: [KV slots, kv_heads, dim], dense, of one of `FORMATS`.
    Values may be the beginnings of keys: a view [KV slots, kv_heads, value_dim] of them.
    table: [slots, max_pages] int32. window: keys that a token sees, itself included; None for all. Scores are scaled,
    then capped softly by logit_cap unless that is 0. value_scale: what attended values are multiplied by. alike: each
    token gets the same bits however many of its row are new; else few are computed in a quicker way. chunked: a token
    sees the keys of its own chunk alone; chunks are of `window` positions. sinks: [heads] float32, dense: the score of
    a key that each head sees beside, whose value is zero.
    """
    (_, kv_heads, dim), value_dim = keys.shape, values.shape[2]
    assert value_dim == dim or values.data_ptr() == keys.data_ptr(), "narrower values are the beginnings of keys"
    heads = q.shape[1] // dim
    out = q.new_empty(len(q), heads * value_dim)
    _attention()(
        *(out.data_ptr(), q.data_ptr(), q.stride(0), keys.data_ptr(), values.data_ptr()),
        *(table.data_ptr(), table.shape[1], page_size),
        *(*rows.addresses, len(rows.items)),
        *(len(rows.slots), heads, kv_heads, dim, value_dim, window or 0, scale, logit_cap),
        *(FORMATS[keys.dtype], value_scale, alike, chunked, None if sinks is None else sinks.data_ptr()),
    )
    return out


@cache
def _attention() -> Launch:
    tensors = (c_void_p, c_void_p, c_long, c_void_p, c_void_p)
    pages = (c_void_p, c_long, c_long)
    rows = (c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_long)
    stored = (c_int, c_float, c_int, c_int, c_void_p)
    return _LIBRARY.function("mysgl_attention", *tensors, *pages, *rows, *(c_long,) * 6, c_float, c_float, *stored)
