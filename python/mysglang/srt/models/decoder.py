"""Decoder: embedding, layers and norm of every decoder, built from its plan (`configs/layer_plan.py`).

Device-agnostic, and nothing in `forward` looks at a value, so a step can be captured in a graph. What the kinds of a
plan are computed by is in tables: `MIXERS` here, `MLPS` in `decoder_layers.py`; norms, activations and rotary
scalings in their files in `layers/`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property, partial
from typing import Any, ClassVar, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from mysglang.srt.configs.layer_plan import (
    AttentionPlan,
    ChoicePlan,
    LatentPlan,
    MixerPlan,
    RopePlan,
)
from mysglang.srt.configs.mixer_plan import (
    ConvolutionPlan,
    KimiDeltaPlan,
    LightningPlan,
    LinearAttentionPlan,
    Mamba2Plan,
    MambaPlan,
    NoMixerPlan,
    SumPlan,
)
from mysglang.srt.configs.model_config import ModelConfig
from mysglang.srt.distributed.pipeline import Stage
from mysglang.srt.forward.forward_batch import AttentionSpec, ChosenKeys, ForwardBatch, StateSpec
from mysglang.srt.layers.context import LayerContext
from mysglang.srt.layers.decoder_blocks import PagedAttention, SumOfMixers, Tempering
from mysglang.srt.layers.indexer import ChosenElsewhere, Indexer, IndexerSizes
from mysglang.srt.layers.latent_attention import ChosenLatentAttention, LatentAttention, LatentSizes
from mysglang.srt.layers.layernorm import LayerNorm, RMSNorm, SplitRMSNorm
from mysglang.srt.layers.linear import store_transposed
from mysglang.srt.layers.linear_attention.gated_convolution import GatedConvolution
from mysglang.srt.layers.linear_attention.gated_delta_net import (
    DeltaSizes,
    GatedDeltaNet,
    GroupedDeltaNet,
    SplitDeltaNet,
)
from mysglang.srt.layers.linear_attention.kimi_delta_attention import KimiDeltaAttention, KimiDeltaSizes
from mysglang.srt.layers.linear_attention.lightning_attention import LightningAttention
from mysglang.srt.layers.linear_attention.mamba import MambaChannels, MambaMixer
from mysglang.srt.layers.linear_attention.mamba2 import GateAlone, Mamba2Mixer, MambaSizes, gated_norm
from mysglang.srt.layers.linear_attention.state_layer import state_specs
from mysglang.srt.layers.parameter import Section
from mysglang.srt.layers.radix_attention import attention_specs
from mysglang.srt.layers.rotary_embedding import RotaryEmbedding
from mysglang.srt.layers.shared_keys import SharedKeysAttention
from mysglang.srt.layers.vocab_parallel_embedding import ScaledEmbedding, VocabParallelEmbedding
from mysglang.srt.models.checkpoint_model import CheckpointModel
from mysglang.srt.models.decoder_layers import (
    DecoderLayer,
    head_norm_of,
    layer_inputs_of,
    layer_kind,
    norm_of,
    positions_of,
    streams_of,
)
from mysglang.srt.models.weight_names import KV_SCALES, WeightNames

ENDS = ("embed_tokens", "norm", "lm_head")
"""Modules before the first layer of a decoder, and after the last one."""


def elsewhere() -> Any:
    """Returns an empty module for a part of the model that another pipeline stage has. It must not be called."""
    return nn.Module()


@runtime_checkable
class TakesWorkspace(Protocol):
    """A module that takes much memory between its products, given back when it is done."""

    workspace_per_token: int
    """Bytes."""


class Decoder(CheckpointModel):
    """This rank's part of a decoder, without a head for logits or scores.

    The first pipeline stage has the embedding and the last one the norm. The last stage also has the embedding's table
    if the table makes the logits.
    """

    stacked: ClassVar[Mapping[str, tuple[str, ...]]] = {"gate_up_proj": ("gate_proj", "up_proj")}
    stacked_heads: ClassVar[Mapping[str, tuple[str, ...]]] = {"qkv_proj": ("q_proj", "k_proj", "v_proj")}
    """Names of the tensors that hold keys and values of each head."""
    ignored: ClassVar[tuple[str, ...]] = ("rotary_emb.inv_freq", *KV_SCALES)
    ignored_prefixes: ClassVar[tuple[str, ...]] = ("mtp.", "model.mtp_")

    def __init__(self, config: ModelConfig, context: LayerContext, stage: Stage) -> None:
        super().__init__(config, context, stage)
        self.plan = plan = config.plan
        self.dtype = context.dtype
        self.stage = stage
        size = config.hidden_size
        makes_logits_of_it = plan.tied_embeddings and stage.last
        self.embed_tokens: VocabParallelEmbedding = (
            self._embedding(context) if stage.first or makes_logits_of_it else elsewhere()
        )
        self.layer_inputs, self.streams = layer_inputs_of(plan, size, context), streams_of(plan, size, context)
        learns_positions_here = stage.first or plan.positions is None
        self.position_embeddings = positions_of(plan, size, context) if learns_positions_here else elsewhere()
        rotaries = Rotaries(config.context_len)

        def layer(index: int) -> DecoderLayer:
            own, inside = plan.layers[index], context.under(f"layers.{index}")
            build = MIXERS[type(own.attention)]
            mixer = build(own.attention, index, size, rotaries, inside.under(own.attention.name))
            return layer_kind(own)(own, mixer, size, inside)

        self.layers = nn.ModuleDict({str(index): layer(index) for index in stage.layers(config.num_layers)})
        if plan.transposed:
            store_transposed(self.layers)
        self.norm: RMSNorm | LayerNorm = norm_of(plan.norm, size, context) if stage.last else elsewhere()

    def forward(self, batch: ForwardBatch) -> Tensor:
        """Computes [W, hidden_size] hidden states of the wanted tokens after the last norm.

        On a stage that is not the last, it returns the output of its last layer, which it has sent to the next stage.
        All tokens must be wanted there.
        """
        x, residual, batch = self._begin(batch)
        for layer, step in zip(self.layers.values(), self._steps(batch), strict=True):
            x, residual = layer(x, residual, step)
        assert residual is not None, "a stage has layers"
        return self._end(x, residual)

    def _steps(self, batch: ForwardBatch) -> list[ForwardBatch]:
        """Returns the step of each layer. Tokens that are not wanted go no further than the last layer that stores
        something of them: what attends over keys of another layer behind it sees the others as a step of their own.
        """
        behind, tail = self._behind_last_store, batch
        if behind and batch.tail is not None:
            if batch.tail.step is None:
                behind = 0  # they attend with all others
            else:
                inputs = None if batch.layer_inputs is None else batch.wanted(batch.layer_inputs)
                tail = replace(batch.tail.step, tail=None, layer_inputs=inputs)
        return [replace(batch, tail=None)] * (len(self.layers) - 1 - behind) + [batch] + [tail] * behind

    @cached_property
    def _behind_last_store(self) -> int:
        """Layers of this stage after the last one that stores something."""
        storing = [self.plan.layers[int(index)].attention.stores for index in self.layers]
        return storing[::-1].index(True) if True in storing else 0

    def _begin(self, batch: ForwardBatch) -> tuple[Tensor, Tensor | None, ForwardBatch]:
        """Input of the first layer, the residual stream ([T, hidden_size] each), and the step with the inputs that
        layers have of their own.
        """
        ids = batch.input_ids
        if not self.stage.first:
            shape = (2, len(ids), self.config.hidden_size)
            x, residual = self.stage.receive(torch.empty(shape, dtype=self.dtype, device=ids.device))
            return x, residual, batch
        embedded: Tensor = self.embed_tokens(ids)
        if batch.embeds is not None:
            embedded = batch.embeds.put(embedded)
        embedded = self.position_embeddings(embedded, batch.positions)
        batch = replace(batch, layer_inputs=self.layer_inputs(ids, embedded))
        return self.streams.begin(embedded), None, batch

    def _end(self, x: Tensor, residual: Tensor) -> Tensor:
        if self.stage.last:
            return self.norm.add(*self.streams.end(x, residual))[0]
        # Apart, as the next layer would have had them: their sum would be rounded.
        self.stage.send(torch.stack((x, residual)))
        return x

    def _embedding(self, context: LayerContext) -> VocabParallelEmbedding:
        size, scale = (self.config.vocab_size, self.config.hidden_size), self.plan.embedding_scale
        return VocabParallelEmbedding(*size, context) if scale == 1.0 else ScaledEmbedding(*size, scale, context)

    def decoder_layers(self) -> list[DecoderLayer]:
        """Returns the layers of this stage, in order."""
        layers = list(self.layers.values())
        return layers  # type: ignore[return-value]

    def attention_specs(self) -> list[AttentionSpec]:
        """Returns a spec for each attention layer of this rank, by layer."""
        return attention_specs(self)

    def state_specs(self) -> list[StateSpec]:
        """Returns a spec for each layer of this rank that keeps a state for each request, in the order of layers."""
        return state_specs(self)

    def workspace(self, max_tokens: int) -> int:
        """Returns the bytes that a step of so many tokens needs inside its layers; small amounts may be left out.
        One layer after another uses this memory.
        """
        modules = (module for module in self.modules() if isinstance(module, TakesWorkspace))
        return max_tokens * max((module.workspace_per_token for module in modules), default=0)

    def weight_names(self) -> WeightNames:
        renamed = dict(self.plan.renamed)
        tied = {"lm_head.weight": "embed_tokens.weight"} if self.plan.tied_embeddings else {}
        aliases = dict(self.plan.aliases) | tied
        experts: dict[str, tuple[str, ...]] = {}
        for mixture in self.plan.mixtures:
            *inwards, down = (f"{part}.weight" for part in mixture.parts)
            if mixture.fused is None:
                experts = {"w13_weight": tuple(inwards), "w2_weight": (down,)}
            if mixture.module != "mlp":
                renamed[mixture.module] = "mlp"
        latent = any(each.latent is not None for each in self.plan.attentions)
        stacked = dict(self.stacked) if self.plan.gates else {}
        stacked |= {} if latent else self.stacked_heads
        for mixer in self.plan.mixers:
            stacked |= mixer.stacked
        prefixes = self.config.weight_prefixes
        return WeightNames(stacked, renamed, experts=experts, aliases=aliases, prefixes=prefixes)

    def ignores(self, name: str) -> bool:
        behind = range(self.config.num_layers, self.config.num_layers + self.plan.unused_layers)
        other = not self.config.reads(name) or any(part in f".{name}" for part in self._unread)
        unused = name.removeprefix("model.").startswith(tuple(f"layers.{i}." for i in behind))
        computed = (*self.plan.unread, *{ending for mixer in self.plan.mixers for ending in mixer.computed})
        return other or unused or name.endswith(computed) or self._of_other_stage(name) or super().ignores(name)

    def _of_other_stage(self, name: str) -> bool:
        """True if another pipeline stage has this checkpoint tensor, because it has the tensor's layer, the embedding,
        the final norm or the head.
        """
        part, _, rest = self._own_names.target(name).parameter.partition(".")
        if part == "layers":
            index = rest.partition(".")[0]
            return index in self._other_layers
        end = dict(self.named_children()).get(part)
        learned = part == "position_embeddings" and self.plan.positions is not None
        return (part in ENDS or learned) and end is not None and next(end.parameters(), None) is None

    @cached_property
    def _unread(self) -> tuple[str, ...]:
        """Parts of tensors' names, with dots around them, that layers have no use for."""
        return tuple(
            f".layers.{index}.{mixer.name}.{part}."
            for index, layer in enumerate(self.plan.layers)
            for mixer in layer.attention.members
            for part in mixer.unread
        )

    @cached_property
    def _own_names(self) -> WeightNames:
        return self.weight_names()

    @cached_property
    def _other_layers(self) -> frozenset[str]:
        return frozenset(map(str, range(self.config.num_layers))) - frozenset(self.layers)


