"""MambaConfig: the keys of config.json that all model families with Mamba-2 layers share."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from mysglang.srt.configs.decoder_config import DecoderConfig, HeadDim, Heads
from mysglang.srt.configs.mixer_plan import Mamba2Plan
from mysglang.srt.errors import ConfigError

Kernel = Annotated[int, msgspec.Meta(ge=2, le=64)]

FULL, LINEAR, MLP = "full_attention", "linear_attention", "mlp"
"""Types of layers, as transformers 5 writes them."""

OTHER_NAMES = {"attention": FULL, "*": FULL, "mamba": LINEAR, "M": LINEAR, "-": MLP, "E": "moe"}
"""Names and letters of the layer types in older files."""

LONGEST = 3.4028234663852886e38
"""The largest number in float32, in which time steps are computed. A limit from here on cuts nothing."""


class MambaConfig(DecoderConfig, frozen=True, kw_only=True):
    """Base of the configs with Mamba-2 layers. If `mamba_d_head` is "auto", the size of a head is
    `mamba_expand * hidden_size / mamba_n_heads`.
    """

    mamba_n_heads: Heads = 128
    mamba_d_head: HeadDim | Literal["auto"] = "auto"
    mamba_n_groups: Heads = 1
    mamba_d_state: HeadDim = 256
    mamba_d_conv: Kernel = 4
    mamba_expand: Annotated[int, msgspec.Meta(ge=1, le=64)] = 2
    mamba_conv_bias: bool = True
    mamba_proj_bias: bool = False
    time_step_limit: list[Any] | None = None

    def mamba(self) -> Mamba2Plan:
        """Returns the Mamba-2 mixer of a layer."""
        return Mamba2Plan(
            heads=self.mamba_n_heads,
            head_dim=self.mamba_inner // self.mamba_n_heads,
            groups=self.mamba_n_groups,
            state_size=self.mamba_d_state,
            kernel=self.mamba_d_conv,
            conv_bias=self.mamba_conv_bias,
            in_bias=self.mamba_proj_bias,
            out_bias=self.mamba_proj_bias,
            norm=self.norm(),
        )

    @property
    def mamba_inner(self) -> int:
        """Number of output elements of all heads together."""
        return self.mamba_expand * self.hidden_size

    @property
    def mamba_act(self) -> str:
        """Name of the activation after the convolution."""
        return self.hidden_act

    def check(self) -> None:
        super().check()
        self.check_mixer()

    def check_mixer(self) -> None:
        """Raise ConfigError for sizes of the Mamba-2 mixers that contradict each other or are not supported."""
        inner, heads, dim = self.mamba_inner, self.mamba_n_heads, self.mamba_d_head
        if inner % heads or (dim != "auto" and dim * heads != inner):
            raise ConfigError(
                f"config.json: {heads} heads of mamba (mamba_n_heads) of {dim} numbers (mamba_d_head) do not "
                f"make {inner}"
            )
        check_mamba(heads, self.mamba_n_groups, inner, self.mamba_act, self.time_step_limit)


def named_layers(types: object) -> list[str]:
    """Returns the type of each layer by today's names, from a list of names or a text of letters. Raises
    ConfigError.
    """
    if not isinstance(types, list | str) or not all(isinstance(name, str) for name in types):
        raise ConfigError(f"config.json: types of layers must be a list of names or a text of letters, not {types!r}")
    return [OTHER_NAMES.get(name, name) for name in types]


def time_step_rank(given: int | Literal["auto"], hidden_size: int) -> int:
    """Returns the rank of a Mamba layer's time steps. "auto" means a sixteenth of the hidden size, rounded up."""
    return -(-hidden_size // 16) if given == "auto" else given


def check_attends(attends: bool) -> None:
    """Raise ConfigError for a decoder without a layer that attends over keys."""
    if not attends:
        raise ConfigError("config.json: no layer attends over keys, which is not supported")


def check_mamba(heads: int, groups: int, inner: int, activation: str, limits: list[Any] | None) -> None:
    """Raise ConfigError for sizes that do not divide, for another activation than silu after the convolution, and for
    time steps with limits (`time_step_limit`).
    """
    if activation != "silu":
        raise ConfigError(f"config.json: the activation {activation!r} is not supported for layers of mamba; silu is")
    if heads % groups or inner % groups:
        raise ConfigError(f"config.json: {heads} heads of mamba cannot be divided among {groups} groups")
    if limits is not None and not _never_cuts(limits):
        # Kernels for prompts cut time steps there, and those for decoding do not: answers would differ.
        raise ConfigError(f"config.json: a time_step_limit other than 0 and Infinity is not supported, not {limits}")


def _never_cuts(limits: list[Any]) -> bool:
    """True if no time step is below the first limit or above the second."""
    match list(map(_number, limits)):
        case [int() | float() as least, int() | float() as most]:
            return least == 0 and most >= LONGEST
    return False


def _number(value: object) -> object:
    """Converts the object by which transformers writes a number that JSON does not have, such as infinity."""
    return float(value["__float__"]) if isinstance(value, dict) and value.keys() == {"__float__"} else value
