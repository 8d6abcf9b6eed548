"""The layers of decoders: how their parts follow one another, and the table of MLPs that a layer's plan may name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeAlias, cast

from msgspec import structs
from torch import Tensor, nn

from mysglang.srt.configs.layer_plan import (
    DecoderPlan,
    GatedMlpPlan,
    LayerPlan,
    MixturePlan,
    MlpAndExpertsPlan,
    MlpPlan,
    NoMlpPlan,
    NormPlan,
    PlainMlpPlan,
    ScaledMlpPlan,
)
from mysglang.srt.configs.mixer_plan import NoMixerPlan
from mysglang.srt.configs.mlp_plan import SparseMlpPlan
from mysglang.srt.forward.forward_batch import ForwardBatch
from mysglang.srt.layers.context import LayerContext
from mysglang.srt.layers.decoder_blocks import FeedForward, GatedMLP, PlainMLP, ScaledMLP
from mysglang.srt.layers.layer_inputs import (
    EmbeddingsAgain,
    LayerInput,
    LayerInputs,
    LearnedPositions,
    NoLayerInput,
    NoLayerInputs,
    NoPositions,
    OneStream,
)
from mysglang.srt.layers.layernorm import NORMS, RMS_NORMS, LayerNorm, NoNorm, RMSNorm
from mysglang.srt.layers.parameter import WeightParameter
from mysglang.srt.utils.late_import import at_first_call


class DecoderLayer(nn.Module):
    """A decoder layer: a mixer, then an MLP, each between the norms that the plan names.

    The residual stream is kept apart from the layer's newest output, and added by the next norm. Both hold the batch's
    wanted tokens afterwards: the others go no further than attention.
    """

    def __init__(self, plan: LayerPlan, mixer: nn.Module, hidden_size: int, context: LayerContext) -> None:
        super().__init__()
        norms = plan.norms
        before_attention = self._norm(norms.before_attention, norms.norm, hidden_size, context)
        self.add_module(plan.attention.name, mixer)
        scale = plan.residual_scale
        after_attention = self._norm(norms.after_attention, norms.norm, hidden_size, context)
        before_mlp = self._norm(norms.before_mlp, norms.norm, hidden_size, context)
        self.mlp = MLPS[type(plan.mlp)](plan.mlp, hidden_size, context.under("mlp"))
        after_mlp = self._norm(norms.after_mlp, norms.norm, hidden_size, context)
        # In tuples, where torch does not count them again: they are parts of the layer by their checkpoint's names.
        self.mixers = (mixer,)
        self.norms_before = before_attention or NoNorm(), before_mlp or NoNorm()
        self.norms_after = _scaled(after_attention or unchanged, scale), _scaled(after_mlp or unchanged, scale)

    def forward(self, x: Tensor, residual: Tensor | None, batch: ForwardBatch) -> tuple[Tensor, Tensor]:
        (before_attention, before_mlp), (after_attention, after_mlp) = self.norms_before, self.norms_after
        (mixer,) = self.mixers
        x, residual = before_attention.add(x, residual)
        x = after_attention(mixer(x, batch))
        x, residual = before_mlp.add(x, batch.wanted(residual))
        return after_mlp(self._fed(x, residual, batch)), residual

    def _fed(self, x: Tensor, residual: Tensor, batch: ForwardBatch) -> Tensor:
        """Returns the MLP's output for x, the normed residual stream of the wanted tokens."""
        return self.mlp.in_step(x, batch)

    def _norm(self, name: str | None, plan: NormPlan, size: int, context: LayerContext) -> RMSNorm | LayerNorm | None:
        if name is None:
            return None
        norm = norm_of(plan, size, context)
        self.add_module(name, norm)
        return norm


class ScaledDecoderLayer(DecoderLayer):
    """A layer that ends with an input of its own, if it has one. The residual stream is then multiplied by a number of
    the checkpoint, `layer_scalar`.
    """

    def __init__(self, plan: LayerPlan, mixer: nn.Module, hidden_size: int, context: LayerContext) -> None:
        super().__init__(plan, mixer, hidden_size, context)
        self.layer_scalar = WeightParameter((1,), dtype=context.dtype)
        self.layer_scalar.centre = 1.0
        self.layer_input = layer_input(plan, hidden_size, context)

    def forward(self, x: Tensor, residual: Tensor | None, batch: ForwardBatch) -> tuple[Tensor, Tensor]:
        x, residual = self.layer_input.add(*super().forward(x, residual, batch), batch)
        return x * self.layer_scalar, residual * self.layer_scalar


