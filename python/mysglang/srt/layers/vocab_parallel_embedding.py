"""The token embedding and the projection to logits, their rows (tokens) split over the ranks.

The vocabulary is padded to a multiple of the ranks; padding is zero in memory and never leaves this file.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch.nn.functional as F
from torch import Tensor, nn

from mysglang.srt.distributed.groups import Group
from mysglang.srt.kernels.gemm import linear, pack_linear_weight
from mysglang.srt.layers.context import LayerContext
from mysglang.srt.layers.parameter import Section, WeightParameter, replace_parameter, restore_parameter
from mysglang.srt.layers.quantization.unquantized import reopen_weight


class VocabParallelEmbedding(nn.Module):
    """Token ids to vectors."""

    def __init__(self, vocab_size: int, hidden_size: int, context: LayerContext) -> None:
        super().__init__()
        self.tp: Group = context.tp
        rows = -(-vocab_size // self.tp.size)
        self.first = rows * self.tp.rank
        section = Section(vocab_size, min(self.first, vocab_size), rows)
        self.weight = WeightParameter((rows, hidden_size), (section,), dtype=context.dtype)

    def forward(self, ids: Tensor) -> Tensor:
        """[T] int64 -> [T, hidden_size]."""
        if self.tp.size == 1:
            return F.embedding(ids, self.weight)
        local = ids - self.first
        elsewhere = (local < 0) | (local >= len(self.weight))
        vectors = F.embedding(local.masked_fill(elsewhere, 0), self.weight)
        return self.tp.all_reduce(vectors.masked_fill(elsewhere.unsqueeze(-1), 0))


class ParallelLMHead(nn.Module):
    """Vectors to logits, with the weight of an embedding: a model's own (tied weights), or one made for this alone."""

    weight: Tensor

    def __init__(self, vocab_size: int, table: VocabParallelEmbedding, *, tied: bool = False) -> None:
        """`tied`: whether the table is the model's embedding too."""
        super().__init__()
        # In a tuple, where torch does not count it among the parts of this one.
        self._tied_to = (table,) if tied else ()
        self.tp: Group = table.tp
        self.vocab_size = vocab_size
        self.weight = table.weight

    def process_weights_after_loading(self) -> None:
        """A tied embedding keeps the plain weight."""
        plain = self._tied_to[0].weight if self._tied_to else self.weight
        replace_parameter(self, "weight", pack_linear_weight(plain))

    def reopen_weights(self, layouts: Mapping[str, WeightParameter]) -> None:
        """The opposite."""
        if not self._tied_to:
            reopen_weight(self, layouts)
        elif self.weight is not self._tied_to[0].weight:
            restore_parameter(self, "weight", self._tied_to[0].weight)

    def forward(self, hidden: Tensor) -> Tensor:
        """[N, hidden_size] -> [N, vocab_size], the same on every rank."""
        return self.tp.all_gather(linear(hidden, self.weight, None))[:, : self.vocab_size]
