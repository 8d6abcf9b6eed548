"""Mixtures of experts on the CPU: near the truth in float32, whatever the routing, and only needed experts are read."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from mysgl_kernel.cpu import experts as compiled
from mysgl_kernel.cpu.recording import CannotRecord, Recording
from mysglang.srt.kernels.cpu import experts as plain
from mysglang.srt.kernels.cpu import packed_experts
from mysglang.srt.kernels.experts import fused_experts, pack_experts, topk_softmax, unpack_experts

EXPERTS, WIDTH, INNER = 11, 96, 64
TOLERANCES = {torch.float32: 1e-5, torch.bfloat16: 1e-2}

Experts = Callable[..., Tensor]


@dataclass(frozen=True)
class Case:
    """Arguments of `fused_experts`; `packed` as the device has them, the others as they were loaded."""

    x: Tensor
    weights: tuple[Tensor, Tensor]
    packed: tuple[Tensor, Tensor]
    ids: Tensor
    gates: Tensor

    def truth(self) -> Tensor:
        """One row after another, one expert after another."""
        gate_up, down = (weight.float() for weight in self.weights)
        out = torch.zeros(self.x.shape)
        for row, (ids, gates) in enumerate(zip(self.ids.tolist(), self.gates, strict=True)):
            for expert, gate in zip(ids, gates, strict=True):
                act, up = (gate_up[expert] @ self.x[row].float()).chunk(2)
                out[row] += gate * (down[expert] @ (F.silu(act) * up))
        return out


def make_case(
    rows: int, dtype: torch.dtype, *, top_k: int = 3, active: int = EXPERTS, inner: int = INNER, seed: int = 0
) -> Case:
    """Routed to the first `active` experts, most rows to the last of these; the weights of the others are NaN."""
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, WIDTH + 5, generator=draw).to(dtype)[:, :WIDTH]
    gate_up = torch.randn(EXPERTS, 2 * inner, WIDTH, generator=draw).mul_(WIDTH**-0.5).to(dtype)
    down = torch.randn(EXPERTS, WIDTH, inner, generator=draw).mul_(inner**-0.5).to(dtype)
    gate_up[active:], down[active:] = torch.nan, torch.nan
    likely = torch.rand(rows, active, generator=draw)
    likely[:, -1] += 0.7
    ids = likely.topk(top_k, dim=-1).indices.to(torch.int32)
    gates = torch.rand(rows, top_k, generator=draw)
    return Case(x, (gate_up, down), pack_experts(gate_up, down), ids, gates)


def error(found: Tensor, expected: Tensor) -> float:
    assert found.shape == expected.shape
    return float((found.float() - expected).norm() / expected.norm())


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize(("rows", "active"), [(1, EXPERTS), (1, 3), (2, 5), (40, EXPERTS), (600, 4)])
def test_near_the_truth(rows: int, active: int, dtype: torch.dtype) -> None:
    """Weights in the device's form and in the loaded one; the row after the first slab of 512 too."""
    case = make_case(rows, dtype, active=active)
    for weights in (case.packed, case.weights):
        found = fused_experts(case.x, *weights, case.ids, case.gates, "silu")
        assert found.dtype is dtype
        assert error(found, case.truth()) < TOLERANCES[dtype]


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
def test_the_reference(dtype: torch.dtype) -> None:
    case = make_case(7, dtype)
    found = fused_experts.reference(case.x, *case.weights, case.ids, case.gates, "silu")
    assert error(found, case.truth()) < TOLERANCES[dtype]


@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh"])
@pytest.mark.parametrize("inner", [INNER, 48])
def test_what_one_kernel_does_not_take_others_do(inner: int, activation: str) -> None:
    """An activation that it does not know, and widths that are no whole panels: then neither matrix is packed."""
    case = make_case(9, torch.bfloat16, inner=inner)
    assert [compiled.is_packed(weight) for weight in case.packed] == [packed_experts.available() and inner == INNER] * 2
    expected = fused_experts.reference(case.x, *case.weights, case.ids, case.gates, activation)  # type: ignore[arg-type]
    found = fused_experts(case.x, *case.packed, case.ids, case.gates, activation)  # type: ignore[arg-type]
    assert error(found, expected.float()) < 1e-2


def test_no_rows() -> None:
    for dtype in TOLERANCES:
        case = make_case(0, dtype)
        assert fused_experts(case.x, *case.packed, case.ids, case.gates, "silu").shape == (0, WIDTH)


def test_packing_keeps_the_values() -> None:
    case = make_case(1, torch.bfloat16)
    for packed, plain_weights in zip(case.packed, case.weights, strict=True):
        assert torch.equal(unpack_experts(packed), plain_weights)
        assert unpack_experts(plain_weights) is plain_weights


@pytest.mark.skipif(not packed_experts.available(), reason="no kernel for this processor")
def test_a_recorded_step_follows_its_routing() -> None:
    """A replay reads the experts that the rows have by then."""
    case, other = make_case(5, torch.bfloat16), make_case(5, torch.bfloat16, seed=1)
    assert compiled.is_packed(case.packed[0])
    x, ids, gates = case.x.clone(), case.ids.clone(), case.gates.clone()
    with torch.inference_mode(), Recording() as recording:
        out = fused_experts(x, *case.packed, ids, gates, "silu")
    for target, source in ((x, other.x), (ids, other.ids), (gates, other.gates)):
        target.copy_(source)
    recording.replay()
    assert torch.equal(out, fused_experts(other.x, *case.packed, other.ids, other.gates, "silu"))


def test_grouping_in_torch_is_not_recorded() -> None:
    """Or else a replay would keep the routing that it was recorded with."""
    case = make_case(5, torch.float32)
    with pytest.raises(CannotRecord), Recording():
        plain.fused_experts(case.x, *case.weights, case.ids, case.gates, "silu")


@pytest.mark.parametrize("renormalize", [False, True])
def test_topk_softmax(renormalize: bool) -> None:
    logits = torch.randn(6, 9, generator=torch.Generator().manual_seed(0)).bfloat16()
    ids, gates = topk_softmax(logits, 4, renormalize)
    probabilities = logits.double().softmax(dim=-1)
    expected = probabilities.topk(4, dim=-1)
    assert ids.dtype is torch.int32 and torch.equal(ids, expected.indices.int())
    wanted = expected.values / expected.values.sum(dim=-1, keepdim=True) if renormalize else expected.values
    torch.testing.assert_close(gates, wanted.float())
