"""StepCosts: what the steps of a decoder must compute, read and write, reckoned from its shape and from their rows.

Products with the weights and attention are counted, and nothing else: no normalization, no activation, no sampling.
A fused multiplication and addition is two operations. Weights are read once in each step, and the keys and values of
a row once in each step of that row, which is the least that any kernel reads.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from mysglang.srt.forward.worker_batch import Ints
from mysglang.srt.observability import instruments as told
from mysglang.srt.observability.sheet import Sheet
from mysglang.srt.scheduling.batch import ScheduleBatch


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderShape:
    """One rank's part of a decoder with gated MLPs."""

    layer_parameters: int
    """Elements of all matrices of all layers."""
    head_parameters: int
    """Elements of the matrix that makes logits."""
    windows: tuple[int | None, ...]
    """Keys that a query sees in each layer, itself included; None: all."""
    query_size: int
    """Heads times elements of a head."""
    kv_size: int
    """Key heads times elements of a head; values have as many."""
    dtype_bytes: int

    @classmethod
    def of_model(
        cls,
        *,
        hidden_size: int,
        vocab_size: int,
        layer_parameters: int,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        windows: tuple[int | None, ...],
        dtype_bytes: int,
        tp_size: int,
    ) -> DecoderShape:
        """The part of each of `tp_size` ranks. layer_parameters: those of all layers that a token meets."""
        queries, keys = num_heads * head_dim, num_kv_heads * head_dim
        return cls(
            layer_parameters=layer_parameters // tp_size,
            head_parameters=hidden_size * vocab_size // tp_size,
            windows=windows,
            query_size=queries // tp_size,
            kv_size=max(keys // tp_size, head_dim),
            dtype_bytes=dtype_bytes,
        )


class StepCosts(Protocol):
    """Reckons steps."""

    def count(self, batch: ScheduleBatch, sheet: Sheet) -> None:
        """Put on the sheet what a step took."""
        ...


class NoCosts:
    """Nobody asks."""

    def count(self, batch: ScheduleBatch, sheet: Sheet) -> None:
        pass


class DecoderCosts:
    """Reckons the steps of one model."""

    def __init__(self, shape: DecoderShape) -> None:
        self._shape = shape
        self._layers = Counter(shape.windows)

    def count(self, batch: ScheduleBatch, sheet: Sheet) -> None:
        shape, yields = self._shape, int(batch.yields.sum())
        kv_bytes = 2 * shape.kv_size * shape.dtype_bytes
        flops = 2.0 * (shape.layer_parameters * batch.new_tokens + shape.head_parameters * yields)
        read = shape.layer_parameters + (shape.head_parameters if yields else 0)
        read_bytes = float(read * shape.dtype_bytes)
        for window, layers in self._layers.items():
            # A product of a query and a key, and one of its score and a value.
            flops += layers * 4.0 * shape.query_size * keys_seen(batch.starts, batch.lens, window)
            read_bytes += layers * kv_bytes * keys_read(batch.starts, batch.lens, window)
        sheet.add(told.ESTIMATED_FLOPS, flops)
        sheet.add(told.ESTIMATED_READ_BYTES, read_bytes)
        sheet.add(told.ESTIMATED_WRITE_BYTES, kv_bytes * len(shape.windows) * batch.new_tokens)


def keys_seen(starts: Ints, lens: Ints, window: int | None) -> float:
    """Keys that each new token of a step sees, added up. A row has `starts` tokens and gets `lens` more."""
    first, number = np.asarray(starts, dtype=np.float64), np.asarray(lens, dtype=np.float64)
    seen = _sum_to(first + number) - _sum_to(first)
    if window is not None:
        seen -= _sum_to(first + number - window) - _sum_to(first - window)
    return float(seen.sum())


def keys_read(starts: Ints, lens: Ints, window: int | None) -> float:
    """Keys that each row of a step reads, if it reads each once, added up."""
    ends = np.asarray(starts, dtype=np.float64) + lens
    if window is not None:
        ends = np.minimum(ends, np.asarray(lens, dtype=np.float64) + window - 1)
    return float(ends.sum())


def _sum_to(number: NDArray[np.float64]) -> NDArray[np.float64]:
    """1 + 2 + ... + number, for each; 0 for what is below 1."""
    above: NDArray[np.float64] = np.maximum(number, 0)
    return above * (above + 1) / 2
