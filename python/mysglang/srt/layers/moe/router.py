"""How the logits of a router become the experts of each token and their gates: a table by kind.

What a kind does is one function; what a model may say of it beside the kind is in `Routing`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import Tensor

from mysglang.srt.kernels.experts import topk_softmax


@dataclass(frozen=True, slots=True, kw_only=True)
class Routing:
    """What a model says of its router."""

    kind: str
    """A row of `ROUTERS`."""
    top_k: int
    """Experts of a token."""
    renormalize: bool
    """Whether the gates of a token's experts are divided by their sum."""


Route = Callable[[Tensor, Routing], tuple[Tensor, Tensor]]
"""logits [N, experts] -> experts [N, top_k] int32, and their gates [N, top_k] float32."""


def _softmax(logits: Tensor, routing: Routing) -> tuple[Tensor, Tensor]:
    """The likeliest experts, with their probabilities (Qwen3-MoE)."""
    return topk_softmax(logits, routing.top_k, routing.renormalize)


ROUTERS: Mapping[str, Route] = {"softmax": _softmax}
