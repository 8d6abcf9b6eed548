"""Mixtures of experts: which experts a token goes to, and the weighted sum of what they make of it.

An expert's weights are of floating point, or of eight-bit integers with a factor for each output, as in `gemm`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from mysglang.srt.kernels.activation import Activation, gated
from mysglang.srt.kernels.gemm import gated_linear, linear
from mysglang.srt.kernels.op import Op

Biases = tuple[Tensor, Tensor] | None
"""[E, 2 * inner] of gate and up, or [E, inner] without a gate, and [E, width] of down, dense, of the rows' dtype; None:
there are none.
"""


def _topk_softmax(logits: Tensor, top_k: int, renormalize: bool) -> tuple[Tensor, Tensor]:
    """Chooses experts by softmax: logits [N, E] -> the `top_k` likeliest experts of each row [N, k] int32, and their
    gates [N, k] float32.

    The gates are the experts' probabilities, computed in float32; with `renormalize` divided by their sum. If experts
    are equally likely, any of them may be chosen.
    """
    gates, ids = logits.softmax(dim=-1, dtype=torch.float32).topk(top_k, dim=-1)
    if renormalize:
        gates = gates / gates.sum(dim=-1, keepdim=True)
    return ids.to(torch.int32), gates


def _sigmoid_scores(logits: Tensor) -> Tensor:
    """Computes each logit's sigmoid, in float32: [N, E] -> [N, E]."""
    return logits.float().sigmoid()


NO_GATES = 1e-20
"""Added to a sum of gates that others are divided by, for `sigmoid`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """How a row's logits become its experts and their gates."""

    score: Literal["softmax", "sigmoid"]
    top_k: int
    renormalize: bool
    """True if gates are divided by their sum."""
    groups: int = 1
    """Groups of as many experts each, side by side."""
    kept_groups: int = 1
    """Groups from which a row's experts come: with softmax those of the best experts, with sigmoid those whose two best
    have the greatest sum.
    """
    scale: float = 1.0
    """Factor of the gates, after all else."""
    least_sum: float = 0.0
    """Lower bound of the sum that gates are divided by."""