class Rotaries:
    """The rotary tables of one model. Layers with equal plans share one table."""

    def __init__(self, num_positions: int) -> None:
        self._num_positions = num_positions
        self._made: list[tuple[RopePlan, int, RotaryEmbedding]] = []

    def of(self, plan: RopePlan | None, head_dim: int) -> RotaryEmbedding | None:
        """Returns the rotary table of a plan; None for layers without rotary positions."""
        if plan is None:
            return None
        for known, dim, table in self._made:
            if (known, dim) == (plan, head_dim):
                return table
        table = RotaryEmbedding(
            plan.parameters,
            head_dim,
            self._num_positions,
            turned=plan.lanes(head_dim),
            interleaved=plan.interleaved,
        )
        self._made.append((plan, head_dim, table))
        return table


def attention_of(
    plan: AttentionPlan, index: int, hidden_size: int, rotaries: Rotaries, context: LayerContext
) -> PagedAttention | LatentAttention | SharedKeysAttention:
    """Returns the attention of the layer with this number."""
    norm, whole, latent, values = plan.qk_norm, plan.qk_norm_whole, plan.latent, plan.value_norm
    spec = AttentionSpec(
        layer_id=index if plan.keys_of is None else plan.keys_of,
        num_heads=plan.num_heads,
        num_kv_heads=plan.num_kv_heads,
        head_dim=plan.head_dim,
        scale=plan.scale,
        window=plan.window,
        chunked=plan.chunked,
        logit_cap=plan.logit_cap,
        latent_dim=None if latent is None else latent.rank,
    )
    if latent is not None:
        assert norm is None, "latent rows are normed in another way"
        return latent_attention_of(plan, latent, spec, hidden_size, rotaries.of(plan.rope, latent.rope_dim), context)
    if not plan.stores:
        assert not whole and not plan.qk_norm_turned, "heads are normed each, before they are turned"
        assert not plan.output_gate and plan.tempering is None and not plan.sinks, "no such layer shares keys"
        return SharedKeysAttention(
            hidden_size,
            spec,
            rotaries.of(plan.rope, plan.head_dim),
            head_norm=None if norm is None else lambda: head_norm_of(norm, plan.head_dim, context),
            bias=plan.bias,
            output_bias=plan.output_bias,
            context=context,
        )
    return PagedAttention(
        hidden_size,
        spec,
        rotaries.of(plan.rope, plan.head_dim),
        head_norms=None if norm is None or whole else lambda: head_norm_of(norm, plan.head_dim, context),
        whole_norms=None if norm is None or not whole else lambda section: SplitRMSNorm(section, norm.eps, context),
        norms_turned=plan.qk_norm_turned,
        value_norm=None if values is None else lambda: head_norm_of(values, plan.head_dim, context),
        values_from_keys=plan.values_from_keys,
        tempering=None if plan.tempering is None else Tempering(*plan.tempering),
        sinks=plan.sinks,
        fused_by_head=plan.fused_by_head,
        bias=plan.bias,
        output_bias=plan.output_bias,
        output_gate=plan.output_gate,
        context=context,
    )


