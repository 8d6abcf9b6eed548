"""DecoderPlan: what a decoder is made of, layer by layer. A family's config makes it once; the model is built from it.

Plain data without torch. Kinds are names: of norms, activations and rotary scalings there is a table where each is
computed, and of MLPs one in `models/decoder.py`. Sizes are those of the whole model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple, Protocol

import msgspec

NormKind = Literal["rms", "rms_plus_one"]
"""An RMSNorm that multiplies by its weight, or by 1 + its weight."""

RouterKind = Literal["softmax"]
"""How logits become experts and their gates: the likeliest experts, with their probabilities."""


class Size(NamedTuple):
    """One dimension of a matrix."""

    field: str
    """What config.json calls it."""
    value: int


class Matrix(NamedTuple):
    """Tensors [rows, columns] of a checkpoint."""

    name: str
    """Within the layer; `{}` stands for each number from 0 to copies - 1."""
    rows: Size
    columns: Size
    copies: int = 1
    used: int = 1
    """How many of them one token is multiplied with."""

    @property
    def parameters(self) -> int:
        """Of one of them."""
        return self.rows.value * self.columns.value


class NormPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A norm over hidden states, or over each head."""

    eps: float
    kind: NormKind = "rms"


class RopePlan(msgspec.Struct, frozen=True):
    """Rotary positions of the heads of queries and keys."""

    parameters: Mapping[str, Any]
    """rope_type, rope_theta and the numbers of the scaling, as `rope_config.rope_parameters` makes them."""


class AttentionPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Grouped-query attention over all keys before a query, or over a window of them."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    """Factor of the scores."""
    rope: RopePlan | None
    """None: nothing is turned."""
    window: int | None = None
    """Keys that a query sees, itself included; None: all."""
    logit_cap: float = 0.0
    """Soft cap of the scaled scores: cap * tanh(score / cap); 0: none."""
    qk_norm: NormPlan | None = None
    """Of each head of queries and of keys, before they are turned."""
    bias: bool = False
    """Whether the projections to queries, keys and values have a bias."""
    output_bias: bool = False

    def matrices(self, hidden: Size) -> Iterator[Matrix]:
        """Those of a checkpoint's layer."""
        query = Size("num_attention_heads * head_dim", self.num_heads * self.head_dim)
        keys = Size("num_key_value_heads * head_dim", self.num_kv_heads * self.head_dim)
        yield Matrix("self_attn.q_proj.weight", query, hidden)
        yield Matrix("self_attn.k_proj.weight", keys, hidden)
        yield Matrix("self_attn.v_proj.weight", keys, hidden)
        yield Matrix("self_attn.o_proj.weight", hidden, query)


class MlpPlan(Protocol):
    """What stands behind attention. Each class has a row in the table of `models/decoder.py`, which builds it."""

    def matrices(self, hidden: Size) -> Iterator[Matrix]:
        """Those of a checkpoint's layer."""
        ...


class GatedMlpPlan(msgspec.Struct, frozen=True, kw_only=True):
    """down(activation(gate(x)) * up(x))."""

    intermediate_size: int
    activation: str
    """As config.json names it."""
    bias: bool = False

    def matrices(self, hidden: Size) -> Iterator[Matrix]:
        inner = Size("intermediate_size", self.intermediate_size)
        yield Matrix("mlp.gate_proj.weight", inner, hidden)
        yield Matrix("mlp.up_proj.weight", inner, hidden)
        yield Matrix("mlp.down_proj.weight", hidden, inner)


class RouterPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Which experts a token goes to, and with which gates."""

    kind: RouterKind
    top_k: int
    """Experts of a token."""
    renormalize: bool
    """Whether the gates of a token's experts are divided by their sum."""


class MixturePlan(msgspec.Struct, frozen=True, kw_only=True):
    """The sum over a token's experts, gated MLPs themselves, of gate * expert(x)."""

    experts: int
    intermediate_size: int
    """Of each expert."""
    activation: str
    """As config.json names it."""
    router: RouterPlan

    def matrices(self, hidden: Size) -> Iterator[Matrix]:
        inner = Size("moe_intermediate_size", self.intermediate_size)
        every = {"copies": self.experts, "used": self.router.top_k}
        yield Matrix("mlp.gate.weight", Size("num_experts", self.experts), hidden)
        yield Matrix("mlp.experts.{}.gate_proj.weight", inner, hidden, **every)
        yield Matrix("mlp.experts.{}.up_proj.weight", inner, hidden, **every)
        yield Matrix("mlp.experts.{}.down_proj.weight", hidden, inner, **every)


class NormsPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Where a layer's norms stand, by the names that they have in a checkpoint's layer."""

    norm: NormPlan
    before_attention: str = "input_layernorm"
    after_attention: str | None = None
    """Of what attention gives, before it is added to the residual stream; None: there is none."""
    before_mlp: str = "post_attention_layernorm"
    after_mlp: str | None = None


class LayerPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Attention, then an MLP; what each gives is added to the residual stream."""

    attention: AttentionPlan
    mlp: MlpPlan
    norms: NormsPlan

    def matrices(self, hidden: Size) -> Iterator[Matrix]:
        """Those of a checkpoint's layer."""
        yield from self.attention.matrices(hidden)
        yield from self.mlp.matrices(hidden)


class DecoderPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Embedding, layers, a norm, and for models that generate the projection to logits."""

    layers: tuple[LayerPlan, ...]
    norm: NormPlan
    """After the last layer."""
    tied_embeddings: bool
    """Whether the projection to logits is the embedding's table."""
    embedding_scale: float = 1.0
    """Factor of the embeddings, rounded to the model's dtype."""
    logit_cap: float = 0.0
    """Soft cap of the logits; 0: none."""

    @property
    def windows(self) -> tuple[int | None, ...]:
        """Keys that a query sees, itself included, by layer; None: all."""
        return tuple(layer.attention.window for layer in self.layers)

    def used_parameters(self, hidden_size: int) -> int:
        """Elements of all layers' matrices that one token is multiplied with."""
        hidden = Size("hidden_size", hidden_size)
        return sum(matrix.used * matrix.parameters for layer in self.layers for matrix in layer.matrices(hidden))
