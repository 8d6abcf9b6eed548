"""The token embedding and the projection to logits, their rows (tokens) split over the ranks.

The vocabulary is padded to a multiple of the ranks; padding is zero in memory and never leaves this file.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mysglang.srt.distributed.groups import Group
from mysglang.srt.kernels.activation import soft_cap
from mysglang.srt.layers.context import LayerContext
from mysglang.srt.layers.linear import LinearBase
from mysglang.srt.layers.parameter import Section, WeightParameter, restore_parameter


class VocabParallelEmbedding(nn.Module):
    """Turns token ids into vectors. Each rank has a part of the vocabulary."""

    def __init__(self, vocab_size: int, hidden_size: int, context: LayerContext) -> None:
        super().__init__()
        self.tp: Group = context.tp
        section = vocabulary_rows(vocab_size, self.tp)
        self.first = section.size * self.tp.rank
        self.weight = WeightParameter((section.size, hidden_size), (section,), dtype=context.dtype)

    def forward(self, ids: Tensor) -> Tensor:
        """Looks up token ids: [T] int64 -> [T, hidden_size]."""
        if self.tp.size == 1:
            return F.embedding(ids, self.weight)
        local = ids - self.first
        elsewhere = (local < 0) | (local >= len(self.weight))
        vectors = F.embedding(local.masked_fill(elsewhere, 0), self.weight)
        return self.tp.all_reduce(vectors.masked_fill(elsewhere.unsqueeze(-1), 0))


class ScaledEmbedding(VocabParallelEmbedding):
    """An embedding whose vectors are multiplied by a factor, which is rounded to their dtype first."""

    def __init__(self, vocab_size: int, hidden_size: int, scale: float, context: LayerContext) -> None:
        super().__init__(vocab_size, hidden_size, context)
        self._scale = float(torch.tensor(scale, dtype=context.dtype, device="cpu"))

    def forward(self, ids: Tensor) -> Tensor:
        return super().forward(ids).mul_(self._scale)


class ParallelLMHead(LinearBase):
    """Turns hidden states into logits. Each rank has a part of the vocabulary."""

    def __init__(
        self,
        vocab_size: int,
        hidden_size: int,
        *,
        scale: float = 1.0,
        cap: float = 0.0,
        bias: bool = False,
        context: LayerContext,
    ) -> None:
        """`scale`: factor of the logits. `cap`: soft cap of the scaled logits; 0: none."""
        rows = vocabulary_rows(vocab_size, context.tp)
        super().__init__(Section(hidden_size, 0, hidden_size), (rows,), bias=bias, context=context)
        self.vocab_size = vocab_size
        self.scale = scale
        self.cap = cap

    def forward(self, hidden: Tensor) -> Tensor:
        """Computes the logits: [N, hidden_size] -> [N, vocab_size], the same on every rank."""
        logits = self.tp.all_gather(self._own_logits(hidden))[:, : self.vocab_size]
        if self.scale != 1.0:
            logits = logits * self.scale
        return soft_cap(logits, self.cap) if self.cap else logits

    def _own_logits(self, hidden: Tensor) -> Tensor:
        """Returns the logits of this rank's tokens: [N, hidden_size] -> [N, tokens]."""
        return self.method.apply(self, hidden, self.bias)


class UnitLMHead(ParallelLMHead):
    """Computes logits with rows divided by their lengths. Source: Baichuan 2, whose code calls it NormHead.

    The weight stays as it was loaded, so that it can be read and updated. Logits are divided in its place.
    """

    def __init__(
        self, vocab_size: int, hidden_size: int, *, scale: float = 1.0, cap: float = 0.0, context: LayerContext
    ) -> None:
        super().__init__(vocab_size, hidden_size, scale=scale, cap=cap, context=context)
        self._factors = torch.empty(vocabulary_rows(vocab_size, context.tp).size, dtype=torch.float32)

    def process_weights_after_loading(self) -> None:
        """Writes the factors to the same memory as before, because a captured step has its address."""
        lengths = torch.linalg.vector_norm(self.values_of("weight"), dim=1, dtype=torch.float32)
        self._factors.copy_(lengths.clamp_(min=1e-12).reciprocal_())
        super().process_weights_after_loading()

    def _own_logits(self, hidden: Tensor) -> Tensor:
        logits = super()._own_logits(hidden)
        return (logits * self._factors).to(logits.dtype)


class TiedLMHead(ParallelLMHead):
    """Computes logits with the embedding's weight. That weight remains unconverted in the embedding, even if a
    converted copy is used here.
    """

    def __init__(
        self,
        vocab_size: int,
        table: VocabParallelEmbedding,
        *,
        scale: float = 1.0,
        cap: float = 0.0,
        bias: bool = False,
        context: LayerContext,
    ) -> None:
        with torch.device("meta"):  # a weight that is not kept
            super().__init__(vocab_size, table.weight.shape[1], scale=scale, cap=cap, context=context)
        if bias:
            rows = vocabulary_rows(vocab_size, context.tp)
            self.bias = WeightParameter((rows.size,), (rows,), dtype=context.dtype)
        # In a tuple, where torch does not count it among the parts of this one.
        self._tied_to = (table,)
        self.weight = table.weight

    def reopen_weights(self, layouts: Mapping[str, WeightParameter]) -> None:
        (table,) = self._tied_to
        if self.weight is not table.weight:
            restore_parameter(self, "weight", table.weight)


def vocabulary_rows(vocab_size: int, tp: Group) -> Section:
    """Returns the tokens of one rank, padding included."""
    rows = -(-vocab_size // tp.size)
    return Section(vocab_size, min(rows * tp.rank, vocab_size), rows)