def latent_attention_of(
    plan: AttentionPlan,
    latent: LatentPlan,
    spec: AttentionSpec,
    hidden_size: int,
    rotary: RotaryEmbedding | None,
    context: LayerContext,
) -> LatentAttention:
    """Returns attention over latent rows: over all of them, or over those that are chosen."""
    sizes = LatentSizes(
        query_rank=latent.query_rank,
        key_dim=latent.key_dim,
        value_dim=latent.value_dim,
        interleaved=latent.interleaved,
    )
    norm = partial(head_norm_of, latent.norm, context=context)
    if (choice := latent.choice) is None:
        return LatentAttention(
            hidden_size,
            spec,
            sizes,
            rotary,
            norm=norm,
            bias=plan.bias,
            output_bias=plan.output_bias,
            context=context,
        )
    assert rotary is not None, "an indexer's keys are turned as those of the layer"
    keys = ChosenKeys(top_k=choice.top_k, layer=choice.layer, index_dim=latent.index_dim)
    return ChosenLatentAttention(
        hidden_size,
        replace(spec, chosen=keys),
        sizes,
        rotary,
        norm=norm,
        bias=plan.bias,
        output_bias=plan.output_bias,
        indexer=indexer_of(choice, latent, hidden_size, rotary, context.under("indexer")),
        context=context,
    )


