"""Inputs beside the embedding of a token: learned positions, and inputs that each layer has of its own (per-layer
embeddings).

The latter depend on the token's id and on its embedding. The model makes those of all layers when a step begins.
Source: Gemma 3n.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mysglang.srt.forward.forward_batch import ForwardBatch
from mysglang.srt.kernels.activation import gated
from mysglang.srt.layers.activation import gated_activation
from mysglang.srt.layers.context import LayerContext
from mysglang.srt.layers.layernorm import RMSNorm
from mysglang.srt.layers.linear import ReplicatedLinear
from mysglang.srt.layers.parameter import WeightParameter
from mysglang.srt.layers.vocab_parallel_embedding import ScaledEmbedding


class NoPositions(nn.Module):
    """The null table of positions."""

    def forward(self, embedded: Tensor, positions: Tensor) -> Tensor:
        return embedded


class LearnedPositions(NoPositions):
    """Adds a learned vector of each token's position to its embedding."""

    def __init__(self, rows: int, size: int, context: LayerContext) -> None:
        super().__init__()
        self.weight = WeightParameter((rows, size), dtype=context.dtype)

    def forward(self, embedded: Tensor, positions: Tensor) -> Tensor:
        """embedded: [T, hidden_size]; positions: [T] int64, below the number of rows. Returns embedded's shape."""
        return embedded + F.embedding(positions, self.weight)


class NoLayerInputs(nn.Module):
    """The null inputs."""

    def forward(self, ids: Tensor, embedded: Tensor) -> Tensor | None:
        return None


class EmbeddingsAgain(NoLayerInputs):
    """The embeddings, which some layers take beside the residual stream. Source: Zamba2."""

    def forward(self, ids: Tensor, embedded: Tensor) -> Tensor:
        """Copies the embeddings, [T, hidden_size]: the residual stream begins as these, and norms overwrite it."""
        return embedded.clone()


class LayerInputs(NoLayerInputs):
    """(norm(projection(embedding) / sqrt(hidden_size)) + sqrt(size) * table[id]) / sqrt(2)."""

    def __init__(
        self, hidden_size: int, *, layers: int, vocab_size: int, size: int, eps: float, context: LayerContext
    ) -> None:
        """`size`: of each layer's input. Tokens from `vocab_size` on have the row of token 0."""
        super().__init__()
        width = layers * size
        self.table = ScaledEmbedding(vocab_size, width, size**0.5, context)
        self.projection = ReplicatedLinear(hidden_size, width, context=context.under("projection"))
        self.norm = RMSNorm(size, eps, context)
        self._vocab_size, self._shape, self._scale = vocab_size, (layers, size), hidden_size**-0.5

    def forward(self, ids: Tensor, embedded: Tensor) -> Tensor:
        """Computes an additional input for each layer: ids [T] int64, embedded [T, hidden_size] -> [T, layers,
        size].
        """
        known = ids.masked_fill(ids >= self._vocab_size, 0)
        shape = len(ids), *self._shape
        projected: Tensor = self.norm((self.projection(embedded) * self._scale).view(shape))
        return projected.add_(self.table(known).view(shape)).mul_(2.0**-0.5)


class NoLayerInput(nn.Module):
    """The null input, of a layer that has none."""

    def add(self, x: Tensor, residual: Tensor, batch: ForwardBatch) -> tuple[Tensor, Tensor]:
        """Returns the layer's output and the residual stream with the input's part in their sum: [W, hidden_size]."""
        return x, residual


class LayerInput(NoLayerInput):
    """norm(projection(act(gate(x)) * input)), which is added to the residual stream x."""

    def __init__(
        self, hidden_size: int, *, number: int, size: int, activation: str, eps: float, context: LayerContext
    ) -> None:
        """`number`: of the layer's input among those of all."""
        super().__init__()
        self.gate = ReplicatedLinear(hidden_size, size, context=context.under("gate"))
        self.projection = ReplicatedLinear(size, hidden_size, context=context.under("projection"))
        self.norm = RMSNorm(hidden_size, eps, context)
        self._activation, self._number = gated_activation(activation), number

    def forward(self, x: Tensor, batch: ForwardBatch) -> Tensor:
        """Adds the layer's additional input: x [W, hidden_size] of the wanted tokens -> the same shape."""
        assert batch.layer_inputs is not None, "the model makes them"
        given = batch.wanted(batch.layer_inputs[:, self._number])
        out: Tensor = self.norm(self.projection(gated[self._activation](torch.cat((self.gate(x), given), dim=-1))))
        return out

    def add(self, x: Tensor, residual: Tensor, batch: ForwardBatch) -> tuple[Tensor, Tensor]:
        total = x + residual
        return self(total, batch), total


class OneStream(nn.Module):
    """The null streams: the residual stream is all there is."""

    def begin(self, embedded: Tensor) -> Tensor:
        """Computes the input of the first layer from embeddings [T, hidden_size]."""
        return embedded

    def end(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor | None]:
        """Converts the last layer's output and the residual stream to the input of the last norm, [W, hidden_size]."""
        return x, residual