class TakesStream(Protocol):
    """An MLP that reads the residual stream, too."""

    def beside(self, x: Tensor, stream: Tensor, batch: ForwardBatch) -> Tensor:
        """Returns the MLP's output for x, the normed residual stream, and the stream itself: [W, hidden_size] each."""
        ...


class ExpertsBesideLayer(ScaledDecoderLayer):
    """A decoder layer whose experts take the residual stream itself."""

    def _fed(self, x: Tensor, residual: Tensor, batch: ForwardBatch) -> Tensor:
        return cast(TakesStream, self.mlp).beside(x, residual, batch)


class NormedStreamLayer(DecoderLayer):
    """A layer whose norms change the residual stream itself, which then goes on times a factor."""

    def __init__(self, plan: LayerPlan, mixer: nn.Module, hidden_size: int, context: LayerContext) -> None:
        super().__init__(plan, mixer, hidden_size, context)
        assert plan.normed_stream is not None
        self._of_attention, self._of_mlp = plan.normed_stream.attention, plan.normed_stream.mlp

    def forward(self, x: Tensor, residual: Tensor | None, batch: ForwardBatch) -> tuple[Tensor, Tensor]:
        (before_attention, before_mlp), (mixer,) = self.norms_before, self.mixers
        (kept, added), (kept_last, added_last) = self._of_attention, self._of_mlp
        x, _ = before_attention.add(x, residual)
        attended: Tensor = mixer(x, batch)
        x, _ = before_mlp.add(attended * added, batch.wanted(x) * kept)
        # First: the MLP may use up its input.
        stream = x * kept_last
        return self._fed(x, x, batch) * added_last, stream


class ParallelDecoderLayer(DecoderLayer):
    """A decoder layer with attention and MLP in parallel, on the same norm of the residual stream."""

    def forward(self, x: Tensor, residual: Tensor | None, batch: ForwardBatch) -> tuple[Tensor, Tensor]:
        (norm, _), (mixer,) = self.norms_before, self.mixers
        x, residual = norm.add(x, residual)
        attended: Tensor = mixer(x, batch)
        # Attention first: the MLP may use up its input.
        return attended + self.mlp.in_step(batch.wanted(x), batch), batch.wanted(residual)


class ParallelNormsLayer(DecoderLayer):
    """A layer whose attention and MLP both read the same residual stream, each through its own norm. Their outputs are
    added.
    """

    def forward(self, x: Tensor, residual: Tensor | None, batch: ForwardBatch) -> tuple[Tensor, Tensor]:
        (before_attention, before_mlp), (mixer,) = self.norms_before, self.mixers
        x, residual = before_attention.add(x, residual)
        attended: Tensor = mixer(x, batch)
        residual = batch.wanted(residual)
        return attended + self.mlp.in_step(before_mlp(residual), batch), residual


class MixerLayer(DecoderLayer):
    """A layer without an MLP."""

    def forward(self, x: Tensor, residual: Tensor | None, batch: ForwardBatch) -> tuple[Tensor, Tensor]:
        (norm, _), (mixer,), (after, _) = self.norms_before, self.mixers, self.norms_after
        x, residual = norm.add(x, residual)
        return after(mixer(x, batch)), batch.wanted(residual)


class MlpLayer(DecoderLayer):
    """A layer without a mixer."""

    def forward(self, x: Tensor, residual: Tensor | None, batch: ForwardBatch) -> tuple[Tensor, Tensor]:
        (_, norm), (_, after) = self.norms_before, self.norms_after
        x, residual = norm.add(x, residual)
        return after(self.mlp.in_step(batch.wanted(x), batch)), batch.wanted(residual)


STREAMS = "mysglang.srt.models.stream_layers"

MakeLayer: TypeAlias = Callable[[LayerPlan, nn.Module, int, LayerContext], DecoderLayer]
"""(plan, mixer, hidden_size, context) -> the layer."""

_altup_layer: MakeLayer = at_first_call(f"{STREAMS}:AltUpLayer")
_altup_streams: Callable[..., OneStream] = at_first_call(f"{STREAMS}:AltUpStreams")


