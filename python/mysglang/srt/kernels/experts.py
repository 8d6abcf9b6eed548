"""Mixtures of experts: which experts a token goes to, and the weighted sum of what they make of it.

An expert's weights are of floating point, or of eight-bit integers with a factor for each output, as in `gemm`.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from mysglang.srt.kernels.activation import Activation, gated
from mysglang.srt.kernels.op import Op

Biases = tuple[Tensor, Tensor] | None
"""[E, 2 * inner] of gate and up, and [E, width] of down, dense, of the rows' dtype; None: there are none."""


def _topk_softmax(logits: Tensor, top_k: int, renormalize: bool) -> tuple[Tensor, Tensor]:
    """logits [N, E] -> the `top_k` likeliest experts of each row [N, k] int32, and their gates [N, k] float32.

    The gates are the experts' probabilities, computed in float32; with `renormalize` divided by their sum. If experts
    are equally likely, any of them may be chosen.
    """
    gates, ids = logits.softmax(dim=-1, dtype=torch.float32).topk(top_k, dim=-1)
    if renormalize:
        gates = gates / gates.sum(dim=-1, keepdim=True)
    return ids.to(torch.int32), gates


def _sigmoid_scores(logits: Tensor) -> Tensor:
    """Each logit's sigmoid, in float32: [N, E] -> [N, E]."""
    return logits.float().sigmoid()


def _fused_experts(
    x: Tensor,
    gate_up: Tensor,
    down: Tensor,
    ids: Tensor,
    gates: Tensor,
    activation: Activation,
    biases: Biases = None,
) -> Tensor:
    """[N, width] -> [N, width]: the sum over the experts e of each row of gate * down[e] h, where h is the activation
    of the first half of gate_up[e] x, times the second half. Biases are added to both products.

    gate_up: [E, 2 * inner, width]; down: [E, width, inner]; both may have been packed. ids: [N, k] int32 in [0, E);
    gates: [N, k] float32. An expert's product is rounded to x's dtype; the sum is taken in float32.

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


def _pack_experts(gate_up: Tensor, down: Tensor) -> tuple[Tensor, Tensor]:
    """Both in the form that `fused_experts` is quickest with: themselves, or copies that nothing else may look into."""
    return gate_up, down


def _unpack_experts(weights: Tensor) -> Tensor:
    """The weights [E, output, input] that were packed; others as they are."""
    return weights


def workspace_per_token(*, top_k: int, width: int, inner: int, dtype: torch.dtype) -> int:
    """Bytes that `fused_experts` needs on a device for a token, in addition to its arguments and result: the
    intermediate results of its experts, and their indices.
    """
    return top_k * ((width + inner) * dtype.itemsize + 2 * torch.int32.itemsize)


sigmoid_scores = Op(
    "sigmoid_scores",
    reference=_sigmoid_scores,
    invariant={"cpu": "mysglang.srt.kernels.cpu.invariant:sigmoid_scores"},
)
topk_softmax = Op("topk_softmax", reference=_topk_softmax, cuda="mysglang.srt.kernels.cuda.experts:topk_softmax")
fused_experts = Op(
    "fused_experts",
    reference=_fused_experts,
    cpu=("mysglang.srt.kernels.cpu.packed_experts:fused_experts", "mysglang.srt.kernels.cpu.experts:fused_experts"),
    cuda="mysglang.srt.kernels.cuda.experts:fused_experts",
    # On the CPU both implementations are invariant: C++ by itself, and torch by the products of which it consists.
    invariant={"cuda": "mysglang.srt.kernels.cuda.experts:invariant_fused_experts"},
)
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
    """`fused_experts` with the weights times their scales. This reference widens all of them."""
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
