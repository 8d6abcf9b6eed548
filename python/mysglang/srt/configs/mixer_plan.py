"""Mixers other than attention: delta nets, state space layers, short convolutions, several in parallel, and none.

Plans as those of `layer_plan.py`, where the kinds stand that most decoders are made of.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar, NamedTuple

from mysglang.srt.configs.layer_plan import AttentionPlan, Matrix, MixerPlan, NormPlan, Size


class LinearAttentionPlan(MixerPlan, frozen=True, kw_only=True):
    """A gated delta net: it keeps one state of a fixed size for each request, however long the request is.

    Yang, Kautz and Hatamizadeh, "Gated Delta Networks" (arXiv 2412.06464).
    """

    name: ClassVar[str] = "linear_attn"
    keeps_state: ClassVar[bool] = True

    key_heads: int
    value_heads: int
    """A multiple of `key_heads`: that many value heads share one key."""
    key_dim: int
    """Size of each key head, and of each query head."""
    value_dim: int
    kernel: int
    """Tokens that the convolution before the delta rule sees, a token itself included."""
    norm: NormPlan
    """Norm of the output of each value head."""
    grouped: bool = True
    """True if there are two projections whose rows are grouped by key head. Otherwise there are four: for the
    convolution's inputs, gates, strengths and decays.
    """
    apart: bool = False
    """True if queries, keys and values have a projection and a convolution each. Nothing is grouped then."""
    strongest: float = 1.0
    """Upper bound of the strength of a token."""

    @property
    def stacked(self) -> Mapping[str, tuple[str, ...]]:
        parts: dict[str, tuple[str, ...]] = {}
        if not self.grouped:
            parts["in_proj_ba"] = "in_proj_b", "in_proj_a"
        if self.apart:
            parts["in_proj_qkv"] = "query_proj", "key_proj", "value_proj"
            parts["conv1d"] = "q_conv1d", "k_conv1d", "v_conv1d"
        return parts

    def state_bytes(self, dtype_bytes: int) -> int:
        """Returns the bytes of one request's state: the newest inputs of the convolution in a dtype of that many bytes,
        and a float32 matrix for each value head.
        """
        recent = (self.kernel - 1) * self.channels * dtype_bytes
        return recent + self.value_heads * self.key_dim * self.value_dim * 4

    @property
    def channels(self) -> int:
        """Channels of the convolution: all queries, keys and values."""
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim

    def matrices(self, hidden: Size) -> Iterator[Matrix]:
        """Yields the matrices of the delta net in a checkpoint's layer."""
        values = Size("linear_num_value_heads * linear_value_head_dim", self.value_heads * self.value_dim)
        keys = Size("linear_num_key_heads * linear_key_head_dim", self.key_heads * self.key_dim)
        heads = Size("linear_num_value_heads", self.value_heads)
        if self.grouped:
            everything = Size(f"2 * {keys.field} + 2 * {values.field}", 2 * (keys.value + values.value))
            yield Matrix("linear_attn.in_proj_qkvz.weight", everything, hidden)
            yield Matrix("linear_attn.in_proj_ba.weight", Size(f"2 * {heads.field}", 2 * heads.value), hidden)
        else:
            convolved = Size(f"2 * {keys.field} + {values.field}", 2 * keys.value + values.value)
            if self.apart:
                for name, size in (("query", keys), ("key", keys), ("value", values)):
                    yield Matrix(f"linear_attn.{name}_proj.weight", size, hidden)
            else:
                yield Matrix("linear_attn.in_proj_qkv.weight", convolved, hidden)
            yield Matrix("linear_attn.in_proj_z.weight", values, hidden)
            yield Matrix("linear_attn.in_proj_b.weight", heads, hidden)
            yield Matrix("linear_attn.in_proj_a.weight", heads, hidden)
        yield Matrix("linear_attn.out_proj.weight", hidden, values)


