"""Decoder: embedding, layers and norm of every decoder, built from its plan (`configs/layer_plan.py`).

Device-agnostic, and nothing in `forward` looks at a value, so a step can be captured in a graph. What the kinds of a
plan are computed by stands in tables: `MLPS` here, norms, activations and rotary scalings in their files in `layers/`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, ClassVar

from torch import Tensor, nn

from mysglang.srt.configs.layer_plan import (
    AttentionPlan,
    GatedMlpPlan,
    LayerPlan,
    MixturePlan,
    MlpPlan,
    NormPlan,
    RopePlan,
)
from mysglang.srt.configs.model_config import ModelConfig
from mysglang.srt.distributed.pipeline import Stage
from mysglang.srt.forward.forward_batch import AttentionSpec, ForwardBatch
from mysglang.srt.layers.activation import gated_activation
from mysglang.srt.layers.context import LayerContext
from mysglang.srt.layers.decoder_blocks import GatedMLP, PagedAttention
from mysglang.srt.layers.layernorm import NORMS, RMSNorm
from mysglang.srt.layers.moe.experts import MixtureOfExperts
from mysglang.srt.layers.moe.router import Routing
from mysglang.srt.layers.rotary_embedding import RotaryEmbedding
from mysglang.srt.layers.vocab_parallel_embedding import ScaledEmbedding, VocabParallelEmbedding
from mysglang.srt.models.checkpoint_model import CheckpointModel
from mysglang.srt.models.interfaces import TakesWorkspace
from mysglang.srt.models.weight_names import WeightNames


class DecoderLayer(nn.Module):
    """Attention, then MLP, each between the norms that the plan names.

    The residual stream is kept apart from the layer's newest output, and added by the next norm. Both hold the batch's
    wanted tokens afterwards: the others go no further than attention.
    """

    def __init__(self, plan: LayerPlan, attention: PagedAttention, hidden_size: int, context: LayerContext) -> None:
        super().__init__()
        norms = plan.norms
        before_attention = self._norm(norms.before_attention, norms.norm, hidden_size, context)
        self.self_attn = attention
        after_attention = self._norm(norms.after_attention, norms.norm, hidden_size, context)
        before_mlp = self._norm(norms.before_mlp, norms.norm, hidden_size, context)
        self.mlp = MLPS[type(plan.mlp)](plan.mlp, hidden_size, context.under("mlp"))
        after_mlp = self._norm(norms.after_mlp, norms.norm, hidden_size, context)
        assert before_attention is not None and before_mlp is not None
        # In tuples, where torch does not count them again: they are parts of the layer by their checkpoint's names.
        self.norms_before = before_attention, before_mlp
        self.norms_after = after_attention or unchanged, after_mlp or unchanged

    def forward(self, x: Tensor, residual: Tensor | None, batch: ForwardBatch) -> tuple[Tensor, Tensor]:
        (before_attention, before_mlp), (after_attention, after_mlp) = self.norms_before, self.norms_after
        x, residual = before_attention.add(x, residual)
        x = after_attention(self.self_attn(x, batch))
        x, residual = before_mlp.add(x, batch.wanted(residual))
        return after_mlp(self.mlp(x)), residual

    def _norm(self, name: str | None, plan: NormPlan, size: int, context: LayerContext) -> RMSNorm | None:
        if name is None:
            return None
        norm = norm_of(plan, size, context)
        self.add_module(name, norm)
        return norm


class Decoder(CheckpointModel):
    """This rank's part of a decoder, without what its hidden states are for."""

    stacked: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "qkv_proj": ("q_proj", "k_proj", "v_proj"),
        "gate_up_proj": ("gate_proj", "up_proj"),
    }
    experts: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "w13_weight": ("gate_proj.weight", "up_proj.weight"),
        "w2_weight": ("down_proj.weight",),
    }
    ignored: ClassVar[tuple[str, ...]] = ("rotary_emb.inv_freq",)

    def __init__(self, config: ModelConfig, context: LayerContext, stage: Stage) -> None:
        super().__init__(config, context, stage)
        self.plan = plan = config.plan
        size = config.hidden_size
        self.embed_tokens = (
            VocabParallelEmbedding(config.vocab_size, size, context)
            if plan.embedding_scale == 1.0
            else ScaledEmbedding(config.vocab_size, size, plan.embedding_scale, context)
        )
        rotaries = Rotaries(config.context_len)

        def layer(index: int) -> DecoderLayer:
            own, inside = plan.layers[index], context.under(f"layers.{index}")
            attention = attention_of(own.attention, index, size, rotaries, inside.under("self_attn"))
            return DecoderLayer(own, attention, size, inside)

        self.layers = nn.ModuleDict({str(index): layer(index) for index in stage.layers(config.num_layers)})
        self.norm = norm_of(plan.norm, size, context)

    def forward(self, batch: ForwardBatch) -> Tensor:
        """[W, hidden_size] hidden states of the wanted tokens after the last norm."""
        x: Tensor = self.embed_tokens(batch.input_ids)
        if batch.embeds is not None:
            x = batch.embeds.put(x)
        residual: Tensor | None = None
        *layers, last = self.layers.values()
        whole = replace(batch, tail=None)
        for layer in layers:
            x, residual = layer(x, residual, whole)
        x, residual = last(x, residual, batch)
        return self.norm.add(x, residual)[0]

    def decoder_layers(self) -> list[DecoderLayer]:
        """Those of this rank, in order."""
        layers = list(self.layers.values())
        return layers  # type: ignore[return-value]

    def attention_specs(self) -> list[AttentionSpec]:
        """One for each attention layer of this rank, by layer."""
        return [layer.self_attn.attn.spec for layer in self.decoder_layers()]

    def workspace(self, max_tokens: int) -> int:
        """Bytes that a step of so many tokens takes inside its layers, where that is much. Layers take it in turn."""
        modules = (module for module in self.modules() if isinstance(module, TakesWorkspace))
        return max_tokens * max((module.workspace_per_token for module in modules), default=0)

    def weight_names(self) -> WeightNames:
        renamed = {"lm_head": "embed_tokens"} if self.plan.tied_embeddings else {}
        return WeightNames(self.stacked, renamed, experts=self.experts)


