"""StepCosts: what the steps of a decoder must compute, read and write, reckoned from its shape and from their rows.

Products with the weights and attention are counted, and nothing else: no normalization, no activation, no sampling.
A fused multiplication and addition is two operations. Weights are read once in each step, and the keys and values of
a row once in each step of that row, which is the least that any kernel reads.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from mysglang.srt.forward.worker_batch import Ints
from mysglang.srt.observability import instruments
from mysglang.srt.observability.sheet import Sheet
from mysglang.srt.scheduling.batch import ScheduleBatch


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """One attention layer, whole or one rank's part of it."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    window: int | None = None
    """Keys that a query attends to at most, itself included: the newest, or those that it chooses; None: all."""
    latent_dim: int | None = None
    """Elements at the start of a key that are also its value; None: a value is stored beside its key, with the same
    size.
    """
    stores: bool = True
    """False if it attends over what another layer keeps."""

    @property
    def score_size(self) -> int:
        """Number of elements of all heads of a query, and of the attended values."""
        return self.num_heads * (self.head_dim + (self.head_dim if self.latent_dim is None else self.latent_dim))

    @property
    def read_size(self) -> int:
        """Elements that are read of a token."""
        return self.num_kv_heads * self.head_dim * (2 if self.latent_dim is None else 1)

    def part(self, tp_size: int) -> AttentionShape:
        """Returns the share of each of `tp_size` ranks: at least one head of keys."""
        return replace(self, num_heads=self.num_heads // tp_size, num_kv_heads=max(self.num_kv_heads // tp_size, 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderShape:
    """A decoder, whole or one rank's part of it."""

    layer_parameters: int
    """Elements of all layers' matrices that a token is multiplied with."""
    head_parameters: int
    """Elements of the matrix that makes logits."""
    layers: tuple[AttentionShape, ...]
    dtype_bytes: int

    def part(self, tp_size: int) -> DecoderShape:
        """Returns the share of each of `tp_size` ranks."""
        return replace(
            self,
            layer_parameters=self.layer_parameters // tp_size,
            head_parameters=self.head_parameters // tp_size,
            layers=tuple(layer.part(tp_size) for layer in self.layers),
        )


class StepCosts(Protocol):
    """Estimates the operations and bytes of steps."""

    def count(self, batch: ScheduleBatch, sheet: Sheet) -> None:
        """Adds the duration of a step to the sheet."""
        ...


class NoCosts:
    """The null costs: nothing is estimated."""

    def count(self, batch: ScheduleBatch, sheet: Sheet) -> None:
        pass


class DecoderCosts:
    """Estimates the operations and bytes of one model's steps."""

    def __init__(self, shape: DecoderShape) -> None:
        self._shape = shape
        self._layers = Counter(shape.layers)

    def count(self, batch: ScheduleBatch, sheet: Sheet) -> None:
        shape, yields = self._shape, int(batch.yields.sum())
        flops = 2.0 * (shape.layer_parameters * batch.new_tokens + shape.head_parameters * yields)
        read = shape.layer_parameters + (shape.head_parameters if yields else 0)
        read_bytes = float(read * shape.dtype_bytes)
        starts = batch.high_lens - batch.lens
        write_bytes = 0
        for layer, number in self._layers.items():
            kv_bytes = number * layer.read_size * shape.dtype_bytes
            # A product of a query and a key, and one of its score and a value.
            flops += number * 2.0 * layer.score_size * keys_seen(starts, batch.lens, layer.window)
            read_bytes += kv_bytes * keys_read(starts, batch.lens, layer.window)
            write_bytes += kv_bytes * batch.new_tokens * layer.stores
        sheet.add(instruments.ESTIMATED_FLOPS, flops)
        sheet.add(instruments.ESTIMATED_READ_BYTES, read_bytes)
        sheet.add(instruments.ESTIMATED_WRITE_BYTES, write_bytes)


def keys_seen(starts: Ints, lens: Ints, window: int | None) -> float:
    """Returns how many keys the new tokens of a step attend to, added up. A row has `starts` tokens and gets `lens`
    more.
    """
    first, number = np.asarray(starts, dtype=np.float64), np.asarray(lens, dtype=np.float64)
    seen = _sum_to(first + number) - _sum_to(first)
    if window is not None:
        seen -= _sum_to(first + number - window) - _sum_to(first - window)
    return float(seen.sum())


def keys_read(starts: Ints, lens: Ints, window: int | None) -> float:
    """Returns how many keys the rows of a step read, added up, if each row reads each key once."""
    ends = np.asarray(starts, dtype=np.float64) + lens
    if window is not None:
        ends = np.minimum(ends, np.asarray(lens, dtype=np.float64) + window - 1)
    return float(ends.sum())


def _sum_to(number: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns 1 + 2 + ... + number, for each; 0 for numbers below 1."""
    above: NDArray[np.float64] = np.maximum(number, 0)
    return above * (above + 1) / 2
