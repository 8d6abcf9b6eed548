"""Triton kernels compile for devices that need not be here, and fit into their shared memory.

The interpreter takes much that the compiler refuses: types, shapes, and how much memory a tile takes.
"""

import re
import subprocess
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton")

import torch
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.compiler import compile as compile_kernel

from fixtures.triton_compiled import compile_launches, end_after
from mysglang.srt.kernels.cuda import (
    attention,
    delta_by_channel,
    delta_rule,
    expanded_attention,
    experts_blocks,
    experts_plans,
    experts_sort,
    kvcache,
    latent_attention,
    select_experts,
    state_space,
    triangular,
)

SHARED_BYTES = {80: 163 << 10, 90: 227 << 10}
"""Shared memory of one program, by the device's compute capability."""

ROUTED = {"order": "*i32", "block_experts": "*i32", "blocks_used": "*i32", "pairs": "i32"}
PRODUCT = {
    "x": "*bf16",
    "weights": "*bf16",
    "biases": "*bf16",
    "out": "*bf16",
    **ROUTED,
    "x_stride": "i32",
    "blocks": "i32",
}
LOGITS = {
    "logits": "*bf16",
    "corrections": "*fp32",
    "ids": "*i32",
    "gates": "*fp32",
    "live_rows": "*i32",
    "row_stride": "i32",
    "experts": "i32",
    **dict.fromkeys(("scale", "least_sum", "no_gates"), "fp32"),
}


@pytest.fixture(autouse=True)
def no_machine_code() -> Iterator[None]:
    """LLVM's code knows how much memory a tile takes. Machine code is made once of each kernel, at the end."""
    with knobs.runtime.scope(), knobs.cache.scope():
        end_after("llir")
        yield


def compiled(
    kernel: Any, capability: int, signature: dict[str, str], *, aligned: Collection[str] = (), **constants: Any
) -> Any:
    """The kernel with these constants, the upper ones; the others are options of the launch. aligned: arguments that
    are divisible by 16.
    """
    options = {name: constants.pop(name) for name in ("num_warps", "num_stages", "maxnreg") if name in constants}
    types = {name: signature.get(name, "constexpr") for name in kernel.arg_names}
    divisible = {(at,): [["tt.divisibility", 16]] for at, name in enumerate(kernel.arg_names) if name in aligned}
    return compile_kernel(
        ASTSource(fn=kernel, signature=types, constexprs=constants, attrs=divisible),
        target=GPUTarget("cuda", capability, 32),
        options=options,
    )


def shared_bytes(kernel: Any, capability: int, signature: dict[str, str], **constants: Any) -> int:
    shared: int = compiled(kernel, capability, signature, **constants).metadata.shared
    return shared


def plans(capability: int) -> list[experts_blocks.Blocks]:
    """All plans of such a device with tiles that take shared memory."""
    tuned = [plan for rows in experts_plans.TUNED.values() for _, plan in rows]
    listed = {experts_plans.DIRECT, *(plan for _, plan in experts_plans.rules(capability >= 90)), *tuned}
    return [plan for plan in listed if isinstance(plan, experts_blocks.Blocks)]


@pytest.mark.parametrize(("capability", "kind", "size"), [(80, "bf16", 2), (90, "bf16", 2), (90, "fp32", 4)])
def test_products_of_experts(capability: int, kind: str, size: int) -> None:
    """Gate and up together, and down, of which only the first has an activation."""
    products = {(plan.tile, "silu", plan.sort) for plan in plans(capability)}
    products |= {(plan.down, "none", plan.sort) for plan in plans(capability)}
    tensors = {name: each.replace("bf16", kind) for name, each in PRODUCT.items()}
    for tile, activation, sort in products:
        copied, inputs = tile.copied and capability >= 90, tile.depth // size
        described = {"weights": f"tensordesc<{kind}[{tile.outputs}, {inputs}]>"} if copied else {}
        shared = shared_bytes(
            experts_blocks._product_kernel,
            capability,
            tensors | {"outputs": "i32", "inputs": "i32"} | described,
            SORTED=sort,
            TOP_K=1 if sort else 6,
            PLACES=1 if sort else 8,
            SHARED=6,
            KIND=activation,
            BIASED=True,
            WHOLE=sort,
            COPIED=copied,
            ACROSS=tile.across,
            HALVED=tile.halved and sort,
            ROWS=tile.rows,
            OUTPUTS=tile.outputs,
            INPUTS=inputs,
            OVERLAP=capability >= 90,
            num_warps=tile.warps,
            num_stages=tile.stages,
        )
        assert shared <= SHARED_BYTES[capability]


