"""ForwardBatch: the tensors of one step on the device, and the contract between attention layers and backends.

Core fields plus, for each optional feature, one named small record or None. It knows no request and no page allocator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeAlias, runtime_checkable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from mysglang.srt.forward.worker_batch import ForwardMode, ModelWorkerBatch


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenKeys:
    """A query attends only to the keys that an indexer has chosen for it (`layers/indexer.py`)."""

    top_k: int
    """How many these are. A query that sees no more keys attends to all of them."""
    layer: int
    """Id of the layer whose indexer chooses: this one, or one that runs before it."""
    index_dim: int
    """Size of the index keys that this layer stores; 0: it stores none, since another layer chooses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionSpec:
    """Facts about one attention layer that do not change (heads of this rank)."""

    layer_id: int
    """Number of the layer whose keys and values it attends over: its own, or that of an earlier layer. Stores know a
    layer by it.
    """
    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    window: int | None = None
    """Keys visible to a query, itself included; None for all."""
    chunked: bool = False
    """True if a query sees only the keys of its own chunk of `window` positions."""
    bidirectional: bool = False
    """True if a query also sees the keys after it. `window` then counts the keys on each side, itself included."""
    logit_cap: float = 0.0
    """Soft cap of the scores: cap * tanh(score / cap); 0 for none."""
    latent_dim: int | None = None
    """Latent rows: the first `latent_dim` numbers of a key are its value, so one row holds both. None: values are
    stored beside keys and have head_dim numbers.
    """
    chosen: ChosenKeys | None = None
    """Which keys a query attends to; None: all that it sees."""
    sinks: Tensor | None = field(default=None, compare=False)
    """[num_heads] float32, scaled: for each head the score of one more key, which all queries see and whose value is
    zero. It only makes the sum of exponents larger. None: there is none. Weights may change, the tensor does not."""
    value_scale: float = 1.0
    """Factor of the attended values. Models leave it at 1; a store that holds values divided by a scale sets it
    (`KvPool.over_stored`).
    """

    @property
    def value_dim(self) -> int:
        """Numbers of a value, and of each head of what attention returns."""
        return self.head_dim if self.latent_dim is None else self.latent_dim

    @property
    def reach(self) -> Reach:
        """Which keys a query sees."""
        return Reach(self.window, self.chunked)


Positions: TypeAlias = npt.NDArray[np.signedinteger[Any]]


class Reach(NamedTuple):
    """Which of the keys before it a query attends to: all from its first one on."""

    window: int | None
    chunked: bool

    def firsts(self, positions: Positions) -> Positions:
        """Returns the position of the first key that each query sees, from the positions of queries."""
        if self.window is None:
            return np.zeros_like(positions)
        firsts: Positions = np.maximum(0, positions + 1 - self.window)
        if self.chunked:
            firsts = positions // self.window * self.window
        return firsts


@dataclass(frozen=True, slots=True)
class Rotation:
    """Rotation and norms of each head of queries and keys before attention."""

    cos_sin: Tensor
    """[max_position, head_dim] float32: cosines of the angles of each position, then their sines."""
    norms: tuple[Tensor, Tensor, float] | None = None
    """RMSNorm before the rotation: weights [head_dim] for queries and for keys, and epsilon."""


class KvStore(Protocol):
    """Stores keys and values. All of a step's keys and values are stored, at `loc_for` the layer, before a row attends.

    q: [T, num_heads * head_dim]; k: [T, num_kv_heads * head_dim]; v: [T, num_kv_heads * value_dim]; loc: [T] int64 KV
    slots. q, k and v may be slices of one wider projection.
    """

    def space_of(self, layer_id: int) -> int:
        """Returns the number of the page space that the layer's pages are of."""
        ...

    def store(self, layer_id: int, loc: Tensor, k: Tensor, v: Tensor) -> None:
        """Stores keys and values as they are."""
        ...

    def store_rotated(
        self, layer_id: int, loc: Tensor, q: Tensor, k: Tensor, v: Tensor, positions: Tensor, rotation: Rotation
    ) -> None:
        """Rotates q and k in place, then stores keys and values. positions: [T] int64."""
        ...

    def store_index(self, layer_id: int, loc: Tensor, keys: Tensor) -> None:
        """Write the index keys of a layer whose queries choose: [T, index_dim]."""
        ...


class StatePart(NamedTuple):
    """One tensor of a state."""

    shape: tuple[int, ...]
    is_recurrent: bool = False
    """True: computed in float32, and kept between steps as the launch says. False: in the dtype of the model."""


@dataclass(frozen=True, slots=True)
class StateSpec:
    """Facts about the state that one layer keeps for each request (sizes of this rank)."""

    layer_id: int
    parts: tuple[StatePart, ...]
    """In the order in which the layer takes them."""


class StateStore(Protocol):
    """The store of the states and checkpoints of requests. A step writes into the tensors itself."""

    def of(self, layer_id: int) -> tuple[Tensor, ...]:
        """Returns the tensors [states + 1, …] of the layer, one for each part that its spec names. The last entry is
        for rows without a state.
        """
        ...