class KimiDeltaPlan(MixerPlan, frozen=True, kw_only=True):
    """A gated delta net with a decay for each channel. Kimi Team, "Kimi Linear" (arXiv 2510.26692)."""

    name: ClassVar[str] = "self_attn"
    keeps_state: ClassVar[bool] = True
    queries: ClassVar[str] = "query_proj"
    """Name of the projection to queries here. In a checkpoint it is that of latent attention."""

    heads: int
    head_dim: int
    """Size of each query, key and value, and of what decays and gates are made of."""
    kernel: int
    """Tokens that the convolution before the delta rule sees, a token itself included."""
    norm: NormPlan
    """Norm of the output of each head."""

    @property
    def stacked(self) -> Mapping[str, tuple[str, ...]]:
        return {
            "in_proj_qkv": (self.queries, "k_proj", "v_proj"),
            "in_proj_gates": ("f_a_proj", "g_a_proj", "b_proj"),
            "conv1d": ("q_conv1d", "k_conv1d", "v_conv1d"),
        }

    def state_bytes(self, dtype_bytes: int) -> int:
        """Returns the newest inputs of the convolution, and a matrix of float32 for each head."""
        width = self.heads * self.head_dim
        return (self.kernel - 1) * 3 * width * dtype_bytes + width * self.head_dim * 4

    def matrices(self, hidden: Size) -> Iterator[Matrix]:
        width = Size("linear_num_heads * linear_head_dim", self.heads * self.head_dim)
        narrow = Size("linear_head_dim", self.head_dim)
        for name in ("q_proj", "k_proj", "v_proj"):
            yield Matrix(f"self_attn.{name}.weight", width, hidden)
        for name in ("f", "g"):
            yield Matrix(f"self_attn.{name}_a_proj.weight", narrow, hidden)
            yield Matrix(f"self_attn.{name}_b_proj.weight", width, narrow)
        yield Matrix("self_attn.b_proj.weight", Size("linear_num_heads", self.heads), hidden)
        yield Matrix("self_attn.o_proj.weight", hidden, width)


class LightningPlan(MixerPlan, frozen=True, kw_only=True):
    """Linear attention whose heads forget at fixed rates. MiniMax, "MiniMax-01" (arXiv 2501.08313), section 2.2."""

    name: ClassVar[str] = "self_attn"
    keeps_state: ClassVar[bool] = True
    inputs: ClassVar[str] = "in_proj"
    """Name of the projection to queries, keys and values here. In a checkpoint it is `qkv_proj`."""

    heads: int
    head_dim: int
    slope: float
    """Factor of the logarithms of the rates, which differ by head."""
    norm: NormPlan
    """Norm over all heads together."""

    @property
    def computed(self) -> tuple[str, ...]:
        return tuple(f"self_attn.{name}" for name in ("slope_rate", "query_decay", "key_decay", "diagonal_decay"))

    def state_bytes(self, dtype_bytes: int) -> int:
        """Returns a matrix of float32 for each head."""
        return self.heads * self.head_dim**2 * 4

    def matrices(self, hidden: Size) -> Iterator[Matrix]:
        width = Size("num_attention_heads * head_dim", self.heads * self.head_dim)
        yield Matrix("self_attn.qkv_proj.weight", Size(f"3 * {width.field}", 3 * width.value), hidden)
        yield Matrix("self_attn.output_gate.weight", width, hidden)
        yield Matrix("self_attn.out_proj.weight", hidden, width)


class MambaPlan(MixerPlan, frozen=True, kw_only=True):
    """A selective state space layer. Gu and Dao, "Mamba" (arXiv 2312.00752)."""

    name: ClassVar[str] = "mamba"
    keeps_state: ClassVar[bool] = True

    channels: int
    state_size: int
    """Numbers of each channel's state."""
    rank: int
    """Numbers that the time steps of all channels are made of."""
    kernel: int
    """Tokens that the convolution sees, a token itself included."""
    conv_bias: bool
    bias: bool
    """True if the first and the last projection have biases."""
    norm: NormPlan | None
    """Norm of what time steps are made of, and of what is written and read with (B and C); None: they are not normed.
    """

    def state_bytes(self, dtype_bytes: int) -> int:
        """Returns the newest inputs of the convolution, and a row of float32 for each channel."""
        return self.channels * ((self.kernel - 1) * dtype_bytes + self.state_size * 4)

    def matrices(self, hidden: Size) -> Iterator[Matrix]:
        channels = Size("channels of mamba", self.channels)
        narrow = Size("rank of time steps + 2 * state size", self.rank + 2 * self.state_size)
        yield Matrix("mamba.in_proj.weight", Size(f"2 * {channels.field}", 2 * self.channels), hidden)
        yield Matrix("mamba.x_proj.weight", narrow, channels)
        yield Matrix("mamba.dt_proj.weight", channels, Size("rank of time steps", self.rank))
        yield Matrix("mamba.A_log", channels, Size("state size", self.state_size))
        yield Matrix("mamba.out_proj.weight", hidden, channels)


