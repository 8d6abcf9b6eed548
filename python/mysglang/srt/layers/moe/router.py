"""How a router chooses the experts of each token and their gates: a table by kind.

What a kind does is one function; what a model may say of it beside the kind is in `Routing`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from mysglang.srt.kernels.experts import Selection, route_experts
from mysglang.srt.kernels.gemm import linear
from mysglang.srt.layers.context import LayerContext
from mysglang.srt.layers.linear import ReplicatedLinear
from mysglang.srt.layers.parameter import WeightParameter
from mysglang.srt.layers.quantization.unquantized import Unquantized


@dataclass(frozen=True, slots=True, kw_only=True)
class Routing:
    """A model's options for its expert router."""

    kind: str
    """A row of `ROUTERS`."""
    top_k: int
    """Experts of a token."""
    renormalize: bool
    """True if the gates of a token's experts are divided by their sum."""
    groups: int = 1
    """Groups of as many experts each, side by side; a token's experts come from few of them."""
    kept_groups: int = 1
    """How many groups these are."""
    scale: float = 1.0
    """Factor of the gates, after all else."""
    float32: bool = False
    """True if logits are computed in float32; otherwise in the dtype of the model."""
    corrected: bool = False
    """True if each expert has a correction that is added to its score for choosing experts only."""
    corrections_in_row: bool = False
    """True if a checkpoint stores the corrections as a matrix of one row."""
    bias: bool = False
    """True if logits have a bias."""
    least_sum: float = 0.0
    """Lower bound of the sum that gates are divided by, for `softmax`."""
    jitter: float = 0.0
    """For `sparsemixer`: twice the largest distance of a candidate expert from the best, relative to the larger of
    both.
    """
    scales_input: bool = False
    """True if the gates multiply the input of experts instead of their output."""


class Router(ReplicatedLinear):
    """A router: from hidden states to logits, and from logits to experts. Every rank computes the same routing.

    A router is small, and what it rounds decides between experts: it is never quantized.
    """

    def __init__(self, hidden_size: int, experts: int, routing: Routing, context: LayerContext) -> None:
        dtype = torch.float32 if routing.float32 else context.dtype
        plain = replace(context, quant=Unquantized(), dtype=dtype)
        super().__init__(hidden_size, experts, bias=routing.bias, context=plain)
        self.routing = routing
        shape = (1, experts) if routing.corrections_in_row else (experts,)
        self.e_score_correction_bias = WeightParameter(shape, dtype=torch.float32) if routing.corrected else None
        self._model_dtype = context.dtype
        self.short: Tensor | None = None
        """The numbers of a float32 weight in the dtype of the model, if that has all of them, as in a checkpoint of
        that dtype; None before the weight is loaded, too.
        """

    def process_weights_after_loading(self) -> None:
        super().process_weights_after_loading()
        weight = self.weight
        assert isinstance(weight, Tensor)
        if weight.dtype is torch.float32 and self._model_dtype is not torch.float32:
            short = weight.to(self._model_dtype)
            self.short = short if torch.equal(short.float(), weight) else None

    def reopen_weights(self, layouts: Mapping[str, WeightParameter]) -> None:
        super().reopen_weights(layouts)
        self.short = None

    def values_of(self, name: str) -> Tensor:
        if name == "e_score_correction_bias":
            assert self.e_score_correction_bias is not None
            return self.e_score_correction_bias
        return super().values_of(name)

    def route(self, x: Tensor, live_rows: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Routes x [N, hidden] -> experts [N, top_k] int32, and their gates [N, top_k] float32.

        live_rows: [1] int32, how many rows count. The rows behind them may be given experts that another row has, so
        that no weights are read for them alone. None: all rows count.
        """
        weight = self.weight
        assert isinstance(weight, Tensor)
        more = self.e_score_correction_bias, self.short, live_rows
        return ROUTERS[self.routing.kind](x, weight, self.bias, self.routing, *more)


Route = Callable[
    [Tensor, Tensor, Tensor | None, Routing, Tensor | None, Tensor | None, Tensor | None], tuple[Tensor, Tensor]
]
"""x [N, hidden], a linear's weight [experts, hidden] and bias, what corrects the scores for the choice [experts], the
weight in the dtype of x if that has all its numbers, and how many rows count (`Router.route`).

Returns experts [N, top_k] int32, and their gates [N, top_k] float32. Logits are computed in the dtype of the weight.
"""


def _best(score: Literal["softmax", "sigmoid"]) -> Route:
    """Returns the experts with the greatest scores. With `softmax` a score is the expert's probability (Qwen3-MoE,
    DeepSeek-V2); with `sigmoid` each expert is scored by itself (DeepSeek-AI, "DeepSeek-V3", arXiv 2412.19437, section
    2.1.2).
    """

    def route(
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        routing: Routing,
        correction: Tensor | None,
        short: Tensor | None,
        live_rows: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        selection = Selection(
            score=score,
            top_k=routing.top_k,
            renormalize=routing.renormalize,
            groups=routing.groups,
            kept_groups=routing.kept_groups,
            scale=routing.scale,
            least_sum=routing.least_sum,
        )
        return route_experts(x, weight, bias, correction, selection, short, live_rows)

    return route


def _sparsemixer(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    routing: Routing,
    correction: Tensor | None,
    short: Tensor | None,
    live_rows: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Chooses experts one after another, each the best of the remaining ones.

    Its gate is its probability among the remaining ones that are not far below it (Liu et al., "GRIN", arXiv
    2409.12136, as Phi-3.5-MoE uses it; without noise).
    """
    scores = linear(x.to(weight.dtype), weight, bias).float()
    left, ids, gates = scores, [], []
    for _ in range(routing.top_k):
        best, chosen = left.max(dim=-1, keepdim=True)
        # All distances are relative to the larger of both sizes, also those of experts that were chosen before.
        far = (best - scores) / torch.maximum(scores.abs(), best) > 2 * routing.jitter
        gates.append(left.masked_fill(far, float("-inf")).softmax(dim=-1).gather(-1, chosen))
        ids.append(chosen)
        left = left.scatter(-1, chosen, float("-inf"))
    return torch.cat(ids, dim=-1).to(torch.int32), torch.cat(gates, dim=-1)


ROUTERS: Mapping[str, Route] = {"softmax": _best("softmax"), "sigmoid": _best("sigmoid"), "sparsemixer": _sparsemixer}