PAGES = {"keys": "*u8", "values": "*u8", "table": "*i32", "slots": "*i64", "seq_lens": "*i32"}
QUERIES = {"q": "*bf16", "q_stride": "i32", "table_stride": "i32", "window": "i32", "kv_heads": "i32"}
FACTORS = {"scale": "fp32", "cap": "fp32", "value_scale": "fp32"}
STORED = {"k_cache": "*u8", "v_cache": "*u8", "locations": "*i64", "k_inverse": "fp32", "v_inverse": "fp32"}


@pytest.mark.parametrize(("capability", "number", "several"), [(80, 1, False), (90, 2, True)])
def test_pages_of_eight_bit_numbers(capability: int, number: int, several: bool) -> None:
    """Also for devices without instructions for such numbers."""
    limit = SHARED_BYTES[capability]
    attended = PAGES | QUERIES | FACTORS
    shape = {"FORMAT": number, "GROUP": 4, "DIM": 64, "PAGE": 16, "REACH": 0, "CAP": False, "WIDTH": 64}
    decode = {"partial": "*fp32", "partial_lse": "*fp32", "extend_lens": "*i32", "token_starts": "*i64", "room": "i32"}
    sizes = {"QUERIES": 16, "KEYS": 64, "SPLITS": 16, "SEVERAL": several, "OVERLAP": capability >= 90}
    assert shared_bytes(attention._decode_kernel, capability, attended | decode, **shape, **sizes) <= limit
    stored = STORED | {"k": "*bf16", "v": "*bf16", "k_stride": "i32", "v_stride": "i32", "width": "i32"}
    store = {"FORMAT": number, "BLOCK": 512, "OVERLAP": capability >= 90}
    assert shared_bytes(kvcache._store_kernel, capability, stored, **store) <= limit


def test_what_stands_around_them() -> None:
    listed = {"ids": "*i32", "rows": "i32", **ROUTED}
    assert (
        shared_bytes(experts_sort._sort_kernel, 90, listed, EXPERTS=128, CHUNK=1024, MOST_ROWS=128, OVERLAP=True) < 4096
    )
    listed |= {"counts": "*i32", "sums": "*i32", "begins": "*i32", "pieces": "i32"}
    sizes = {"EXPERTS": 512, "CHUNK": 256, "OVERLAP": True, "num_warps": 4}
    assert shared_bytes(experts_sort._count_kernel, 90, listed, **sizes) < 16384
    assert shared_bytes(experts_sort._place_kernel, 90, listed, **sizes, COMPARED=32) < 4096
    summed = {"EXPERTS": 512, "COLUMNS": 16, "PIECES": 128, "MOST_ROWS": 128, "OVERLAP": True, "num_warps": 4}
    assert shared_bytes(experts_sort._begin_kernel, 90, listed, **summed) < 16384
    each = {"each": "*bf16", "gates": "*fp32", "out": "*bf16", "added": "*bf16", "x": "*bf16", "share": "*bf16"}
    each |= {"x_stride": "i32", "width": "i32"}
    kinds = {"ADDED": True, "SHARED": True, "OVERLAP": True}
    assert shared_bytes(experts_blocks._sum_kernel, 90, each, TOP_K=8, BLOCK=4096, **kinds, num_warps=8) < 4096
    sizes = {"TOP_K": 8, "PLACES": 8, "GROUPS": 8, "KEPT": 4, "GROUPS_WIDE": 8, "SIZE_WIDE": 32}
    kinds = {"SOFTMAX": False, "CORRECTED": True, "RENORMALIZE": True, "COUNTED": True, "OVERLAP": True}
    assert shared_bytes(select_experts._select_kernel, 90, LOGITS, **sizes, **kinds, num_warps=1) < 4096
    given = {"x": "*bf16", "weights": "*bf16", "biases": "*bf16", "arrived": "*i32", "x_stride": "i32", "inputs": "i32"}
    kinds |= {"BIASED": True, "INPUTS": 2048}
    assert shared_bytes(select_experts._route_kernel, 90, LOGITS | given, **sizes, **kinds, num_warps=1) < 4096


@pytest.mark.parametrize("capability", SHARED_BYTES)
@pytest.mark.parametrize("decode", [True, False], ids=["decode", "extend"])
def test_latent_attention(decode: bool, capability: int) -> None:
    """At the sizes of DeepSeek-V2 and V3."""
    halves, numbers = ("q", "rows"), ("q_stride", "table_stride", "heads")
    signature = {
        **dict.fromkeys(halves, "*bf16"),
        **dict.fromkeys(numbers, "i32"),
        "table": "*i32",
        "slots": "*i64",
        "seq_lens": "*i32",
        "extend_lens": "*i32",
        "token_starts": "*i64",
        "out": "*fp32" if decode else "*bf16",
        "out_lse": "*fp32",
        "scale": "fp32",
    }
    shared = shared_bytes(
        latent_attention._latent_kernel,
        capability,
        signature,
        DECODE=decode,
        LATENT=512,
        TURNED=64,
        PAGE=64,
        SPLITS=64 if decode else 1,
        QUERIES=latent_attention.DECODE_QUERIES if decode else latent_attention.EXTEND_QUERIES,
        LATENT_WIDTH=512,
        TURNED_WIDTH=64,
        KEYS=latent_attention.DECODE_KEYS if decode else latent_attention.KEYS,
        OVERLAP=decode and capability == 90,
        num_warps=4 if decode else 8,
        num_stages=2,
    )
    assert shared <= SHARED_BYTES[capability]


