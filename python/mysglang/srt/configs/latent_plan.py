"""LatentPlan: attention over latent rows (MLA), and which tokens a query chooses to attend to (DSA)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from mysglang.srt.configs.checkpoint_tensors import Matrix, Size
from mysglang.srt.configs.norm_plan import NormPlan


class IndexerPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Scores the tokens before a query by keys of its own, one for each token.

    DeepSeek-AI, "DeepSeek-V3.2" (arXiv 2512.02556), section 2.1.
    """

    heads: int
    head_dim: int
    """Size of a key, and of each head's query."""
    interleaved: bool
    """True if rotary positions rotate neighbouring numbers together; otherwise number i with i + rope_dim / 2."""
    norm: NormPlan
    """Norm of keys."""

    def matrices(self, narrow: Size, hidden: Size) -> Iterator[Matrix]:
        """Yields the matrices of the indexer in a checkpoint's layer. narrow: the size of the vectors that its queries
        are made from.
        """
        queries = Size("index_n_heads * index_head_dim", self.heads * self.head_dim)
        yield Matrix("self_attn.indexer.wq_b.weight", queries, narrow)
        yield Matrix("self_attn.indexer.wk.weight", Size("index_head_dim", self.head_dim), hidden)
        yield Matrix("self_attn.indexer.weights_proj.weight", Size("index_n_heads", self.heads), hidden)


class ChoicePlan(msgspec.Struct, frozen=True, kw_only=True):
    """Each query attends to the tokens with the best scores."""

    top_k: int
    """How many these are at most."""
    layer: int
    """Number of the layer whose indexer chooses: this one, or one before it."""
    indexer: IndexerPlan | None
    """None: the layer has none, and takes the choice of the other layer."""


class LatentPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Multi-head latent attention: a token keeps one row for all heads, from which their keys and values are made.

    DeepSeek-AI, "DeepSeek-V2" (arXiv 2405.04434), section 2.1.
    """

    query_rank: int | None
    """Numbers that queries are made from, after a norm; None: they are made from the hidden state."""
    rank: int
    """Numbers of a row that keys and values are made from, after a norm."""
    key_dim: int
    """Size of each head's key without the part that has positions."""
    rope_dim: int
    """Size of the key part with rotary positions, which all heads share."""
    value_dim: int
    """Size of each head's value."""
    interleaved: bool
    """True if rotary positions rotate neighbouring numbers together; otherwise number i with i + rope_dim / 2."""
    norm: NormPlan
    """Norm of the rows, and of the vectors that queries are made from."""
    choice: ChoicePlan | None = None
    """Which tokens a query attends to; None: all before it."""

    @property
    def index_dim(self) -> int:
        """Numbers of the index key that a token keeps beside its row; 0: none."""
        indexer = None if self.choice is None else self.choice.indexer
        return 0 if indexer is None else indexer.head_dim

    @property
    def stacked(self) -> Mapping[str, tuple[str, ...]]:
        """The projection of the hidden state, where none has a bias -> those of a checkpoint in it, in order."""
        queries = "q_proj" if self.query_rank is None else "q_a_proj"
        return {"in_proj": (queries, "kv_a_proj_with_mqa")}

    def matrices(self, num_heads: int, hidden: Size) -> Iterator[Matrix]:
        """Yields the matrices of latent attention in a checkpoint's layer."""
        dim = self.key_dim + self.rope_dim
        queries = Size("num_attention_heads * (qk_nope_head_dim + qk_rope_head_dim)", num_heads * dim)
        if self.query_rank is None:
            yield Matrix("self_attn.q_proj.weight", queries, hidden)
        else:
            narrow = Size("q_lora_rank", self.query_rank)
            yield Matrix("self_attn.q_a_proj.weight", narrow, hidden)
            yield Matrix("self_attn.q_b_proj.weight", queries, narrow)
        row = Size("kv_lora_rank + qk_rope_head_dim", self.rank + self.rope_dim)
        yield Matrix("self_attn.kv_a_proj_with_mqa.weight", row, hidden)
        both = Size(
            "num_attention_heads * (qk_nope_head_dim + v_head_dim)", num_heads * (self.key_dim + self.value_dim)
        )
        yield Matrix("self_attn.kv_b_proj.weight", both, Size("kv_lora_rank", self.rank))
        values = Size("num_attention_heads * v_head_dim", num_heads * self.value_dim)
        yield Matrix("self_attn.o_proj.weight", hidden, values)
        if self.choice is not None and self.choice.indexer is not None:
            assert self.query_rank is not None, "an indexer's queries are made from the same vectors"
            yield from self.choice.indexer.matrices(Size("q_lora_rank", self.query_rank), hidden)
