"""Matrix products of up to 256 rows with bfloat16 weights: `csrc/gemm/linear.cu`, which says how they are done.

Who calls chooses how a product is cut, by `plan` or otherwise.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from ctypes import c_float, c_int, c_int64, c_void_p
from functools import cache

import torch
from torch import Tensor

from mysgl_kernel.gemm_plan import FORMS, Device, Form, Plan, best_plan
from mysgl_kernel.library import Launch, Library, current_stream

GATES = {"silu": (1.0, 0.0), "gelu_tanh": (1.5957691216057308, 0.07135481282)}
"""(a, b) of a gate g * sigmoid(g * (a + b g^2))."""

_LIBRARIES = {
    form: Library(
        "gemm/linear.cu",
        flags=(f"-DGROUPS_OF_LIBRARY={form.groups}", f"-DPAIRS_OF_LIBRARY={'true' if form.pair else 'false'}"),
        archs=("90a",),
    )
    for form in FORMS
}


@cache
def available() -> bool:
    """Whether the present device runs them, compiling them now if that is still to do."""
    with ThreadPoolExecutor(len(_LIBRARIES)) as pool:
        return all(pool.map(Library.available, _LIBRARIES.values()))


def plan(rows: int, outputs: int, inputs: int, *, gated: bool = False) -> Plan | None:
    """How to cut x [rows, inputs] times weight [outputs, inputs]; None where cuBLAS is quicker, or nothing fits."""
    return best_plan(_device(), rows, outputs, inputs, gated)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None, plan: Plan, *, gate: str | None = None) -> Tensor:
    """x weight^T + bias, summed in float32: [rows, outputs] in bfloat16, dense.

    x: [rows, inputs], rows at any distance that is a multiple of 16 bytes. weight: [outputs, inputs], dense. With a
    gate (of GATES): the gate of the first half of that times the second, [rows, outputs / 2], both rounded to bfloat16
    before.
    """
    rows, inputs = x.shape
    outputs = len(weight)
    width = outputs if gate is None else outputs // 2
    assert x.dtype is weight.dtype is torch.bfloat16 and weight.shape[1] == inputs and rows <= plan.form.rows
    assert x.stride(1) == 1 and x.stride(0) % 8 == inputs % 8 == width % 8 == 0 and weight.is_contiguous()
    assert bias is None or (bias.dtype is torch.bfloat16 and bias.shape == (outputs,) and bias.is_contiguous())
    out = torch.empty(rows, width, dtype=x.dtype, device=x.device)
    _launch(plan.form)(
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
        current_stream(x),
    )
    return out


@cache
def _launch(form: Form) -> Launch:
    return _LIBRARIES[form].function(
        "mysgl_linear",
        *(c_void_p, c_void_p, c_void_p, c_void_p, c_int, c_int, c_int, c_int64),
        *(c_int, c_float, c_float, c_int, c_int, c_int, c_int, c_void_p),
    )


@cache
def _device() -> Device:
    """The present one, as the driver counts what fits at once."""
    counts = (c_int * 8)()
    _LIBRARIES[FORMS[0]].function("mysgl_linear_clusters", c_void_p)(counts)
    return Device(tuple(counts))
