"""Matrix products with bfloat16 weights, of up to 256 rows, and gated ones of more rows: `csrc/gemm/linear.cuh`, which
describes the algorithm.

The caller chooses how a product is cut, by `plan` or otherwise.
"""

from __future__ import annotations

from ctypes import c_float, c_int, c_int64, c_void_p
from functools import cache

import torch
from torch import Tensor

from mysgl_kernel import gemm_plan
from mysgl_kernel.compiled import Launch
from mysgl_kernel.gemm_plan import FORMS, LATE_FORM, WIDE_TILE, Device, Form, Plan, best_plan, has_late_gate
from mysgl_kernel.gemm_rates import rates_for
from mysgl_kernel.library import Library, current_stream

GATES = {"silu": (1.0, 0.0), "gelu_tanh": (1.5957691216057308, 0.07135481282)}
"""(a, b) of a gate g * sigmoid(g * (a + b g^2))."""


def _library(form: Form, *, wide: bool, late: bool = False) -> Library:
    """Returns the kernels of one form, for wide tiles or for the others: parts are compiled side by side."""
    says = {True: "true", False: "false"}
    flags = (
        f"-DGROUPS_OF_LIBRARY={form.groups}",
        f"-DPAIRS_OF_LIBRARY={says[form.pair]}",
        f"-DWIDE_OF_LIBRARY={says[wide]}",
        f"-DLATE_OF_LIBRARY={says[late]}",
    )
    return Library("gemm/linear.cu", flags=flags, archs=("90a",), traits={"dtype": torch.bfloat16})


_LIBRARIES = {(form, wide): _library(form, wide=wide) for form in FORMS for wide in (True, False)}
_LATE_LIBRARY = _library(LATE_FORM, wide=True, late=True)


def available() -> bool:
    """True if the present device runs them. Compiles the first part if necessary."""
    return _LIBRARIES[FORMS[0], False].available()


def plan(rows: int, outputs: int, inputs: int, *, gated: bool = False) -> Plan | None:
    """Returns how to cut x [rows, inputs] times weight [outputs, inputs]; None where cuBLAS is quicker, or nothing
    fits.

    Waits for the part that the plan needs, if that is being compiled; None if it cannot be had.
    """
    found = best_plan(_device(), rows, outputs, inputs, gated)
    if found is None:
        return None
    late = gated and has_late_gate(found, rows, outputs, inputs)
    return found if _library_for(found, late=late).available() else None


def whole_plan(rows: int, outputs: int, inputs: int) -> Plan | None:
    """Returns how to cut the same so that no sum depends on how many rows there are; None where nothing fits."""
    found = gemm_plan.whole_plan(_device(), rows, outputs, inputs)
    return found if found is not None and _library_for(found, late=False).available() else None


def linear(x: Tensor, weight: Tensor, bias: Tensor | None, plan: Plan, *, gate: str | None = None) -> Tensor:
    """x weight^T + bias, summed in float32: [rows, outputs] in bfloat16, dense.

    x: [rows, inputs], rows at any distance that is a multiple of 16 bytes. weight: [outputs, inputs], dense. With a
    gate (of GATES): the gate of the first half of that times the second, [rows, outputs / 2], both rounded to bfloat16
    before.
    """
    rows, inputs = x.shape
    outputs = len(weight)
    width = outputs if gate is None else outputs // 2
    assert x.dtype is weight.dtype is torch.bfloat16 and weight.shape[1] == inputs
    late = gate is not None and has_late_gate(plan, rows, outputs, inputs)
    assert late or rows <= plan.form.rows
    assert x.stride(1) == 1 and x.stride(0) % 8 == inputs % 8 == width % 8 == 0 and weight.is_contiguous()
    assert bias is None or (bias.dtype is torch.bfloat16 and bias.shape == (outputs,) and bias.is_contiguous())
    out = torch.empty(rows, width, dtype=x.dtype, device=x.device)
    _launch(_library_for(plan, late=late))(
        out.data_ptr(),
        x.data_ptr(),
        weight.data_ptr(),
        None if bias is None else bias.data_ptr(),
        rows,
        outputs,
        inputs,
        x.stride(0),
        gate is not None,
        *GATES[gate or "silu"],
        plan.tile,
        plan.split,
        plan.clusters,
        plan.shared_bytes,
        plan.row_group,
        current_stream(x),
    )
    return out


def _library_for(plan: Plan, *, late: bool) -> Library:
    return _LATE_LIBRARY if late else _LIBRARIES[plan.form, plan.tile >= WIDE_TILE]


@cache
def _launch(library: Library) -> Launch:
    return library.function(
        "mysgl_linear",
        *(c_void_p, c_void_p, c_void_p, c_void_p, c_int, c_int, c_int, c_int64),
        *(c_int, c_float, c_float, c_int, c_int, c_int, c_int, c_int, c_void_p),
    )


@cache
def _device() -> Device:
    """Returns the present one, as the driver counts what fits at once."""
    counts = (c_int * 8)()
    _LIBRARIES[FORMS[0], False].function("mysgl_linear_clusters", c_void_p)(counts)
    return Device(tuple(counts), rates_for(torch.cuda.get_device_name()))