@pytest.mark.parametrize("capability", SHARED_BYTES)
def test_heads_made_of_latent_rows(capability: int) -> None:
    """At the sizes of DeepSeek-V2 and V3."""
    signature = {
        **dict.fromkeys(("q", "keys", "values", "turned", "out"), "*bf16"),
        **dict.fromkeys(("q_stride", "q_head_stride", "turned_stride", "total"), "i32"),
        "piece": "*i32",
        "out_sums": "*fp32",
        "out_lse": "*fp32",
        "scale": "fp32",
    }
    sizes = {"KEY": 128, "TURNED": 64, "VALUE": 128}
    wide = {f"{name}_WIDE": size for name, size in sizes.items()}
    tile = expanded_attention.tile_of(torch.bfloat16)
    kernel = expanded_attention._heads_attend_kernel
    used = shared_bytes(kernel, capability, signature, PARTS=expanded_attention.PARTS, **sizes, **wide, **tile)
    assert used <= SHARED_BYTES[capability]


@pytest.mark.parametrize("capability", SHARED_BYTES)
def test_prompts_through_states(capability: int) -> None:
    """At the sizes of Qwen3-Next, and of Falcon-H1, whose states have more rows. Products are not Hopper's asynchronous
    ones, with which such kernels were wrong.
    """
    tensors = dict.fromkeys(("q", "k", "written", "taken", "inside", "x", "b", "c", "out"), "*bf16")
    tensors |= dict.fromkeys(("factors", "matrix", "skip"), "*fp32") | dict.fromkeys(("cuts", "rows"), "*i32")
    signature = tensors | dict.fromkeys(("q_stride", "k_stride", "x_stride", "b_stride", "c_stride", "tokens"), "i32")
    delta = compiled(
        delta_rule._delta_runs_kernel,
        capability,
        signature,
        HEADS=32,
        SHARED=2,
        KEY_DIM=128,
        VALUE_DIM=128,
        KEYS=128,
        CHUNK=64,
        VALUES=state_space.NARROW,
        num_warps=state_space.warps(128),
        num_stages=1,
    )
    scan = compiled(
        state_space._scan_runs_kernel,
        capability,
        signature,
        HEADS=24,
        SHARED=24,
        STATE=256,
        DIM=64,
        ROWS=256,
        CHUNK=64,
        COLUMNS=state_space.NARROW,
        num_warps=state_space.warps(256),
        num_stages=1,
    )
    for made in (delta, scan):
        assert made.metadata.shared <= SHARED_BYTES[capability]
        assert "mma.sync" in made.asm["llir"] and "wgmma" not in made.asm["llir"]


BY_CHANNEL = {
    **dict.fromkeys(("q", "k", "v", "a", "b", "written", "taken", "inside", "asked", "kept", "out"), "*bf16"),
    **dict.fromkeys(("log_rate", "time_bias", "since", "lengths", "system", "matrix"), "*fp32"),
    **dict.fromkeys(("cuts", "chunks", "rows"), "*i32"),
    **dict.fromkeys(("q_stride", "k_stride", "v_stride", "a_stride", "b_stride", "tokens"), "i32"),
    "eps": "fp32",
}