def _select_experts(
    logits: Tensor, correction: Tensor | None, selection: Selection, live_rows: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Chooses experts: logits [N, E] -> experts [N, k] int32, all different within a row, and their gates [N, k]
    float32.

    Corrections, float32 [E] or [1, E], are added to the scores for the choice only. The gates are the scores without
    them, computed in float32.

    Without corrections experts are chosen by their logits. If two are equal, either may be chosen.

    live_rows: [1] int32, at least 1: rows from this number on get the experts and gates of the first row, so that no
    weights are read for them alone. None: all rows count.
    """
    if live_rows is not None:
        logits = logits.where((torch.arange(len(logits), device=logits.device) < live_rows)[:, None], logits[:1])
    one_group = selection.groups == selection.kept_groups
    if selection.score == "softmax" and one_group and correction is None and not selection.least_sum:
        ids, gates = topk_softmax(logits, selection.top_k, selection.renormalize)
        return ids, gates if selection.scale == 1.0 else gates * selection.scale
    softmax = selection.score == "softmax"
    scores = logits.softmax(dim=-1, dtype=torch.float32) if softmax else sigmoid_scores(logits)
    # Scores of large logits are all 1, and the logits are not.
    choice = logits.float() if correction is None else scores + correction
    if not one_group:
        best = choice.view(len(choice), selection.groups, -1).topk(1 if softmax else 2, dim=-1).values.sum(dim=-1)
        kept = torch.zeros_like(best, dtype=torch.bool)
        kept.scatter_(-1, best.topk(selection.kept_groups, dim=-1).indices, True)
        choice = choice.masked_fill(~kept.repeat_interleave(choice.shape[-1] // selection.groups, dim=-1), -torch.inf)
    ids = choice.topk(selection.top_k, dim=-1).indices
    gates = scores.gather(-1, ids)
    if selection.renormalize:
        total = gates.sum(dim=-1, keepdim=True).clamp(min=selection.least_sum)
        gates = gates / (total if softmax else total + NO_GATES)
    return ids.to(torch.int32), gates if selection.scale == 1.0 else gates * selection.scale


def _route_experts(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    correction: Tensor | None,
    selection: Selection,
    short: Tensor | None = None,
    live_rows: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Computes the logits `linear(x, weight, bias)` of x [N, input] and chooses experts as `select_experts` does. x is
    rounded to the dtype of the weight [E, input] first.

    short: the numbers of a float32 weight in the dtype of x, if that has all of them. A product of two such numbers is
    exact in float32, so that an implementation may multiply with these and add in float32.
    """
    return select_experts(linear(x.to(weight.dtype), weight, bias), correction, selection, live_rows)


def _add_gated(shared: Tensor, mixed: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    """Replaces `shared` by mixed + sigmoid(x weight) * shared, and returns it.

    shared: what an expert that all rows have gives, [N, width] dense; mixed: what the others give, as `shared`. x: [N,
    input], rows may lie in wider ones; weight: [1, input], as `linear` takes it. A kernel rounds only the sum.
    """
    return shared.mul_(linear(x, weight, None).sigmoid()).add_(mixed)


def _fused_experts(
    x: Tensor,
    gate_up: Tensor,
    down: Tensor,
    ids: Tensor,
    gates: Tensor,
    activation: Activation,
    biases: Biases = None,
) -> Tensor:
    """Computes the experts' weighted sum, [N, width] -> [N, width].

    It is the sum over the experts e of each row of gate * down[e] h, where h is the activation of the first half of
    gate_up[e] x, times the second half. Biases are added to both products.

    With an activation of `UNGATED`, h is that activation of gate_up[e] x, which has no second half.

    gate_up: [E, 2 * inner or inner, width]; down: [E, width, inner]; both may have been packed. ids: [N, k] int32 in
    [0, E); gates: [N, k] float32. An expert's product is rounded to x's dtype; the sum is taken in float32.

    This reference looks at no value: every expert computes every row, and what was not asked for is thrown away.
    """
    total = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
    for expert, (first, second) in enumerate(zip(gate_up, down, strict=True)):
        chosen = ids == expert
        one, two = (None, None) if biases is None else (biases[0][expert], biases[1][expert])
        product = F.linear(gated[activation](F.linear(x, first, one)), second, two)
        share = (gates * chosen).sum(dim=-1, keepdim=True) * product
        total += share.where(chosen.any(dim=-1, keepdim=True), 0.0)
    return total.to(x.dtype)


class SharedExpert(NamedTuple):
    """An expert that every row goes through. Its weights may have been packed as weights of linears."""

    gate_up: Tensor
    """[2 * inner, width], or [inner, width] of an activation without a gate."""
    down: Tensor
    """[width, inner]."""
    share: Tensor | None = None
    """[1, width]: what the expert gives is multiplied by sigmoid(x share)."""


def _experts_and_shared(
    x: Tensor,
    gate_up: Tensor,
    down: Tensor,
    ids: Tensor,
    gates: Tensor,
    activation: Activation,
    biases: Biases,
    shared: SharedExpert,
) -> Tensor:
    """Computes `fused_experts` plus a shared expert with the same activation and no biases; its inner size may differ.
    This reference rounds both to the dtype of x before it adds them.
    """
    out = linear(gated_linear(x, shared.gate_up, None, activation), shared.down, None)
    mixed = fused_experts(x, gate_up, down, ids, gates, activation, biases)
    return out.add_(mixed) if shared.share is None else add_gated(out, mixed, x, shared.share)


def _pack_experts(gate_up: Tensor, down: Tensor) -> tuple[Tensor, Tensor]:
    """Returns both weights in the layout with which `fused_experts` is fastest: themselves, or copies that no other
    code may read.
    """
    return gate_up, down


def _unpack_experts(weights: Tensor) -> Tensor:
    """Returns the weights [E, output, input] that were packed; others as they are."""
    return weights


def workspace_per_token(*, top_k: int, width: int, inner: int, dtype: torch.dtype) -> int:
    """Returns the number of bytes that `fused_experts` needs on a device for each token, in addition to its arguments
    and result: the intermediate results of its experts, and their indices.
    """
    return top_k * ((width + inner) * dtype.itemsize + 2 * torch.int32.itemsize)


sigmoid_scores = Op(
    "sigmoid_scores",
    reference=_sigmoid_scores,
    invariant={"cpu": "mysglang.srt.kernels.cpu.invariant:sigmoid_scores"},
)
topk_softmax = Op("topk_softmax", reference=_topk_softmax, cuda="mysglang.srt.kernels.cuda.select_experts:topk_softmax")
select_experts = Op(
    "select_experts", reference=_select_experts, cuda="mysglang.srt.kernels.cuda.select_experts:select_experts"
)
route_experts = Op(
    "route_experts",
    reference=_route_experts,
    cuda="mysglang.srt.kernels.cuda.select_experts:route_experts",
    # Composed of a product that is invariant, and of a choice that is.
    invariant={"cuda": ()},
)
fused_experts = Op(
    "fused_experts",
    reference=_fused_experts,
    cpu=("mysglang.srt.kernels.cpu.packed_experts:fused_experts", "mysglang.srt.kernels.cpu.experts:fused_experts"),
    cuda="mysglang.srt.kernels.cuda.experts:fused_experts",
    invariant={
        # torch's is invariant by the products of which it consists.
        "cpu": (
            "mysglang.srt.kernels.cpu.invariant_native:fused_experts",
            "mysglang.srt.kernels.cpu.experts:fused_experts",
        ),
        "cuda": "mysglang.srt.kernels.cuda.experts:invariant_fused_experts",
    },
)
experts_and_shared = Op(
    "experts_and_shared",
    reference=_experts_and_shared,
    cuda="mysglang.srt.kernels.cuda.experts:experts_and_shared",
    # Composed of ops that are invariant.
    invariant={"cuda": ()},
)
add_gated = Op("add_gated", reference=_add_gated, cuda="mysglang.srt.kernels.cuda.shared_gate:add_gated")
pack_experts = Op("pack_experts", reference=_pack_experts, cpu="mysglang.srt.kernels.cpu.packed_experts:pack_experts")
unpack_experts = Op(
    "unpack_experts", reference=_unpack_experts, cpu="mysglang.srt.kernels.cpu.packed_experts:unpack_experts"
)


Scales = tuple[Tensor, Tensor]
"""float32 [E, 2 * inner] of gate and up, and [E, width] of down."""


def _int8_fused_experts(
    x: Tensor,
    gate_up: Tensor,
    down: Tensor,
    scales: Scales,
    ids: Tensor,
    gates: Tensor,
    activation: Activation,
    biases: Biases = None,
) -> Tensor:
    """Computes `fused_experts` with the weights times their scales. This reference widens all of them."""
    wide = [
        (weights.float() * each[..., None]).to(x.dtype) for weights, each in zip((gate_up, down), scales, strict=True)
    ]
    return fused_experts.reference(x, wide[0], wide[1], ids, gates, activation, biases)


def _pack_int8_experts(gate_up: Tensor, down: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the weights unchanged: the reference has no packed form. See `pack_experts`."""
    return gate_up, down


def _unpack_int8_experts(weights: Tensor) -> Tensor:
    """Returns the weights unchanged: the reference has no packed form. See `unpack_experts`."""
    return weights


int8_fused_experts = Op(
    "int8_fused_experts",
    reference=_int8_fused_experts,
    cpu=(
        "mysglang.srt.kernels.cpu.packed_experts:int8_fused_experts",
        "mysglang.srt.kernels.cpu.experts:int8_fused_experts",
    ),
    invariant={
        "cpu": (
            "mysglang.srt.kernels.cpu.invariant_native:int8_fused_experts",
            "mysglang.srt.kernels.cpu.experts:int8_fused_experts",
        )
    },
)
pack_int8_experts = Op(
    "pack_int8_experts",
    reference=_pack_int8_experts,
    cpu="mysglang.srt.kernels.cpu.packed_experts:pack_int8_experts",
)
unpack_int8_experts = Op(
    "unpack_int8_experts",
    reference=_unpack_int8_experts,
    cpu="mysglang.srt.kernels.cpu.packed_experts:unpack_experts",
)
