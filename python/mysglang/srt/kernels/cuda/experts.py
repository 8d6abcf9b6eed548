"""Mixtures of experts on CUDA. The host neither waits nor learns how rows were routed, so a step can be captured.

Which kernels run is a matter of the shapes alone: see `experts_plans.py`.
"""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from mysglang.srt.kernels.activation import Activation
from mysglang.srt.kernels.beside import beside
from mysglang.srt.kernels.cuda.experts_plans import INVARIANT, best_plan, plans_of
from mysglang.srt.kernels.cuda.mixture import Added, Mixture
from mysglang.srt.kernels.experts import Biases, SharedExpert
from mysglang.srt.kernels.experts import experts_and_shared as op
from mysglang.srt.kernels.gemm import gated_linear, linear


def fused_experts(
    x: Tensor,
    gate_up: Tensor,
    down: Tensor,
    ids: Tensor,
    gates: Tensor,
    activation: Activation,
    biases: Biases = None,
) -> Tensor:
    """Implements the op `fused_experts`. `kernels/experts.py` describes its arguments and result."""
    mixture = Mixture(x, gate_up, down, ids, gates, activation, biases)
    mixture.compile(plans_of(mixture))
    return mixture.run(best_plan(mixture))


def experts_and_shared(
    x: Tensor,
    gate_up: Tensor,
    down: Tensor,
    ids: Tensor,
    gates: Tensor,
    activation: Activation,
    biases: Biases,
    shared: SharedExpert,
) -> Tensor:
    """Implements the op `experts_and_shared`. `kernels/experts.py` describes its arguments and result."""
    mixture = Mixture(x, gate_up, down, ids, gates, activation, biases)
    plan = best_plan(mixture)
    if plan.takes_shared and shared.share is None:
        return replace(mixture, shared=shared).run(plan)
    if plan.adds:
        own = beside(x, lambda: linear(gated_linear(x, shared.gate_up, None, activation), shared.down, None))
        mixture = replace(mixture, added=Added(own, shared.share))
        mixture.compile(plans_of(mixture))
        return mixture.run(plan)
    return op.reference(x, gate_up, down, ids, gates, activation, biases, shared)


def invariant_fused_experts(
    x: Tensor,
    gate_up: Tensor,
    down: Tensor,
    ids: Tensor,
    gates: Tensor,
    activation: Activation,
    biases: Biases = None,
) -> Tensor:
    """Implements `fused_experts` so that the result of a row does not depend on the other rows of the batch."""
    return Mixture(x, gate_up, down, ids, gates, activation, biases).run(INVARIANT)