class Rotaries:
    """The rotary tables of one model: one for all layers whose plans are equal."""

    def __init__(self, num_positions: int) -> None:
        self._num_positions = num_positions
        self._made: list[tuple[RopePlan, int, RotaryEmbedding]] = []

    def of(self, plan: RopePlan | None, head_dim: int) -> RotaryEmbedding | None:
        """None for layers whose heads are not turned."""
        if plan is None:
            return None
        for known, dim, table in self._made:
            if (known, dim) == (plan, head_dim):
                return table
        table = RotaryEmbedding(plan.parameters, head_dim, self._num_positions)
        self._made.append((plan, head_dim, table))
        return table


def attention_of(
    plan: AttentionPlan, index: int, hidden_size: int, rotaries: Rotaries, context: LayerContext
) -> PagedAttention:
    """The attention of the layer with this number."""
    heads = plan.qk_norm
    return PagedAttention(
        hidden_size,
        AttentionSpec(
            layer_id=index,
            num_heads=plan.num_heads,
            num_kv_heads=plan.num_kv_heads,
            head_dim=plan.head_dim,
            scale=plan.scale,
            window=plan.window,
            logit_cap=plan.logit_cap,
        ),
        rotaries.of(plan.rope, plan.head_dim),
        head_norms=None if heads is None else lambda: norm_of(heads, plan.head_dim, context),
        bias=plan.bias,
        output_bias=plan.output_bias,
        context=context,
    )


def gated_mlp(plan: GatedMlpPlan, hidden_size: int, context: LayerContext) -> nn.Module:
    return GatedMLP(hidden_size, plan.intermediate_size, plan.activation, bias=plan.bias, context=context)


def mixture(plan: MixturePlan, hidden_size: int, context: LayerContext) -> nn.Module:
    router = plan.router
    return MixtureOfExperts(
        hidden_size,
        plan.experts,
        plan.intermediate_size,
        gated_activation(plan.activation),
        Routing(kind=router.kind, top_k=router.top_k, renormalize=router.renormalize),
        context=context,
    )


MLPS: Mapping[type[MlpPlan], Callable[[Any, int, LayerContext], nn.Module]] = {
    GatedMlpPlan: gated_mlp,
    MixturePlan: mixture,
}
"""(plan, hidden_size, context) -> the module: x [W, hidden_size] -> the same shape, which may be x itself, used up."""


def norm_of(plan: NormPlan, size: int, context: LayerContext) -> RMSNorm:
    return NORMS[plan.kind](size, plan.eps, context)


def unchanged(x: Tensor) -> Tensor:
    """Where a plan has no norm."""
    return x
