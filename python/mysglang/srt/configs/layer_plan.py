"""DecoderPlan: what a decoder is made of, layer by layer. A family's config makes it once; the model is built from it.

Plain data without torch. Kinds are names: of norms, activations and rotary scalings there is a table where each is
computed, and of MLPs one in `models/decoder_layers.py`. Sizes are those of the whole model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, NamedTuple, Protocol

import msgspec

from mysglang.srt.configs.checkpoint_tensors import Matrix as Matrix
from mysglang.srt.configs.checkpoint_tensors import Size as Size
from mysglang.srt.configs.latent_plan import ChoicePlan as ChoicePlan
from mysglang.srt.configs.latent_plan import IndexerPlan as IndexerPlan
from mysglang.srt.configs.latent_plan import LatentPlan as LatentPlan
from mysglang.srt.configs.mlp_plan import FusedExpertsPlan as FusedExpertsPlan
from mysglang.srt.configs.mlp_plan import GatedMlpPlan as GatedMlpPlan
from mysglang.srt.configs.mlp_plan import LatentExpertsPlan as LatentExpertsPlan
from mysglang.srt.configs.mlp_plan import MixturePlan as MixturePlan
from mysglang.srt.configs.mlp_plan import NoMlpPlan as NoMlpPlan
from mysglang.srt.configs.mlp_plan import PlainMlpPlan as PlainMlpPlan
from mysglang.srt.configs.mlp_plan import RouterPlan as RouterPlan
from mysglang.srt.configs.mlp_plan import ScaledMlpPlan as ScaledMlpPlan
from mysglang.srt.configs.mlp_plan import SharedExpertPlan as SharedExpertPlan
from mysglang.srt.configs.mlp_plan import SparseMlpPlan as SparseMlpPlan
from mysglang.srt.configs.norm_plan import NormPlan as NormPlan
from mysglang.srt.configs.stream_plan import AltUpPlan, LayerInputPlan, LayerInputsPlan
from mysglang.srt.utils.even_split import even_run


class RopePlan(msgspec.Struct, frozen=True):
    """Rotary positions of the heads of queries and keys."""

    parameters: Mapping[str, Any]
    """rope_type, rope_theta and the numbers of the scaling, as `rope_config.rope_parameters` makes them."""
    part: float = 1.0
    """Part of each head that is turned: its first lanes. The other lanes stay as they are."""
    interleaved: bool = False
    """True: lane 2i turns together with lane 2i + 1. False: lane i with lane i + half of the lanes that turn."""

    def lanes(self, head_dim: int) -> int:
        """Returns how many dimensions of a head are rotated."""
        return int(head_dim * self.part)


class MixerPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a layer that mixes information between the tokens of a request: attention, or a state. Each class has
    a row in the table `MIXERS` of `models/mixers.py`, which builds it.
    """

    name: ClassVar[str]
    """Name of the module in a checkpoint's layer."""
    keeps_state: ClassVar[bool] = False
    """True if the mixer keeps one state of a fixed size for each request, however long the request is."""

    @property
    def members(self) -> tuple[MixerPlan, ...]:
        """The mixers that it is made of."""
        return (self,)

    @property
    def computed(self) -> tuple[str, ...]:
        """Endings of tensors that a checkpoint may have and that are computed here. They are not read."""
        return ()

    @property
    def stacked(self) -> Mapping[str, tuple[str, ...]]:
        """Maps each fused projection to the names of its parts in a checkpoint, in order."""
        return {}

    @property
    def unread(self) -> tuple[str, ...]:
        """Names of modules that a checkpoint may have for this layer, and that are not used."""
        return ()

    @property
    def stores(self) -> bool:
        """True if the layer stores something of each token, which later tokens read."""
        return True

    def state_bytes(self, dtype_bytes: int) -> int:
        """Returns the bytes of one request's state, in a model whose dtype has that many bytes."""
        return 0

    def matrices(self, hidden: Size) -> Iterator[Matrix]:
        """Yields the matrices of this mixer in a checkpoint's layer."""
        yield from ()


class Tempering(NamedTuple):
    """Scaling of queries by position: the query at position p is multiplied by 1 + weight * ln(1 + floor((p + first) /
    length)). Source: Llama 4.
    """

    weight: float
    length: float
    first: int
    """1: positions are counted from one."""