class StateRun(NamedTuple):
    """Consecutive new tokens of one row."""

    start: int
    """Among the tokens of the step."""
    end: int
    state: int
    """Entry of the store that holds the row's state, before and after."""
    checkpoint: int | None
    """Entry that gets a copy of the state after these tokens; None: none does."""


@dataclass(frozen=True, slots=True)
class StateRuns:
    """Rows of a step with several new tokens, or with a checkpoint, for the ops of `kernels.states`."""

    spans: Iterable[StateRun]
    """In order; those of one row follow one another."""
    cuts: Tensor
    """[S, 5] int32: the spans on the device. See `kernels.states.Runs`, also for those below."""
    rows: Tensor
    """[P + 1] int32 on the device: the first span of each row, and the number of spans."""
    turns: Tensor
    """[S, 5] int32 on the device: the cuts, of all rows the first, then the second, and so on."""
    turn_sizes: tuple[int, ...]
    numbers: Tensor
    """[S + 1] int32 on the device: 0, 1, 2, …"""
    chunks: Tensor
    """[C, 2] int32 on the device: the spans cut to the tokens that are computed together."""


@dataclass(frozen=True, slots=True)
class StateStep:
    """How the layers with a state go through the tokens of a step."""

    store: StateStore
    runs: StateRuns | None
    """None: each row has one token and copies no checkpoint out."""
    single: Tensor
    """[S] int64 entry of the store for each row with one new token, which is in no run."""
    single_tokens: Tensor | None = None
    """[S] int64 where these are among the tokens of the step; None: they are all tokens, or there are none."""


@dataclass(frozen=True, slots=True)
class TokenPlaces:
    """Ids, positions and KV slots of the T tokens of a step of R rows, as the device has found them."""

    ids: Tensor
    """[T] int64, every id known."""
    positions: Tensor
    """[T] int64."""
    locs: tuple[Tensor, ...]
    """[T] int64 for each page space: KV slots that the step writes."""
    seq_lens: Tensor
    """[R] int32, tokens in the KV cache after the step."""

    def of(self, tokens: Tensor, seq_lens: Tensor) -> TokenPlaces:
        """Returns the places of these tokens ([N] int64), in rows of these lengths."""
        return TokenPlaces(
            self.ids.index_select(0, tokens),
            self.positions.index_select(0, tokens),
            tuple(locs.index_select(0, tokens) for locs in self.locs),
            seq_lens,
        )


class IndexQueries(NamedTuple):
    """The part of N queries that chooses keys."""

    q: Tensor
    """[N, index heads, index_dim], turned."""
    weights: Tensor
    """[N, index heads] float32, factors of the heads' scores, which are scaled."""


Ask: TypeAlias = Callable[[Tensor], IndexQueries]
"""[N] int64 numbers of tokens -> what chooses their keys."""


class AttentionMetadata(Protocol):
    """Data that a backend computes once for a step; opaque to other code."""


class AttentionBackend(Protocol):
    """Paged causal attention. Holds long-lived buffers only: what belongs to a step is in its metadata.

    The keys and values of all rows are stored before any row attends, and are read through the page table: a row may
    share pages that another row of the same step writes.
    """

    @property
    def kv_pool(self) -> KvStore:
        """The store of keys and values that the backend reads; layers store there before they attend."""
        ...

    def plan(self, batch: ForwardBatch) -> AttentionMetadata:
        """Computes what all layers of this step share, such as page lists.

        If `batch.host.high_lens` are there, only the device knows how long some rows are: backends that take such steps
        (`layers/attention/factory.py`) plan with `batch.host.most_lens`, and their kernels read `batch.seq_lens`.
        """
        ...

    def forward(self, q: Tensor, k: Tensor, v: Tensor, spec: AttentionSpec, batch: ForwardBatch) -> Tensor:
        """Attend over the stored keys and values; return [T, num_heads * value_dim].

        q, k, v as they were stored, rotary positions applied. Rows that have nothing else in the cache may use k and v.
        A backend may read them in place, but only if the store holds the same numbers. If another layer has stored
        them, k and v are empty ([0, …]).
        """
        ...


@runtime_checkable
class ChoosesKeys(AttentionBackend, Protocol):
    """A backend of layers with latent rows whose queries attend to chosen keys only."""

    def forward_chosen(self, q: Tensor, rows: Tensor, spec: AttentionSpec, batch: ForwardBatch, ask: Ask) -> Tensor:
        """Attend as `forward` does, over the keys that `spec.chosen` speaks of. All index keys of the step are stored.

        ask: called with tokens of this step, if they see more than `top_k` keys and this layer's indexer chooses.
        Otherwise the choice is the one that `spec.chosen.layer` has made in the same planned step.
        """
        ...