def layer_kind(plan: LayerPlan) -> MakeLayer:
    """Returns the class of a layer, which decides in which order its parts follow one another."""
    if plan.parallel:
        return ParallelDecoderLayer if plan.norms.before_mlp is None else ParallelNormsLayer
    if plan.normed_stream is not None:
        return NormedStreamLayer
    if plan.altup is not None:
        return _altup_layer
    assert plan.input is None or plan.scaled_stream, "other layers have no inputs of their own"
    if plan.scaled_stream:
        return ExpertsBesideLayer if isinstance(plan.mlp, MlpAndExpertsPlan) else ScaledDecoderLayer
    if isinstance(plan.mlp, NoMlpPlan):
        return MixerLayer
    return MlpLayer if isinstance(plan.attention, NoMixerPlan) else DecoderLayer


def layer_input(plan: LayerPlan, hidden_size: int, context: LayerContext) -> NoLayerInput:
    """Returns the layer's own input, or the null one."""
    if plan.input is None:
        return NoLayerInput()
    return LayerInput(hidden_size, **structs.asdict(plan.input), context=context.under("layer_input"))


def blocks_of(plan: DecoderPlan, hidden_size: int, context: LayerContext) -> nn.ModuleList:
    """Returns the blocks of weights that several layers use, in the order of the plan."""
    inside = context.under("blocks")
    return nn.ModuleList(_block(block, hidden_size, inside.under(str(i))) for i, block in enumerate(plan.blocks))


def layer_inputs_of(plan: DecoderPlan, hidden_size: int, context: LayerContext) -> NoLayerInputs:
    inside, inputs = context.under("layer_inputs"), plan.inputs
    if plan.blocks:
        assert inputs is None, "no such model is known"
        return EmbeddingsAgain()
    return NoLayerInputs() if inputs is None else LayerInputs(hidden_size, **structs.asdict(inputs), context=inside)


def positions_of(plan: DecoderPlan, hidden_size: int, context: LayerContext) -> NoPositions:
    return NoPositions() if plan.positions is None else LearnedPositions(plan.positions, hidden_size, context)


def streams_of(plan: DecoderPlan, hidden_size: int, context: LayerContext) -> OneStream:
    inside = context.under("streams")
    return OneStream() if plan.altup is None else _altup_streams(hidden_size, plan.altup.streams, inside)


def gated_mlp(plan: GatedMlpPlan, hidden_size: int, context: LayerContext) -> GatedMLP:
    return GatedMLP(hidden_size, plan.intermediate_size, plan.activation, bias=plan.bias, context=context)


def plain_mlp(plan: PlainMlpPlan, hidden_size: int, context: LayerContext) -> PlainMLP:
    return PlainMLP(hidden_size, plan.intermediate_size, plan.activation, plan.parts, bias=plan.bias, context=context)


def scaled_mlp(plan: ScaledMlpPlan, hidden_size: int, context: LayerContext) -> ScaledMLP:
    scales = plan.gate_scale, plan.scale
    return ScaledMLP(hidden_size, plan.intermediate_size, plan.activation, scales, bias=plan.bias, context=context)


_block: Callable[..., nn.Module] = at_first_call("mysglang.srt.models.shared_blocks:block_of")


def no_mlp(plan: NoMlpPlan, hidden_size: int, context: LayerContext) -> FeedForward:
    return FeedForward()


MLPS: Mapping[type[MlpPlan], Callable[[Any, int, LayerContext], FeedForward]] = {
    GatedMlpPlan: gated_mlp,
    PlainMlpPlan: plain_mlp,
    ScaledMlpPlan: scaled_mlp,
    SparseMlpPlan: at_first_call(f"{STREAMS}:sparse_mlp"),
    MixturePlan: at_first_call("mysglang.srt.models.mixtures:mixture"),
    MlpAndExpertsPlan: at_first_call("mysglang.srt.models.mixtures:mlp_and_experts"),
    NoMlpPlan: no_mlp,
}
"""(plan, hidden_size, context) -> the module."""


def norm_of(plan: NormPlan, size: int, context: LayerContext) -> RMSNorm | LayerNorm:
    return NORMS[plan.kind](size, plan.eps, context)


def head_norm_of(plan: NormPlan, size: int, context: LayerContext) -> RMSNorm:
    return RMS_NORMS[plan.kind](size, plan.eps, context)


def unchanged(x: Tensor) -> Tensor:
    """Returns x, for a plan without a norm."""
    return x


def _scaled(norm: Callable[[Tensor], Tensor], scale: float) -> Callable[[Tensor], Tensor]:
    return norm if scale == 1.0 else lambda x: norm(x) * scale
