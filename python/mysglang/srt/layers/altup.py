"""Several residual streams for each token, of which a layer computes one and corrects the others (AltUp), and LAuReL.

Baykal et al., "Alternating Updates for Efficient Transformers" (arXiv 2301.13310); Menghani, Kumar and Kumar, "LAuReL"
(arXiv 2411.07501). As in Gemma 3n. All of it is small beside attention and MLP, and every rank computes all of it.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from mysglang.srt.kernels.activation import soft_cap
from mysglang.srt.kernels.gemm import linear
from mysglang.srt.layers.context import LayerContext
from mysglang.srt.layers.layer_inputs import OneStream
from mysglang.srt.layers.layernorm import RMSNorm
from mysglang.srt.layers.linear import ReplicatedLinear
from mysglang.srt.layers.parameter import WeightParameter
from mysglang.srt.layers.quantization.unquantized import Unquantized

LEAST_SQUARE = 1e-5
"""Least mean square of a stream that is brought to the size of another."""


class AltUpStreams(OneStream):
    """The streams before the first layer and after the last one. All streams of a token are as large as its first."""

    def __init__(self, hidden_size: int, streams: int, context: LayerContext) -> None:
        super().__init__()

        def projections(name: str) -> nn.ModuleList:
            within = context.under(name)
            return nn.ModuleList(
                ReplicatedLinear(hidden_size, hidden_size, context=within.under(str(i))) for i in range(streams - 1)
            )

        self.widen, self.narrow = projections("widen"), projections("narrow")
        self._ones = torch.ones(1, hidden_size)

    def begin(self, embedded: Tensor) -> Tensor:
        """Expands embeddings to several streams: [T, hidden_size] -> [T, streams, hidden_size]."""
        return self._alike([embedded, *(each(embedded) for each in self.widen)]).to(embedded.dtype)

    def end(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor | None]:
        """Returns the mean of the streams: [W, streams, hidden_size] -> [W, hidden_size]."""
        first, *others = (x + residual).unbind(dim=1)
        streams = [first, *(each(stream.contiguous()) for each, stream in zip(self.narrow, others, strict=True))]
        return self._alike(streams).mean(dim=1).to(x.dtype), None

    def _alike(self, streams: list[Tensor]) -> Tensor:
        """Scales streams to the size of the first one: [N, hidden_size] each -> [N, streams, hidden_size] float32."""
        first, *others = (stream.float() for stream in streams)
        size = self._mean_square(first).sqrt()
        scaled = (other * (size * self._mean_square(other).clamp(min=LEAST_SQUARE).rsqrt()) for other in others)
        return torch.stack((first, *scaled), dim=1)

    def _mean_square(self, x: Tensor) -> Tensor:
        """Computes mean squares, [N, hidden_size] float32 -> [N, 1], as a product, whose deterministic form treats
        each row by itself.
        """
        return linear(x.square(), self._ones, None) / x.shape[1]


class Coefficients(nn.Module):
    """A linear layer with a handful of inputs and outputs."""

    def __init__(self, inputs: int, outputs: int, context: LayerContext) -> None:
        super().__init__()
        self.weight = WeightParameter((outputs, inputs), dtype=context.dtype)

    def forward(self, x: Tensor) -> Tensor:
        """Multiplies with a small matrix, [N, inputs] -> [N, outputs] float32, so that no row depends on other rows."""
        return (x.unsqueeze(1) * self.weight.float()).sum(dim=-1)


class AltUp(nn.Module):
    """One layer's predictions of all streams, and their correction by what it computed for the active one."""

    def __init__(
        self, hidden_size: int, *, streams: int, active: int, scaled: bool, eps: float, context: LayerContext
    ) -> None:
        """scaled: `first` multiplies each lane by a number of the checkpoint, which is not used otherwise."""
        super().__init__()
        self.correct_output_scale = WeightParameter((hidden_size,), dtype=context.dtype)
        self.correct_output_scale.centre = 1.0
        plain = replace(context, quant=Unquantized())
        self.modality_router = ReplicatedLinear(hidden_size, streams, context=plain)
        self.router_norm = RMSNorm(hidden_size, eps, context)
        self.prediction_coefs = Coefficients(streams, streams * streams, context)
        self.correction_coefs = Coefficients(streams, streams, context)
        self.active = active
        self._scaled, self._streams, self._factor = scaled, streams, 1.0 / hidden_size

    def predict(self, streams: Tensor) -> Tensor:
        """Predicts each stream: adds a weighted sum of all streams to it. [T, streams, hidden_size] -> the same
        shape.
        """
        coefs = self.prediction_coefs(self._routed(streams[:, self.active]))
        coefs = coefs.view(-1, self._streams, self._streams)
        given = streams.float()
        predicted = given.clone()
        for number in range(self._streams):
            predicted.addcmul_(coefs[:, :, number : number + 1], given[:, number : number + 1])
        return predicted.to(streams.dtype)

    def corrections(self, predicted: Tensor, computed: Tensor) -> Tensor:
        """Returns [W, streams, hidden_size] to add to the prediction. computed: [W, hidden_size], the active stream."""
        coefs: Tensor = self.correction_coefs(self._routed(computed)) + 1.0
        missed = (computed - predicted[:, self.active]).float()
        return (missed.unsqueeze(1) * coefs.unsqueeze(-1)).to(computed.dtype)

    def first(self, corrected: Tensor) -> Tensor:
        """Returns the corrected active stream [W, hidden_size], scaled for the layer's own input."""
        return corrected * self.correct_output_scale if self._scaled else corrected

    def _routed(self, x: Tensor) -> Tensor:
        """Computes the modality weights: [N, hidden_size] -> [N, streams] float32."""
        routed: Tensor = self.modality_router(self.router_norm(x.contiguous()) * self._factor)
        return soft_cap(routed.float(), 1.0)  # tanh, by an op whose rows do not depend on those beside them


class Laurel(nn.Module):
    """x + norm(right(left(x))), a residual connection that is learned."""

    def __init__(self, hidden_size: int, rank: int, eps: float, context: LayerContext) -> None:
        super().__init__()
        self.linear_left = ReplicatedLinear(hidden_size, rank, context=context.under("linear_left"))
        self.linear_right = ReplicatedLinear(rank, hidden_size, context=context.under("linear_right"))
        self.post_laurel_norm = RMSNorm(hidden_size, eps, context)

    def forward(self, x: Tensor) -> Tensor:
        """Computes the layer: [N, hidden_size] -> the same shape."""
        learned: Tensor = self.post_laurel_norm(self.linear_right(self.linear_left(x)))
        return x + learned
