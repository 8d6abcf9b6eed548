"""Layers of models with several residual streams, and their MLPs that are zero in most places. Source: Gemma 3n.

`decoder_layers.py` names these by their place: a server of other models does not import them.
"""

from __future__ import annotations

import torch
from msgspec import structs
from torch import Tensor, nn

from mysglang.srt.configs.layer_plan import LayerPlan
from mysglang.srt.configs.mlp_plan import SparseMlpPlan
from mysglang.srt.forward.forward_batch import ForwardBatch
from mysglang.srt.layers.altup import AltUp, AltUpStreams, Laurel
from mysglang.srt.layers.context import LayerContext
from mysglang.srt.layers.layer_inputs import LayerInput
from mysglang.srt.layers.sparse_mlp import SparseMLP
from mysglang.srt.models.decoder_layers import DecoderLayer

__all__ = ["AltUpLayer", "AltUpStreams", "sparse_mlp"]


class AltUpLayer(DecoderLayer):
    """A layer for one of several streams, whose output corrects them all, with LAuReL beside attention and an input of
    its own for the other streams. Source: Gemma 3n.

    Residual stream and output are [T, streams, hidden_size]: what was predicted of all streams, and corrections of it.
    """

    def __init__(self, plan: LayerPlan, mixer: nn.Module, hidden_size: int, context: LayerContext) -> None:
        super().__init__(plan, mixer, hidden_size, context)
        assert plan.altup is not None and plan.input is not None, "as Gemma 3n has both"
        altup, eps = plan.altup, plan.norms.norm.eps
        self.altup = AltUp(
            hidden_size,
            streams=altup.streams,
            active=altup.active,
            scaled=altup.scaled,
            eps=eps,
            context=context.under("altup"),
        )
        self.laurel = Laurel(hidden_size, altup.rank, eps, context.under("laurel"))
        self.layer_input = LayerInput(hidden_size, **structs.asdict(plan.input), context=context.under("layer_input"))
        # Streams, their predictions and the corrections in float32, and corrections in the dtype.
        self.workspace_per_token = 4 * altup.streams * hidden_size * torch.float32.itemsize

    def forward(self, x: Tensor, residual: Tensor | None, batch: ForwardBatch) -> tuple[Tensor, Tensor]:
        (before_attention, before_mlp), (after_attention, after_mlp) = self.norms_before, self.norms_after
        (mixer,), active = self.mixers, self.altup.active
        predicted = self.altup.predict(x if residual is None else x + residual)
        normed, _ = before_attention.add(predicted[:, active].contiguous(), None)
        attended = after_attention(mixer(normed, batch))
        predicted = batch.wanted(predicted)
        stream = (predicted[:, active] + attended + self.laurel(batch.wanted(normed))) * 0.5**0.5
        fed, stream = before_mlp.add(stream, None)
        corrections = self.altup.corrections(predicted, stream + after_mlp(self._fed(fed, stream, batch)))
        first = self.altup.first(predicted[:, active] + corrections[:, active])
        corrections[:, 1:] += self.layer_input(first, batch).unsqueeze(1)
        return corrections, predicted


def sparse_mlp(plan: SparseMlpPlan, hidden_size: int, context: LayerContext) -> SparseMLP:
    return SparseMLP(hidden_size, plan.intermediate_size, plan.activation, plan.sparsity, context)