def indexer_of(
    choice: ChoicePlan, latent: LatentPlan, hidden_size: int, rotary: RotaryEmbedding, context: LayerContext
) -> Indexer | ChosenElsewhere:
    """Returns the part of a layer that chooses the tokens its queries attend to."""
    if (plan := choice.indexer) is None:
        return ChosenElsewhere()
    assert latent.query_rank is not None, "its queries are made from the same vectors as the layer's"
    sizes = IndexerSizes(
        heads=plan.heads,
        head_dim=plan.head_dim,
        rope_dim=latent.rope_dim,
        interleaved=plan.interleaved,
        eps=plan.norm.eps,
    )
    return Indexer(hidden_size, latent.query_rank, sizes, rotary, context)


def linear_attention_of(
    plan: LinearAttentionPlan, index: int, hidden_size: int, rotaries: Rotaries, context: LayerContext
) -> GatedDeltaNet:
    """Returns the gated delta net of the layer with this number. Positions are in its state, so nothing is turned."""
    sizes = DeltaSizes(
        plan.key_heads, plan.value_heads, plan.key_dim, plan.value_dim, plan.kernel, strongest=plan.strongest
    )
    kind = GroupedDeltaNet if plan.grouped else SplitDeltaNet
    return kind(index, hidden_size, sizes, plan.norm.eps, context)


