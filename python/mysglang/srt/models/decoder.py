"""Decoder: embedding, layers and norm of every decoder, built from its plan (`configs/layer_plan.py`).

Device-agnostic, and nothing in `forward` looks at a value, so a step can be captured in a graph. What the kinds of a
plan are computed by is in tables: `MIXERS` in `mixers.py`, `MLPS` in `decoder_layers.py`; norms, activations and rotary
scalings in their files in `layers/`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any, ClassVar, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from mysglang.srt.configs.model_config import ModelConfig
from mysglang.srt.distributed.pipeline import Stage
from mysglang.srt.forward.forward_batch import AttentionSpec, ForwardBatch, StateSpec
from mysglang.srt.layers.context import LayerContext
from mysglang.srt.layers.layernorm import LayerNorm, RMSNorm
from mysglang.srt.layers.linear import store_transposed
from mysglang.srt.layers.linear_attention.state_layer import state_specs
from mysglang.srt.layers.radix_attention import attention_specs
from mysglang.srt.layers.vocab_parallel_embedding import ScaledEmbedding, VocabParallelEmbedding
from mysglang.srt.models.checkpoint_model import CheckpointModel
from mysglang.srt.models.decoder_layers import (
    DecoderLayer,
    blocks_of,
    layer_inputs_of,
    layer_kind,
    norm_of,
    positions_of,
    streams_of,
)
from mysglang.srt.models.mixers import MIXERS, CommonParts
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
        self.stage = stage
        size = config.hidden_size
        makes_logits_of_it = plan.tied_embeddings and stage.last
        self.embed_tokens: VocabParallelEmbedding = (
            self._embedding(context) if stage.first or makes_logits_of_it else elsewhere()
        )
        self.layer_inputs, self.streams = layer_inputs_of(plan, size, context), streams_of(plan, size, context)
        learns_positions_here = stage.first or plan.positions is None
        self.position_embeddings = positions_of(plan, size, context) if learns_positions_here else elsewhere()
        self.blocks = blocks_of(plan, size, context)
        common = CommonParts(config.context_len, self.blocks)

        def layer(index: int) -> DecoderLayer:
            own, inside = plan.layers[index], context.under(f"layers.{index}")
            build = MIXERS[type(own.attention)]
            mixer = build(own.attention, index, size, common, inside.under(own.attention.name))
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
            embedded = batch.embeds.put(embedded, self.plan.embedding_scale if self.plan.scales_vectors else 1.0)
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
        for each in self.plan.attentions:
            if each.latent is not None and not each.bias:
                stacked |= each.latent.stacked
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
