"""Triton kernels compile for devices that need not be here, and fit into their shared memory.

The interpreter takes much that the compiler refuses: types, shapes, and how much memory a tile takes.
"""

from typing import Any

import pytest

pytest.importorskip("triton")

from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.compiler import compile as compile_kernel

from mysglang.srt.kernels.cuda import experts, topk

SHARED_BYTES = {80: 163 << 10, 90: 227 << 10}
"""Of one program, by the device's compute capability."""

ROUTED = {"order": "*i32", "block_experts": "*i32", "blocks_used": "*i32", "pairs": "i32"}
PRODUCT = {"x": "*bf16", "weights": "*bf16", "out": "*bf16", **ROUTED, "x_stride": "i32", "blocks": "i32"}
TOPK = {"logits": "*bf16", "ids": "*i32", "gates": "*fp32", "row_stride": "i32", "experts": "i32"}


def shared_bytes(kernel: Any, capability: int, signature: dict[str, str], **constants: Any) -> int:
    """Of the kernel with these constants, the upper ones; the others are options of the launch."""
    options = {name: constants.pop(name) for name in ("num_warps", "num_stages") if name in constants}
    types = {name: signature.get(name, "constexpr") for name in kernel.arg_names}
    made = compile_kernel(
        ASTSource(fn=kernel, signature=types, constexprs=constants),
        target=GPUTarget("cuda", capability, 32),
        options=options,
    )
    shared: int = made.metadata.shared
    return shared


@pytest.mark.parametrize("capability", SHARED_BYTES)
@pytest.mark.parametrize("tile", [experts.FEW, experts.MORE, experts.MANY], ids=["few", "more", "many"])
def test_products_of_experts(tile: experts.Tile, capability: int) -> None:
    shared = shared_bytes(
        experts._product_kernel,
        capability,
        PRODUCT | {"outputs": "i32", "inputs": "i32"},
        SHARED=8,
        KIND="silu",
        ROWS=tile.rows,
        OUTPUTS=tile.outputs,
        INPUTS=tile.depth // 2,
        num_warps=tile.warps,
        num_stages=tile.stages,
    )
    assert shared <= SHARED_BYTES[capability]


def test_what_stands_around_them() -> None:
    listed = {"ids": "*i32", "rows": "i32", **ROUTED}
    assert shared_bytes(experts._sort_kernel, 90, listed, EXPERTS=128, CHUNK=1024, MOST_ROWS=128) < 4096
    each = {"each": "*bf16", "gates": "*fp32", "out": "*bf16", "width": "i32"}
    assert shared_bytes(experts._sum_kernel, 90, each, TOP_K=8, BLOCK=1024) < 4096
    sizes = {"RENORMALIZE": True, "TOP_K": 6, "PLACES": 8, "EXPERTS": 64}
    assert shared_bytes(topk._topk_softmax_kernel, 90, TOPK, **sizes, num_warps=1) < 4096
