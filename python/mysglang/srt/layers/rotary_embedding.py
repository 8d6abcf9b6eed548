"""Rotary position embedding: the table of cosines and sines, one function for each scaling of its frequencies.

Each function takes the parameters of `configs/rope_config.py`, the head's size and the longest position, and returns
the head_dim / 2 angles per position with the factor by which queries and keys are stretched. All in float32, in the
order of operations that models are trained with: in a long text the last bit of a frequency shows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from mysglang.srt.kernels import rotary

Scaling = Callable[[Mapping[str, Any], int, int], tuple[Tensor, float]]


def inverse_frequencies(theta: float, head_dim: int) -> Tensor:
    """Returns theta^(-2i / head_dim), i = 0 … head_dim / 2 - 1: Su et al., "RoFormer" (2021), section 3.4.2."""
    return 1.0 / theta ** (torch.arange(0, head_dim, 2, dtype=torch.float32, device="cpu") / head_dim)


def default_frequencies(rope: Mapping[str, Any], head_dim: int, max_position: int) -> tuple[Tensor, float]:
    return inverse_frequencies(rope["rope_theta"], head_dim), 1.0


def linear_frequencies(rope: Mapping[str, Any], head_dim: int, max_position: int) -> tuple[Tensor, float]:
    """Returns frequencies for positions divided by the factor: Chen et al., "Extending Context Window" by positional
    interpolation (2023).
    """
    return inverse_frequencies(rope["rope_theta"], head_dim) / rope["factor"], 1.0


def dynamic_frequencies(rope: Mapping[str, Any], head_dim: int, max_position: int) -> tuple[Tensor, float]:
    """Returns frequencies of an NTK-aware base for a fixed length: theta * (factor * length / original - (factor -
    1))^(d / (d - 2)).

    The formula is bloc97's and emozilla's as in transformers, which applies it to the length of the moment. Keys that
    stay in a cache are turned once, so here the length is always the longest that is served.
    """
    factor, original = rope["factor"], rope["original_max_position_embeddings"]
    length = max(max_position, original)
    stretch = factor * length / original - (factor - 1)
    theta = rope["rope_theta"] * stretch ** (head_dim / (head_dim - 2))
    return inverse_frequencies(theta, head_dim), 1.0


def dynamic_alpha_frequencies(rope: Mapping[str, Any], head_dim: int, max_position: int) -> tuple[Tensor, float]:
    """Returns frequencies of an NTK-aware base for every length: theta * alpha^(d / (d - 2)), as Hunyuan uses it."""
    return inverse_frequencies(rope["rope_theta"] * rope["alpha"] ** (head_dim / (head_dim - 2)), head_dim), 1.0


def proportional_frequencies(rope: Mapping[str, Any], head_dim: int, max_position: int) -> tuple[Tensor, float]:
    """Returns the frequencies of whole heads, of which only the first part is used, as in Gemma 4; the other lanes
    stay.
    """
    frequencies = inverse_frequencies(rope["rope_theta"], head_dim) / rope.get("factor", 1.0)
    frequencies[int(rope.get("partial_rotary_factor", 1.0) * head_dim // 2) :] = 0.0
    return frequencies, 1.0


def llama3_frequencies(rope: Mapping[str, Any], head_dim: int, max_position: int) -> tuple[Tensor, float]:
    """Returns Llama 3.1's frequencies: short waves as they are, long ones divided by the factor, a linear blend between
    the two bounds. Where both bounds are the same, as in Llama 4 Scout, nothing is blended.

    Source: `apply_scaling` of meta-llama/llama-models.
    """
    frequencies = inverse_frequencies(rope["rope_theta"], head_dim)
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    turns = rope["original_max_position_embeddings"] * frequencies / (2 * math.pi)
    keep = ((turns - low) / (high - low)).clamp(0, 1) if low < high else (turns >= low).to(turns.dtype)
    return frequencies * (keep + (1 - keep) / rope["factor"]), 1.0


def yarn_frequencies(rope: Mapping[str, Any], head_dim: int, max_position: int) -> tuple[Tensor, float]:
    """Returns YaRN's frequencies and stretch: Peng et al., "YaRN" (2023), section 3.2 (NTK by parts) and 3.4 (the
    stretch, sqrt(1/t) = 0.1 ln(s) + 1).
    """
    theta, factor = rope["rope_theta"], rope["factor"]

    def dimension(turns: float) -> float:
        """Returns the index whose wave makes that many turns within the original length."""
        original: float = rope["original_max_position_embeddings"]
        return head_dim * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low, high = dimension(rope.get("beta_fast", 32)), dimension(rope.get("beta_slow", 1))
    if rope.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    index = torch.arange(head_dim // 2, dtype=torch.float32, device="cpu")
    interpolate = ((index - low) / (high - low if high != low else 0.001)).clamp(0, 1)
    frequencies = inverse_frequencies(theta, head_dim)
    return frequencies * (1 - interpolate + interpolate / factor), _yarn_stretch(rope)


def _yarn_stretch(rope: Mapping[str, Any]) -> float:
    """Returns YaRN's factor of cosines and sines: `attention_factor` if given, otherwise from `factor`. DeepSeek's
    mscale pair changes its weight.
    """

    def stretch(weight: float) -> float:
        return 1.0 if rope["factor"] <= 1 else 0.1 * weight * math.log(rope["factor"]) + 1.0

    if "attention_factor" in rope:
        return float(rope["attention_factor"])
    if rope.get("mscale") and rope.get("mscale_all_dim"):
        return stretch(rope["mscale"]) / stretch(rope["mscale_all_dim"])
    return stretch(1.0)


def longrope_frequencies(rope: Mapping[str, Any], head_dim: int, max_position: int) -> tuple[Tensor, float]:
    """Returns a factor for each frequency: Ding et al., "LongRoPE" (2024), as Phi-3 uses it.

    There are two lists, for texts up to the original length and for longer ones. Keys that stay in a cache are turned
    once, so here the longest text that is served decides for all: `--context-length` of at most the original length
    takes the short list.
    """
    original = rope["original_max_position_embeddings"]
    length = "long" if max_position > original else "short"
    factors = torch.tensor(rope[f"{length}_factor"], dtype=torch.float32, device="cpu")
    stretch = rope.get(f"{length}_mscale", rope.get("attention_factor"))
    if stretch is None:
        factor = rope.get("factor", 1.0)
        stretch = 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(original))
    return 1.0 / (factors / inverse_frequencies(rope["rope_theta"], head_dim)), float(stretch)


SCALINGS: dict[str, Scaling] = {
    "default": default_frequencies,
    "linear": linear_frequencies,
    "dynamic": dynamic_frequencies,
    "dynamic_alpha": dynamic_alpha_frequencies,
    "proportional": proportional_frequencies,
    "llama3": llama3_frequencies,
    "yarn": yarn_frequencies,
    "longrope": longrope_frequencies,
}


def cos_sin_table(rope: Mapping[str, Any], head_dim: int, max_position: int) -> Tensor:
    """Returns [max_position, head_dim] float32: cosines of the head_dim / 2 angles of each position, then their
    sines.
    """
    frequencies, stretch = SCALINGS[rope["rope_type"]](rope, head_dim, max_position)
    angles = torch.outer(torch.arange(max_position, dtype=torch.float32, device="cpu"), frequencies)
    return torch.cat((angles.cos() * stretch, angles.sin() * stretch), dim=-1)


class RotaryEmbedding(nn.Module):
    """The table of rotary angles. One instance serves all layers of a model with equal heads.

    Kernels turn dimension i of a head together with dimension i + half. A model that turns only the first `turned`
    dimensions turns i together with i + turned / 2. So the weights of queries and keys are loaded in another order,
    `order`, which changes no score; the dimensions that stay as they are have an angle of 0:

        a b | c d      a, b: the halves of what is turned; c, d: of the rest      in the order a c | b d

    In an interleaved head a and b are not halves, but the even and the odd dimensions of what is turned.
    """

    cos_sin: Tensor
    order: Tensor | None
    """[head_dim] int64 on the CPU: which dimension of a checkpoint is in each place; None: each in its own."""

    def __init__(
        self,
        rope: Mapping[str, Any],
        head_dim: int,
        max_position: int,
        *,
        turned: int | None = None,
        interleaved: bool = False,
    ) -> None:
        """`turned`: number of dimensions of a head that are rotated, an even number of the first ones; None: all.
        `interleaved`: True if dimension 2i is rotated together with 2i + 1.
        """
        super().__init__()
        turned = head_dim if turned is None else turned
        table, order = cos_sin_table(rope, turned, max_position), None
        if turned < head_dim or interleaved:
            cos, sin = table.chunk(2, dim=-1)
            rest = torch.zeros(max_position, (head_dim - turned) // 2, device="cpu")
            table = torch.cat((cos, rest + 1.0, sin, rest), dim=-1)
            half, end = turned // 2, turned + rest.shape[1]
            places = torch.arange(head_dim, device="cpu")
            first, second = (
                (places[0:turned:2], places[1:turned:2]) if interleaved else (places[:half], places[half:turned])
            )
            order = torch.cat((first, places[turned:end], second, places[end:]))
        device = torch.get_default_device()
        self.register_buffer("cos_sin", table.to(device), persistent=False)
        self.order = order


def turn_heads(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Returns rotated queries and keys [1, heads, T, dim], for models whose own code computes cosines and sines. See
    `kernels/rotary.py`.
    """
    return rotary.turn_heads(q, k, cos, sin)