class Mamba2Plan(MixerPlan, frozen=True, kw_only=True):
    """A state space layer. Dao and Gu, "Transformers are SSMs" (arXiv 2405.21060)."""

    name: ClassVar[str] = "mamba"
    keeps_state: ClassVar[bool] = True

    heads: int
    head_dim: int
    groups: int
    """Number of groups of heads. The heads of a group share the vectors that write to the state and read from it (B and
    C).
    """
    state_size: int
    """Rows of each head's state, a matrix with `head_dim` columns."""
    kernel: int
    """Tokens that the convolution sees, a token itself included."""
    conv_bias: bool = True
    in_bias: bool = False
    out_bias: bool = False
    norm: NormPlan | None = None
    """Norm of the heads' output; None: the output is only multiplied by silu of its gate."""
    norm_groups: int = 1
    """Parts of what the heads give that are normed each by itself."""
    gate_first: bool = True
    """True if the norm is applied after the gate's multiplication; otherwise before it."""
    factors: tuple[float, float, float, float, float] | None = None
    """Factors of the projected gates, inputs, B, C and time steps. None: 1 each."""
    least_step: float = 0.0
    """Lower bound of time steps."""

    @property
    def inner(self) -> int:
        """Number of output elements of all heads together."""
        return self.heads * self.head_dim

    @property
    def channels(self) -> int:
        """Returns the number of channels of the convolution: the inputs, B and C."""
        return self.inner + 2 * self.groups * self.state_size

    def state_bytes(self, dtype_bytes: int) -> int:
        """Returns bytes of one request's state: the newest inputs of the convolution, and a float32 matrix for each
        head.
        """
        return (self.kernel - 1) * self.channels * dtype_bytes + self.inner * self.state_size * 4

    def matrices(self, hidden: Size) -> Iterator[Matrix]:
        inner = Size("heads of mamba * their size", self.inner)
        rows = inner.value + self.channels + self.heads
        yield Matrix(
            "mamba.in_proj.weight", Size("2 * inputs + 2 * groups * state size + heads of mamba", rows), hidden
        )
        yield Matrix("mamba.out_proj.weight", hidden, inner)


class ConvolutionPlan(MixerPlan, frozen=True, kw_only=True):
    """A short convolution of each number of the hidden state between two gates. Its state is its newest inputs."""

    name: ClassVar[str] = "conv"
    keeps_state: ClassVar[bool] = True

    channels: int
    """Number of channels, which is the hidden size."""
    kernel: int
    """Tokens that it sees, a token itself included."""
    bias: bool = False

    def state_bytes(self, dtype_bytes: int) -> int:
        return (self.kernel - 1) * self.channels * dtype_bytes

    def matrices(self, hidden: Size) -> Iterator[Matrix]:
        yield Matrix("conv.in_proj.weight", Size("3 * hidden_size", 3 * hidden.value), hidden)
        yield Matrix("conv.out_proj.weight", hidden, hidden)


class SumMember(NamedTuple):
    """One of several mixers side by side."""

    mixer: MixerPlan
    input_scale: float
    """Factor of the hidden state before it."""
    output_scale: float
    """Factor of what it gives."""


class SumPlan(MixerPlan, frozen=True, kw_only=True):
    """Mixers in parallel on the same input, whose outputs are added."""

    name: ClassVar[str] = "side_by_side"

    parts: tuple[SumMember, ...]

    @property
    def members(self) -> tuple[MixerPlan, ...]:
        return tuple(part.mixer for part in self.parts)

    def matrices(self, hidden: Size) -> Iterator[Matrix]:
        for part in self.parts:
            for matrix in part.mixer.matrices(hidden):
                yield matrix._replace(name=f"{self.name}.{matrix.name}")


class SharedBlockPlan(MixerPlan, frozen=True, kw_only=True):
    """A Mamba-2 mixer whose input is the residual stream plus a projection of what a shared block gives
    (`DecoderPlan.blocks`). Source: Zamba2.
    """

    name: ClassVar[str] = "mamba_decoder"

    block: int
    """Which of the model's blocks it uses."""
    use: int
    """Number of this use among the uses of all blocks."""
    attention: AttentionPlan
    """The block's attention, which has keys and values of its own here."""
    mamba: Mamba2Plan
    norm: NormPlan
    """Norm of the mixer's input."""

    @property
    def members(self) -> tuple[MixerPlan, ...]:
        return self.attention, self.mamba

    def matrices(self, hidden: Size) -> Iterator[Matrix]:
        """Yields the matrices of the layer alone; those of the block are not in it."""
        for matrix in self.mamba.matrices(hidden):
            yield matrix._replace(name=f"{self.name}.{matrix.name}")
        yield Matrix(f"{self.name}.linear.weight", hidden, hidden)


class NoMixerPlan(MixerPlan, frozen=True, kw_only=True):
    """The null mixer, for a layer that is an MLP alone."""

    name: ClassVar[str] = "no_mixer"

    @property
    def members(self) -> tuple[MixerPlan, ...]:
        return ()
