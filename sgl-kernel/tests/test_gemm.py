"""Matrix products against float32 ones: of up to 256 rows in every form, tile and split, gated ones of more."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from mysgl_kernel import gemm
from mysgl_kernel.gemm_plan import FORMS, LATE_FORM, LATE_TILES, MANY_TILE, TILES, Form, Plan, has_late_gate, takes_tile

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0), reason="no Hopper device"
)

SHAPES = [(1008, 1040), (528, 584)]
TOLERANCE = 4e-3


def expected(x: Tensor, weight: Tensor, bias: Tensor | None, gate: str | None) -> Tensor:
    out = x.float() @ weight.float().T
    if bias is not None:
        out += bias.float()
    if gate is None:
        return out
    g, up = out.bfloat16().float().chunk(2, dim=-1)
    return (F.silu(g) if gate == "silu" else F.gelu(g, approximate="tanh")) * up


def check(
    rows: int,
    outputs: int,
    inputs: int,
    plan: Plan,
    *,
    bias: bool = False,
    gate: str | None = None,
    scale: float = 1.0,
) -> None:
    x = torch.randn(rows, inputs + 8, device="cuda").bfloat16()[:, :inputs]
    weight = (torch.randn(outputs, inputs, device="cuda") * inputs**-0.5 * scale).bfloat16()
    added = torch.randn(outputs, device="cuda").bfloat16() if bias else None
    # Freed at once: the allocator hands out poison next, so that nothing unwritten passes.
    torch.full((rows, outputs // 2 if gate else outputs), float("nan"), device="cuda", dtype=torch.bfloat16)
    actual = gemm.linear(x, weight, added, plan, gate=gate)
    truth = expected(x, weight, added, gate)
    error = float((actual.float() - truth).norm() / truth.norm())
    assert error < TOLERANCE, f"{rows} rows, {outputs} x {inputs}, {plan}, bias {bias}, gate {gate}: off by {error}"


def plans(form: Form) -> list[Plan]:
    splits = (1, 2, 3, 4) if form.pair else (1, 2, 5, 8)
    tiles = [tile for tile in TILES if takes_tile(form, tile)]
    return [Plan(form, tile, split, 66) for tile, split in itertools.product(tiles, splits)]


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_every_tile_and_split(form: Form) -> None:
    """Numbers of rows at the ends of the form and in it, weights that end inside a tile, depths inside a stage."""
    torch.manual_seed(0)
    lowest = form.rows // 2 + 1 if form.pair else 1
    rows = itertools.cycle((lowest, form.rows, (lowest + form.rows) // 2, form.rows - 3))
    shapes = itertools.cycle(SHAPES)
    gates = itertools.cycle((None, "silu", None, "gelu_tanh", None))
    for i, plan in enumerate(plans(form)):
        check(next(rows), *next(shapes), plan, bias=i % 3 == 0, gate=next(gates))


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_several_tiles_for_each_block(form: Form) -> None:
    for tile in (96, 112):
        check(form.rows, 28672, 512, Plan(form, tile, 1, 20))
        check(form.rows, 28672, 512, Plan(form, tile, 1, 20), gate="silu", bias=True)


@pytest.mark.parametrize("gate", gemm.GATES)
@pytest.mark.parametrize(("rows", "outputs", "inputs"), [(257, 1040, 520), (1000, 2048, 1000), (4100, 12288, 1160)])
def test_gates_of_many_rows(rows: int, outputs: int, inputs: int, gate: str) -> None:
    """The gate of a tile is worked out beside the products of the next; the last one has none."""
    torch.manual_seed(0)
    for row_group, clusters in ((1, 66), (3, 5), (16, 66)):
        plan = Plan(LATE_FORM, MANY_TILE, 1, clusters, row_group=row_group)
        check(rows, outputs, inputs, plan, gate=gate, bias=row_group == 3)


@pytest.mark.parametrize("tile", LATE_TILES)
def test_late_gates(tile: int) -> None:
    for rows, outputs in ((256, 28672), (130, 8208)):
        plan = Plan(LATE_FORM, tile, 1, 20)
        assert has_late_gate(plan, rows, outputs, 600)
        check(rows, outputs, 600, plan, gate="silu", bias=rows == 130)


@pytest.mark.parametrize("gate", gemm.GATES)
def test_gates_of_large_values(gate: str) -> None:
    """Far out, where the exponential is infinite."""
    check(40, 4096, 512, Plan(FORMS[0], 64, 2, 66), gate=gate, scale=100.0)


@pytest.mark.parametrize("rows", [1, 3, 8, 17, 64, 65, 100, 128, 129, 192, 193, 250, 256])
@pytest.mark.parametrize(("outputs", "inputs"), [(6144, 4096), (1024, 2048), (12288, 2048), (1024, 3072)])
def test_what_is_planned(rows: int, outputs: int, inputs: int) -> None:
    if (plan := gemm.plan(rows, outputs, inputs)) is not None:
        check(rows, outputs, inputs, plan)
    if (plan := gemm.plan(rows, outputs, inputs, gated=True)) is not None:
        check(rows, outputs, inputs, plan, gate="silu")


def test_in_a_graph_and_always_the_same() -> None:
    """Kernels that start early must not overtake the one that writes their input."""
    x = torch.randn(64, 4096, device="cuda").bfloat16()
    weight = (torch.randn(4096, 4096, device="cuda") / 64).bfloat16()
    plan = Plan(FORMS[0], 144, 4, 66)

    def chain() -> Tensor:
        y = x
        for _ in range(8):
            y = gemm.linear(y, weight, None, plan)
        return y

    first = chain()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = chain()
    for _ in range(20):
        out.fill_(float("nan"))
        graph.replay()
        assert torch.equal(out, first)