@pytest.mark.parametrize("dim", [128, 256])
def test_prompts_of_decays_by_channel(dim: int, tmp_path: Path) -> None:
    """At the sizes of Kimi Linear and of larger heads: no asynchronous products, and nothing is spilled."""
    end_after("cubin")
    aligned = BY_CHANNEL.keys() - {"rows", "tokens", "eps"}
    sizes = {"HEADS": 32, "KEY_DIM": dim, "VALUE_DIM": dim, "CHUNK": 64}
    chunk = compiled(
        delta_by_channel._channel_chunk_kernel,
        90,
        BY_CHANNEL,
        aligned=aligned,
        **sizes,
        SHARED=1,
        PART=delta_by_channel.PART,
        STRONGEST=1.0,
        PRECISION=triangular.SOLVERS[torch.bfloat16],
        num_warps=delta_by_channel.CHUNK_WARPS,
        num_stages=1,
        maxnreg=delta_by_channel.CHUNK_REGISTERS,
    )
    runs = compiled(
        delta_by_channel._channel_runs_kernel,
        90,
        BY_CHANNEL,
        aligned=aligned,
        **sizes,
        KEYS=state_space.tile(dim),
        VALUES=state_space.NARROW,
        num_warps=state_space.warps(dim),
        num_stages=1,
    )
    for made in (chunk, runs):
        assert made.metadata.shared <= SHARED_BYTES[90]
        assert "mma.sync" in made.asm["ptx"] and "wgmma" not in made.asm["ptx"]
        # Other threads of the program read what was written before a barrier: not through the read-only cache.
        assert "ld.global.nc" not in made.asm["ptx"]
        binary = tmp_path / "kernel.cubin"
        binary.write_bytes(made.asm["cubin"])
        listed = [knobs.nvidia.cuobjdump.path, "-res-usage", str(binary)]
        assert " STACK:0 " in subprocess.run(listed, capture_output=True, text=True, check=True).stdout


LAUNCHES = """
from dataclasses import replace
from fixtures import attention_cases, late_attention
from fixtures.attention_cases import LATENT, PLAIN, STORIES
from fixtures.late_row_cases import random_case
from fixtures.op_cases import OPS
from fixtures.sampling_cases import random_draws
from fixtures.state_cases import STATE_OPS, STATES_AT
from mysglang.srt.kernels.cuda import invariant_gemm, late_rows, sampling
from mysglang.srt.kernels.cuda.attention_sinks import weigh_sinks
from mysglang.srt.kernels.cuda.kvcache import list_pages
from mysglang.srt.layers.attention.invariant_triton import InvariantTritonBackend
from mysglang.srt.layers.attention.triton_backend import TritonBackend
EXPERTS = "fused_experts with biases", "experts_and_shared of a row"
for name, (op, make) in OPS.items():
    op.implementations["cpu"] = op.implementations["cuda"]
    # Each shape of a mixture has the kernels of all plans.
    if op.name not in ("fused_experts", "experts_and_shared") or name in EXPERTS:
        op.choose("cpu")(*make("cpu", torch.bfloat16))
for name in ("delta_step", "delta_runs", "delta_runs by channel", "scan_step", "scan_runs", "selective_runs"):
    op, make = STATE_OPS[name]
    arguments = list(make("cpu", torch.bfloat16))
    arguments[STATES_AT] = arguments[STATES_AT].bfloat16()
    op.choose("cpu")(*arguments)
sampling.draw_tokens(*random_draws(3, rows=4, vocab=150, ties=False, k=True, p=True, m=True).arguments())
sampling.greedy_tokens(torch.randn(6, 1000))
numbers = torch.ones(2, dtype=torch.int32)
list_pages(numbers.view(2, 1), numbers.long(), numbers, 1, torch.ones(3, dtype=torch.int32), numbers, numbers)
some = torch.randn(3, 64).bfloat16()
weigh_sinks(some.view(3, 2, 32), torch.zeros(3, 2), torch.zeros(2))
invariant_gemm._with_tile(invariant_gemm.fixed_tile(32))(some, torch.randn(32, 64).bfloat16(), None)
late_rows.place_tokens(*random_case(0).arguments)
late_rows.uniforms_at(torch.zeros(3, dtype=torch.int64), torch.zeros(3, dtype=torch.int64))
attention_cases.assert_close = late_attention.assert_close = lambda *_: None  # nothing was computed
sinks = replace(attention_cases.SPECIALITIES["window and sinks"], head_dim=8)
# A product on tensor cores takes 16 values at least, and a block a power of two.
odd = replace(PLAIN, head_dim=80)
own = [(make, spec) for make in (TritonBackend, InvariantTritonBackend) for spec in (odd, sinks)]
for make, spec in (*own, (TritonBackend, LATENT)):
    attention_cases.check_story(make, STORIES["prompt then decode"], spec, page_size=4, dtype=torch.bfloat16)
late = {"q_len": 4, "bounds": (0,), "page_size": 4, "dtype": torch.bfloat16, "same_bits": False}
late_attention.check_late_lengths(TritonBackend, PLAIN, (5, 9), **late)
"""


@pytest.mark.parametrize(("capability", "upto", "later"), [(80, "llir", "ttir"), (90, "cubin", "ttgir")])
def test_as_they_are_launched(capability: int, upto: str, later: str) -> None:
    """All that our code launches; a kernel that it does not launch stands above."""
    source = Path(attention.__file__).parent.glob("*.py")
    known = {name for file in source for name in re.findall(r"^def (_\w+_kernel)\(", file.read_text(), re.MULTILINE)}
    assert known - compile_launches(LAUNCHES, capability, upto=upto, later=later) == set()
