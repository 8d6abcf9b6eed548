"""CausalLM: embedding, layers, norm, logits and loading, written once for all decoders.

A model says what its layer is and how the checkpoint's projections are stacked. Device-agnostic, nothing in `forward`
looks at a value, so a step can be captured in a graph.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import ClassVar, Protocol

from torch import Tensor, nn

from mysglang.srt.configs.model_config import ModelConfig
from mysglang.srt.distributed.pipeline import Stage
from mysglang.srt.errors import ConfigError
from mysglang.srt.forward.forward_batch import AttentionSpec, ForwardBatch
from mysglang.srt.layers.context import LayerContext
from mysglang.srt.layers.layernorm import RMSNorm
from mysglang.srt.layers.parameter import WeightParameter
from mysglang.srt.layers.radix_attention import RadixAttention
from mysglang.srt.layers.rotary_embedding import RotaryEmbedding
from mysglang.srt.layers.vocab_parallel_embedding import ParallelLMHead, VocabParallelEmbedding
from mysglang.srt.models.weight_names import WeightNames

MAX_NAMES = 5  # of the tensors that an error lists


class DecoderLayer(Protocol):
    """Builds one layer: an nn.Module whose forward is (x, residual, batch) -> (x, residual).

    The residual stream is kept apart from the layer's newest output, and added by the next norm. Both hold the batch's
    wanted tokens afterwards: the others go no further than attention.
    """

    def __call__(
        self, config: ModelConfig, layer_id: int, rotary: RotaryEmbedding, context: LayerContext
    ) -> nn.Module: ...


class CausalLM(nn.Module):
    """A decoder-only language model of this rank."""

    layer: ClassVar[DecoderLayer]
    stacked: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "qkv_proj": ("q_proj", "k_proj", "v_proj"),
        "gate_up_proj": ("gate_proj", "up_proj"),
    }
    ignored: ClassVar[tuple[str, ...]] = ("rotary_emb.inv_freq",)
    """Endings of checkpoint tensors that are computed here instead."""

    def __init__(self, config: ModelConfig, context: LayerContext, stage: Stage) -> None:
        super().__init__()
        self.config = config
        self.embed_tokens = VocabParallelEmbedding(config.vocab_size, config.hidden_size, context)
        rotary = RotaryEmbedding(config.rope_parameters, config.head_dim, config.context_len)
        self.layers = nn.ModuleDict(
            {
                str(i): type(self).layer(config, i, rotary, context.under(f"layers.{i}"))
                for i in stage.layers(config.num_layers)
            }
        )
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps, context)
        table = (
            self.embed_tokens
            if config.tie_word_embeddings
            else VocabParallelEmbedding(config.vocab_size, config.hidden_size, context)
        )
        self.lm_head = ParallelLMHead(config.vocab_size, table)

    def forward(self, batch: ForwardBatch) -> Tensor:
        """[W, hidden_size] hidden states of the wanted tokens after the last norm."""
        x: Tensor = self.embed_tokens(batch.input_ids)
        residual: Tensor | None = None
        *layers, last = self.layers.values()
        whole = replace(batch, tail=None)
        for layer in layers:
            x, residual = layer(x, residual, whole)
        x, residual = last(x, residual, batch)
        return self.norm.add(x, residual)[0]

    def compute_logits(self, hidden: Tensor) -> Tensor:
        """[N, hidden_size] -> [N, vocab_size], in the model's dtype."""
        logits: Tensor = self.lm_head(hidden)
        return logits

    def attention_specs(self) -> list[AttentionSpec]:
        """One for each attention layer of this rank, by layer."""
        return [module.spec for module in self.modules() if isinstance(module, RadixAttention)]

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Fill every parameter from a checkpoint's tensors.

        Raises ConfigError for tensors that are missing, have another shape, or belong to no parameter. What stands in
        the checkpoint twice (a tied table) must be equal.
        """
        names = WeightNames(self.stacked, {"lm_head": "embed_tokens"} if self.config.tie_word_embeddings else {})
        parameters = weight_parameters(self)
        missing = {(name, i) for name, parameter in parameters.items() for i in range(len(parameter.sections))}
        unknown = []
        for name, tensor in weights:
            target = names.target(name)
            parameter = parameters.get(target.parameter)
            if parameter is None:
                unknown.append(name)
                continue
            sections = range(len(parameter.sections)) if target.section is None else (target.section,)
            found = {(target.parameter, i) for i in sections}
            load = parameter.load if found <= missing else parameter.check
            try:
                load(tensor, target.section)
            except ConfigError as error:
                raise ConfigError(f"tensor {name} {error}") from error
            missing -= found
        problems = []
        if missing:
            problems.append(f"the checkpoint lacks tensors for {listed(sorted(name for name, _ in missing))}")
        if unknown := [name for name in unknown if not name.endswith(self.ignored)]:
            problems.append(f"the checkpoint has tensors that the model does not know: {listed(unknown)}")
        if problems:
            raise ConfigError(*problems)


def weight_parameters(model: nn.Module) -> dict[str, WeightParameter]:
    """All parameters by name; a tied one once."""
    return {name: parameter for name, parameter in model.named_parameters() if isinstance(parameter, WeightParameter)}


def attention_spec(config: ModelConfig, layer_id: int) -> AttentionSpec:
    """The usual attention of a layer: heads of the whole model, scale 1 / sqrt(head_dim)."""
    return AttentionSpec(
        layer_id=layer_id,
        num_heads=config.num_heads,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        scale=config.head_dim**-0.5,
        window=config.windows[layer_id],
    )


def listed(names: list[str]) -> str:
    """The first few names, and how many more."""
    distinct = list(dict.fromkeys(names))
    more = len(distinct) - MAX_NAMES
    return ", ".join(distinct[:MAX_NAMES]) + (f" and {more} more" if more > 0 else "")