@dataclass(slots=True, kw_only=True)
class ForwardBatch:
    """One step on the device. `R` rows, `T` tokens; both may be padded (see the CUDA graph runner)."""

    mode: ForwardMode
    host: ModelWorkerBatch
    """The step as plain arrays, which planning on the host may read without waiting for the device."""
    input_ids: Tensor
    """[T] int64, every id known."""
    positions: Tensor
    """[T] int64."""
    slots: Tensor
    """[R] int64, rows of the page tables."""
    seq_lens: Tensor
    """[R] int32, tokens in the KV cache after this step."""
    extend_lens: Tensor
    """[R] int32."""
    out_cache_locs: tuple[Tensor, ...]
    """[T] int64 for each page space: KV slots written by this step."""
    attn_backend: AttentionBackend
    attn_metadata: AttentionMetadata
    attn_columns: Mapping[str, Tensor] = field(default_factory=dict)
    """Captured steps: what the backend added to the upload (layers/attention/graph.py)."""
    embeds: Embeds | None = None
    """Tokens whose embedding is given, whatever their ids are."""
    expanded: Expansion | None = None
    """Rows that attend to keys and values of heads, where latent rows are kept; None: all attend to the latent rows."""
    states: StateStep | None = None
    """None: no layer of the model keeps a state."""
    layer_inputs: Tensor | None = None
    """[T, layers, size] input that each layer has of its own for a token, or [T, hidden_size] embeddings that several
    layers take beside the residual stream. The model adds it to the step; None: its layers have no such input.
    """
    row_room: int = 0
    """0: the tokens of a row lie behind those of the row before. Else a captured step that tries drafts: each row has
    room for so many tokens, and `extend_lens` say how many of these are tokens. The others fill the row up: their
    attention must be finite, whatever it is.
    """
    live_rows: Tensor | None = None
    """[1] int32: how many rows are of requests, in a captured step with one token for each row. The rows behind them
    are padding, whose results no request reads. None: nothing says which rows are padding.
    """
    tail: Tail | None = None
    """Tokens whose hidden states are wanted; None: all. For the others, the last layer only stores keys and values."""

    def loc_for(self, spec: AttentionSpec) -> Tensor:
        """Returns the KV slots that this layer writes, [T] int64."""
        return self.out_cache_locs[self.attn_backend.kv_pool.space_of(spec.layer_id)]

    def first_tokens(self) -> Tensor:
        """Returns the index of each row's first token, [R] int64."""
        if self.row_room:
            return torch.arange(0, len(self.input_ids), self.row_room, device=self.slots.device)
        return self.extend_lens.cumsum(dim=0) - self.extend_lens

    def wanted(self, x: Tensor) -> Tensor:
        """Selects the tokens that need logits: [T, …] -> [W, …]."""
        return x if self.tail is None else x.index_select(0, self.tail.tokens)


@dataclass(frozen=True, slots=True)
class LoneRow:
    """A row that attends by itself: over keys and values of heads, or over chosen keys."""

    tokens: slice
    """The row's tokens in the step."""
    keys: Tensor
    """[L] int64 KV slots of all tokens of the row, the new ones last."""


Expand: TypeAlias = Callable[[Tensor], tuple[Tensor, Tensor]]
"""Latent rows [L, head_dim] -> what is made of them for each head: keys [num_heads, L, key_dim] without their rotary
part, and values [num_heads, L, value_dim]."""


class ExpandedRows(Protocol):
    """Rows of a step whose latent rows are expanded to keys and values of heads, for the new tokens to attend to."""

    def attend(self, q: Tensor, expand: Expand, spec: AttentionSpec, out: Tensor) -> None:
        """Writes the attention of these rows' tokens to out [T, num_heads, value_dim]; others may change, too.

        q: [T, num_heads, key_dim + rope_dim], of all tokens of the step. spec: the layer's, over latent rows.
        """
        ...


@dataclass(frozen=True, slots=True)
class Expansion:
    """Two ways of attention in one step, in layers with latent rows."""

    rows: ExpandedRows
    others: Tail | None
    """The tokens of the other rows, and they alone as a step; None: there are no others."""


@dataclass(frozen=True, slots=True)
class Embeds:
    """Vectors in the place of tokens' embeddings."""

    tokens: Tensor
    """[N] int64, where they are among the tokens of the step."""
    vectors: Tensor
    """[N, hidden_size] float32."""

    def put(self, x: Tensor, scale: float = 1.0) -> Tensor:
        """Returns the embeddings x [T, hidden_size] with the vectors, times `scale`, in their places."""
        vectors = self.vectors.to(x.dtype)
        return x.index_copy(0, self.tokens, vectors if scale == 1.0 else vectors * scale)


@dataclass(frozen=True, slots=True)
class Tail:
    """The last token of each row. Only these are computed further, once the last layer has stored its keys and
    values.
    """

    tokens: Tensor
    """[R] int64, where they are among the tokens of the step."""
    step: ForwardBatch | None
    """The tail tokens as a DECODE step of their own that attends over stored keys; None: they attend with all
    others.
    """