class AttentionPlan(MixerPlan, frozen=True, kw_only=True):
    """Grouped-query attention over all keys before a query, or over a window of them.

    With latent rows there is one key for all heads, the row, and its beginning is the value.
    """

    name: ClassVar[str] = "self_attn"

    num_heads: int
    num_kv_heads: int
    head_dim: int
    """Size of a key as it is stored."""
    scale: float
    """Factor of the scores."""
    rope: RopePlan | None
    """None: nothing is turned."""
    window: int | None = None
    """Keys that a query sees, itself included; None: all."""
    chunked: bool = False
    """True if a query sees only the keys of its own chunk of `window` positions."""
    bidirectional: bool = False
    """True if a query also sees the keys after it, in all layers of a model. `window` counts those on each side, the
    query's own included in both. Prompts are then computed whole, and nothing is stored of them.
    """
    sinks: bool = False
    """True if each head has a learned score that is added to the softmax's denominator and belongs to no key."""
    logit_cap: float = 0.0
    """Soft cap of the scaled scores: cap * tanh(score / cap); 0: none."""
    qk_norm: NormPlan | None = None
    """Norm of each head of queries and of keys, before the rotation."""
    qk_norm_whole: bool = False
    """True: one norm over all query heads, and one over all key heads. False: each head has a norm of its own."""
    qk_norm_turned: bool = False
    """True if the norm comes after the rotation."""
    value_norm: NormPlan | None = None
    """Norm of each head of values."""
    values_from_keys: bool = False
    """True: values are the keys before norm and rotation, without a projection of their own."""
    tempering: Tempering | None = None
    """None: queries are not scaled by their positions."""
    fused_by_head: bool = False
    """True if a checkpoint has one tensor of all projections, `qkv_proj`, in which the queries that share a key-value
    head come before its key and its value. Otherwise there are three tensors, or one in which all queries, all keys
    and all values follow one another.
    """
    bias: bool = False
    """True if the projections to queries, keys and values have a bias. With latent rows: the projections from hidden
    states to the rows, and to the vectors that queries are made from.
    """
    output_bias: bool = False
    output_gate: bool = False
    """True if the output of a head is multiplied by sigmoid(gate). The projection to queries then has each head's gate
    after its query.
    """
    latent: LatentPlan | None = None
    """None: keys and values of each head are kept."""
    keys_of: int | None = None
    """Number of an earlier layer, over whose keys and values this one attends; it projects queries alone. None: the
    layer has its own.
    """

    @property
    def unread(self) -> tuple[str, ...]:
        return () if self.stores else ("k_proj", "v_proj", "k_norm", "v_norm")

    @property
    def stores(self) -> bool:
        return self.keys_of is None

    @property
    def value_dim(self) -> int:
        """Size of a value as it is stored."""
        return self.head_dim if self.latent is None else self.latent.rank

    @property
    def rope_dim(self) -> int:
        """Number of elements of a key that rotary positions rotate."""
        return self.head_dim if self.latent is None else self.latent.rope_dim

    @property
    def kept_size(self) -> int:
        """Number of elements that a layer stores for each token."""
        return sum(self.reads.values()) if self.stores and not self.bidirectional else 0

    @property
    def reads(self) -> Mapping[int | None, int]:
        """Tokens that a query reads at most (None: all before it) -> number of elements that it reads of each."""
        if self.latent is None:
            return {self.window: 2 * self.num_kv_heads * self.head_dim}
        if self.latent.choice is None:
            return {self.window: self.head_dim}
        return {self.latent.choice.top_k: self.head_dim, None: self.latent.index_dim}

    def matrices(self, hidden: Size) -> Iterator[Matrix]:
        """Yields the matrices of attention in a checkpoint's layer."""
        if self.latent is not None:
            yield from self.latent.matrices(self.num_heads, hidden)
            return
        query = Size("num_attention_heads * head_dim", self.num_heads * self.head_dim)
        keys = Size("num_key_value_heads * head_dim", self.num_kv_heads * self.head_dim)
        gated = Size("2 * num_attention_heads * head_dim", 2 * query.value) if self.output_gate else query
        yield Matrix("self_attn.q_proj.weight", gated, hidden)
        if self.stores:
            yield Matrix("self_attn.k_proj.weight", keys, hidden)
        if self.stores and not self.values_from_keys:
            yield Matrix("self_attn.v_proj.weight", keys, hidden)
        yield Matrix("self_attn.o_proj.weight", hidden, query)


class MlpPlan(Protocol):
    """The part of a layer after attention. Each class has a row in the table of `models/decoder_layers.py`."""

    def matrices(self, hidden: Size) -> Iterator[Matrix]:
        """Yields the matrices of the MLP in a checkpoint's layer."""
        ...


class MlpAndExpertsPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The sum of an MLP and of experts. The experts take the residual stream before the MLP's norm. Both have norms of
    their own.

    The router takes that stream too, normed and multiplied by a number for each lane and by 1 / sqrt(hidden_size); the
    gate of each expert has a factor. Source: Gemma 4.
    """

    mlp: GatedMlpPlan
    mixture: MixturePlan
    norm: NormPlan
    """Norm of the MLP's output, of the experts' input, and of the experts' output."""

    def matrices(self, hidden: Size) -> Iterator[Matrix]:
        yield from self.mlp.matrices(hidden)
        yield from self.mixture.matrices(hidden)


class NormsPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Norms of a layer, by their names in a checkpoint's layer."""

    norm: NormPlan
    before_attention: str | None = "input_layernorm"
    """None: attention takes the residual stream as it is."""
    after_attention: str | None = None
    """Norm of the attention output, before it is added to the residual stream; None: there is none."""
    before_mlp: str | None = "post_attention_layernorm"
    after_mlp: str | None = None


class NormedStreamPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The residual stream is normed before attention and before the MLP, and goes on normed. Source: MiniMax-01.

    Each pair is a factor of the normed stream, and one of what attention or the MLP gives.
    """

    attention: tuple[float, float]
    mlp: tuple[float, float]


class LayerPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A mixer, then an MLP, or one of the two; what each gives is added to the residual stream."""

    attention: MixerPlan
    mlp: MlpPlan
    norms: NormsPlan
    parallel: bool = False
    """True: attention and MLP read the same residual stream, with the same norm unless `before_mlp` names another."""
    residual_scale: float = 1.0
    """Factor of what attention and MLP give, before it is added to the residual stream."""
    scaled_stream: bool = False
    """True if the residual stream is multiplied by a number of the checkpoint after the layer."""
    normed_stream: NormedStreamPlan | None = None
    """None: norms do not change the residual stream."""
    input: LayerInputPlan | None = None
    """None: the layer has no input of its own."""
    altup: AltUpPlan | None = None
    """None: there is one stream."""

    def matrices(self, hidden: Size) -> Iterator[Matrix]:
        """Yields all matrices that a checkpoint has for this layer."""
        for part in (self.attention, self.mlp, self.input, self.altup):
            yield from () if part is None else part.matrices(hidden)


class BlockPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Attention and an MLP whose weights several layers use. Each use has adapters of its own, and keys and values of
    its own. Source: Zamba2.

    It computes mlp(norm(attention(norm(x, e)))) of the residual stream x and the embeddings e side by side, and adds
    nothing. A pair of small matrices (an adapter) is added to the projection to gates and ups, and maybe to those to
    queries, keys and values.
    """

    attention: AttentionPlan
    mlp: GatedMlpPlan
    norm: NormPlan
    uses: tuple[int, ...]
    """Numbers of the uses of this block, among the uses of all blocks."""
    rank: int
    """Inner size of each adapter."""
    adapts_attention: bool

    def matrices(self, hidden: Size) -> Iterator[Matrix]:
        """Yields the matrices of the block, named by the last two parts of their names."""
        used, plan = len(self.uses), self.attention
        query = Size("num_attention_heads * attention_head_dim", plan.num_heads * plan.head_dim)
        keys = Size("num_key_value_heads * attention_head_dim", plan.num_kv_heads * plan.head_dim)
        wide, rank = Size("2 * hidden_size", 2 * hidden.value), Size("adapter_rank", self.rank)
        inner = Size("intermediate_size", self.mlp.intermediate_size)
        inners = Size("2 * intermediate_size", 2 * inner.value)
        for name, rows in (("q", query), ("k", keys), ("v", keys)):
            yield Matrix(f"{name}_proj.weight", rows, wide, used=used)
            if self.adapts_attention:
                yield Matrix(f"linear_{name}_adapter_list.{{}}.0.weight", rank, wide, copies=used, used=used)
                yield Matrix(f"linear_{name}_adapter_list.{{}}.1.weight", rows, rank, copies=used, used=used)
        yield Matrix("o_proj.weight", hidden, query, used=used)
        yield Matrix("gate_up_proj.weight", inners, hidden, used=used)
        yield Matrix("gate_up_proj_adapter_list.{}.0.weight", rank, hidden, copies=used, used=used)
        yield Matrix("gate_up_proj_adapter_list.{}.1.weight", inners, rank, copies=used, used=used)
        yield Matrix("down_proj.weight", hidden, inner, used=used)


class DecoderPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Embedding, layers, a norm, and for models that generate the projection to logits."""

    layers: tuple[LayerPlan, ...]
    norm: NormPlan
    """After the last layer."""
    tied_embeddings: bool
    """True if the projection to logits uses the embedding's table."""
    embedding_scale: float = 1.0
    """Factor of the embeddings, rounded to the model's dtype."""
    scales_vectors: bool = False
    """True if prompts that come as vectors are multiplied by `embedding_scale`, too."""
    logit_scale: float = 1.0
    """Factor of the logits, before the cap."""
    logit_cap: float = 0.0
    """Soft cap of the logits; 0: none."""
    head_bias: bool = False
    """True if the projection to logits has a bias."""
    unit_head: bool = False
    """True if each row of the projection to logits is divided by its length. It is not the embedding's table then."""
    renamed: tuple[tuple[str, str], ...] = ()
    """Parts of tensors' names as a checkpoint has them, and what they are called here
    (`configs/checkpoint_tensors.py`). The plan's own names are those of here."""
    aliases: tuple[tuple[str, str], ...] = ()
    """Renamings like `renamed`, for names that only some checkpoints have."""
    unused_layers: int = 0
    """Layers after the last that a checkpoint may hold and that only draft tokens. They are not loaded."""
    positions: int | None = None
    """Rows of a table with a learned vector for each position, which is added to the embeddings; None: no table."""
    transposed: bool = False
    """True if a checkpoint's matrices of all linear layers in the layers are [input, output]."""
    unread: tuple[str, ...] = ()
    """Endings of tensors that a checkpoint may have and that are not read."""
    inputs: LayerInputsPlan | None = None
    """Inputs that each layer has of its own; None: they have none."""
    blocks: tuple[BlockPlan, ...] = ()
    """Blocks of weights that layers use, each several times. Their layers have a `SharedBlockPlan`."""

    @property
    def altup(self) -> AltUpPlan | None:
        """Streams, of which all layers have as many; None: one."""
        return self.layers[0].altup

    def tables(self, hidden: Size) -> Iterator[Matrix]:
        """Yields the matrices outside the layers, without the embedding and the projection to logits."""
        if self.positions is not None:
            yield Matrix("position_embeddings.weight", Size("max_position_embeddings", self.positions), hidden)
        if self.inputs is not None:
            yield from self.inputs.matrices(hidden)
        if self.altup is not None:
            yield from self.altup.tables(hidden)
        for block in self.blocks:
            yield from block.matrices(hidden)

    @property
    def mixers(self) -> tuple[MixerPlan, ...]:
        """Mixers of all layers, in order."""
        return tuple(mixer for layer in self.layers for mixer in layer.attention.members)

    @property
    def attentions(self) -> tuple[AttentionPlan, ...]:
        """Attention plans of the layers that attend over keys, in order."""
        return tuple(mixer for mixer in self.mixers if isinstance(mixer, AttentionPlan))

    @property
    def mixtures(self) -> tuple[MixturePlan, ...]:
        """Mixtures of the layers with experts, in order."""
        mlps = (layer.mlp.mixture if isinstance(layer.mlp, MlpAndExpertsPlan) else layer.mlp for layer in self.layers)
        return tuple(mlp for mlp in mlps if isinstance(mlp, MixturePlan))

    @property
    def states(self) -> tuple[MixerPlan, ...]:
        """The mixers that keep a state for each request, in order."""
        return tuple(mixer for mixer in self.mixers if mixer.keeps_state)

    @property
    def gates(self) -> bool:
        """True if some layer has gated MLPs or gated experts."""
        ungated = tuple(mixture for mixture in self.mixtures if not mixture.gated)
        return any(
            not isinstance(layer.mlp, PlainMlpPlan | NoMlpPlan) and layer.mlp not in ungated for layer in self.layers
        )

    @property
    def has_states(self) -> bool:
        """True if some layers keep a state for each request."""
        return bool(self.states)

    @property
    def bidirectional(self) -> bool:
        """True if tokens also see later tokens, so that prompts are computed whole."""
        return any(attention.bidirectional for attention in self.attentions)

    @property
    def windows(self) -> tuple[int | None, ...]:
        """Number of keys that a query sees, itself included, for each layer that attends; None: all."""
        return tuple(attention.window for attention in self.attentions)

    def stage(self, number: int, stages: int) -> DecoderPlan:
        """Returns the plan with only the layers of one of so many pipeline stages."""
        own = even_run(len(self.layers), number, stages)
        return msgspec.structs.replace(self, layers=self.layers[own.start : own.stop])

    def used_parameters(self, hidden_size: int) -> int:
        """Returns how many matrix elements, over all layers, one token is multiplied with."""
        return sum(matrix.used * matrix.parameters for matrix in self.matrices(hidden_size))

    def used_share(self, hidden_size: int) -> float:
        """Returns the share of the layers' matrix elements that one token is multiplied with; above 1 if layers share
        some.
        """
        there = sum(matrix.copies * matrix.parameters for matrix in self.matrices(hidden_size))
        return self.used_parameters(hidden_size) / there

    def matrices(self, hidden_size: int) -> Iterator[Matrix]:
        """Yields the matrices of all layers, and once those that layers share."""
        hidden = Size("hidden_size", hidden_size)
        for layer in self.layers:
            yield from layer.matrices(hidden)
        for block in self.blocks:
            yield from block.matrices(hidden)
