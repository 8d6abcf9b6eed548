"""The cuts of matrix products: that they can be launched, and that good shapes have one."""

import itertools
from dataclasses import replace

import pytest

from mysgl_kernel import gemm_rates
from mysgl_kernel.gemm_plan import (
    DEPTH,
    FORMS,
    MAX_CLUSTER,
    MAX_ROWS,
    MIN_STAGES,
    SHARED_BYTES,
    Device,
    Form,
    best_plan,
    candidates,
    has_late_gate,
    microseconds,
    takes_tile,
    whole_plan,
)
from mysgl_kernel.gemm_rates import rates_for

H200 = Device((132, 66, 39, 30, 22, 17, 15, 15))
ROWS = (1, 3, 8, 16, 63, 64, 65, 128, 129, 192, 193, 255, 256)
WEIGHTS = ((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336), (1024, 2048), (151936, 1024), (5120, 17408))


@pytest.mark.parametrize(("rows", "weight"), list(itertools.product(ROWS, WEIGHTS)))
def test_every_candidate_can_be_launched(rows: int, weight: tuple[int, int]) -> None:
    outputs, inputs = weight
    for plan in candidates(H200, rows, outputs, inputs):
        assert rows <= plan.form.rows and takes_tile(plan.form, plan.tile)
        assert plan.split <= -(-inputs // DEPTH) and plan.cluster <= MAX_CLUSTER
        fetched = min(64 * plan.form.groups, -(-rows // 8) * 8)
        assert MIN_STAGES * (plan.tile + fetched) * 2 * DEPTH < plan.shared_bytes <= SHARED_BYTES[0]
        if plan.split > 1:  # all partial sums of a cluster are in memory at once
            assert min(rows, 64 * plan.form.groups) * (plan.tile + 8) * 4 <= plan.shared_bytes
        assert microseconds(plan, rows, outputs, inputs) > outputs * inputs * 2 / 4.8e6


def test_another_device_is_cut_by_its_own_rates() -> None:
    """cuBLAS is used less where it is slower. Without measurements, the rates are an H200's."""
    assert rates_for("NVIDIA H200") is rates_for("NVIDIA H100 80GB HBM3") is gemm_rates.H200
    slow = replace(H200, rates=replace(gemm_rates.H200, cublas_start=1000.0))
    assert best_plan(H200, 129, 6144, 4096, False) is None
    assert best_plan(slow, 129, 6144, 4096, False) is not None


def test_each_number_of_rows_has_a_form() -> None:
    taken = [{rows for rows in range(1, MAX_ROWS + 1) if rows <= form.rows} for form in FORMS]
    assert set.union(*taken) == set(range(1, 257))
    assert Form(2, True).rows == 256


@pytest.mark.parametrize("rows", [4, 16, 64, 128])
def test_wide_weights_are_cut_here(rows: int) -> None:
    plan = best_plan(H200, rows, 28672, 4096, True)
    assert plan is not None and -(-28672 // plan.tile) * plan.split * plan.form.blocks > 100


@pytest.mark.parametrize("rows", [1024, 2048, 8192, 8200, 100_000])
def test_gates_of_many_rows_are_worked_out_here(rows: int) -> None:
    plan = best_plan(H200, rows, 28672, 4096, True)
    assert plan is not None and plan.split == 1 and plan.clusters == 66 and plan.row_group > 1
    assert has_late_gate(plan, rows, 28672, 4096)
    assert best_plan(H200, rows, 28672, 4096, False) is None
    assert best_plan(H200, rows, 28672, 256, True) is None


def test_gates_are_late_where_blocks_have_several_tiles() -> None:
    plan = best_plan(H200, 256, 28672, 4096, True)
    assert plan is not None and has_late_gate(plan, 256, 28672, 4096)
    assert not has_late_gate(plan, 256, plan.tile * plan.clusters, 4096)
    assert not has_late_gate(plan, 256, 28672, 256)
    few = best_plan(H200, 64, 28672, 4096, True)
    assert few is not None and not has_late_gate(few, 64, 28672, 4096)


def test_what_does_not_fit_is_left_to_others() -> None:
    assert best_plan(H200, 0, 4096, 4096, False) is None
    assert best_plan(H200, MAX_ROWS + 1, 4096, 4096, False) is None
    assert best_plan(H200, MAX_ROWS + 1, 28672, 4096, True) is None
    assert best_plan(H200, 64, 4095, 4096, False) is None
    assert best_plan(H200, 64, 4096 + 8, 4096, True) is None  # half of it is no multiple of 8
    assert best_plan(H200, 64, 4096, 4097, False) is None
    assert best_plan(H200, 64, 48, 64, False) is None  # too small to fill the device


@pytest.mark.parametrize(("rows", "weight"), list(itertools.product(ROWS, WEIGHTS)))
def test_sums_that_are_never_split_have_a_cut_of_their_own(rows: int, weight: tuple[int, int]) -> None:
    """With few rows, every weight has such a plan; with many rows, a weight that is not too wide has one."""
    plan = whole_plan(H200, rows, *weight)
    if rows <= 128 or weight[0] < 100_000:
        assert plan is not None and plan.split == 1 and rows <= plan.form.rows
    assert whole_plan(H200, 257, *weight) is None and whole_plan(H200, rows, weight[0], 1001) is None


def test_never_to_split_costs_little_where_weights_are_wide() -> None:
    """The model of `microseconds` gives a cost of at most a tenth over all products of a layer with 4096 values."""
    for rows in (1, 8, 64, 128):
        shapes = [(6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336)]
        plans = [(whole_plan(H200, rows, *shape), best_plan(H200, rows, *shape, False), shape) for shape in shapes]
        whole = sum(microseconds(plan, rows, *shape) for plan, _, shape in plans if plan is not None)
        best = sum(microseconds(plan or other, rows, *shape) for other, plan, shape in plans if plan or other)
        assert whole < 1.1 * best