def kimi_delta_of(
    plan: KimiDeltaPlan, index: int, hidden_size: int, rotaries: Rotaries, context: LayerContext
) -> KimiDeltaAttention:
    """Returns the delta net with decays by channel of the layer with this number."""
    sizes = KimiDeltaSizes(plan.heads, plan.head_dim, plan.kernel)
    return KimiDeltaAttention(index, hidden_size, sizes, plan.norm.eps, context)


def lightning_of(
    plan: LightningPlan, index: int, hidden_size: int, rotaries: Rotaries, context: LayerContext
) -> LightningAttention:
    """Returns the lightning attention of the layer with this number."""
    sizes = plan.heads, plan.head_dim, plan.slope, plan.norm.eps
    return LightningAttention(index, hidden_size, *sizes, plan.inputs, context)


def selective_of(
    plan: MambaPlan, index: int, hidden_size: int, rotaries: Rotaries, context: LayerContext
) -> MambaMixer:
    """Returns the Mamba layer with this number."""
    sizes = MambaChannels(
        channels=plan.channels,
        state_size=plan.state_size,
        rank=plan.rank,
        kernel=plan.kernel,
        conv_bias=plan.conv_bias,
        bias=plan.bias,
    )
    norm = plan.norm

    def norm_of_size(size: int) -> nn.Module:
        return nn.Identity() if norm is None else head_norm_of(norm, size, context)

    return MambaMixer(index, hidden_size, sizes, norm_of_size, context)


def mamba_of(plan: Mamba2Plan, index: int, hidden_size: int, rotaries: Rotaries, context: LayerContext) -> Mamba2Mixer:
    """Returns the state space layer with this number. Positions are in its state, so nothing is turned."""
    sizes = MambaSizes(
        heads=plan.heads,
        head_dim=plan.head_dim,
        groups=plan.groups,
        state_size=plan.state_size,
        kernel=plan.kernel,
        conv_bias=plan.conv_bias,
        in_bias=plan.in_bias,
        out_bias=plan.out_bias,
        factors=plan.factors,
    )
    norm: nn.Module = GateAlone()
    if plan.norm is not None:
        section = Section.split(plan.inner, context.tp.rank, context.tp.size)
        norm = gated_norm(section, plan.norm_groups, plan.norm.eps, context, gate_first=plan.gate_first)
    return Mamba2Mixer(index, hidden_size, sizes, norm, context)


def convolution_of(
    plan: ConvolutionPlan, index: int, hidden_size: int, rotaries: Rotaries, context: LayerContext
) -> GatedConvolution:
    """Returns the short convolution of the layer with this number."""
    return GatedConvolution(index, hidden_size, plan.kernel, context, bias=plan.bias)


def sum_of(plan: SumPlan, index: int, hidden_size: int, rotaries: Rotaries, context: LayerContext) -> SumOfMixers:
    """Returns the layer with this number, which adds up the results of several mixers."""
    mixers = {
        mixer.name: MIXERS[type(mixer)](mixer, index, hidden_size, rotaries, context.under(mixer.name))
        for mixer in plan.members
    }
    return SumOfMixers(mixers, [(part.input_scale, part.output_scale) for part in plan.parts])


def no_mixer(plan: NoMixerPlan, index: int, hidden_size: int, rotaries: Rotaries, context: LayerContext) -> nn.Module:
    """Makes an identity in place of the mixer that a layer does not have."""
    return nn.Identity()


MIXERS: Mapping[type[MixerPlan], Callable[[Any, int, int, Rotaries, LayerContext], nn.Module]] = {
    AttentionPlan: attention_of,
    LinearAttentionPlan: linear_attention_of,
    KimiDeltaPlan: kimi_delta_of,
    LightningPlan: lightning_of,
    MambaPlan: selective_of,
    Mamba2Plan: mamba_of,
    ConvolutionPlan: convolution_of,
    SumPlan: sum_of,
    NoMixerPlan: no_mixer,
}
"""(plan, number of the layer, hidden_size, rotaries, context) -> the module: x [T, hidden_size], the step -> [W,
hidden_size] of the wanted tokens.
"""
