"""Times the kernels of layers that keep a state, at the shapes of real models. Prints one JSON object as its last line.

step   one token of each row: convolution, recurrence, norm with the gate
runs   prompts: convolution, recurrence

Each time is that of one of many launches in a captured graph, on states that take turns so that none is in the cache.
The floor of a step is the state read and written once, at the bandwidth of a copy measured first; that of prompts is
their inputs read and their outputs written once, or their products. `old`: the op's reference in plain torch, run
eagerly. Results are compared with the reference in float32 before they are timed.

python benchmark/kernels/bench_linear_attention.py [--shapes qwen3-next granite-4] [--old]
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mysglang.srt.forward.forward_batch import StateRun, StateRuns
from mysglang.srt.kernels.delta_rule import delta_runs, delta_step
from mysglang.srt.kernels.gated_norm import gated_group_norm, gated_rms_norm
from mysglang.srt.kernels.op import Op
from mysglang.srt.kernels.selective_scan import selective_runs, selective_step
from mysglang.srt.kernels.short_convolution import conv_runs, conv_step
from mysglang.srt.kernels.state_space import scan_runs, scan_step
from mysglang.srt.kernels.states import CHUNK
from mysglang.srt.model_executor.state_tables import runs_over, tables_of

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from bench import microseconds
from ceilings import measure, milliseconds

ROWS = (1, 64, 256)
PROMPTS = ((1, 4096), (8, 4096))
STORE_BYTES = 2 << 30
"""Bytes of states, at least, that take turns."""
TOLERANCE = 1e-2

Call = tuple[Op[..., Any], tuple[Any, ...]]


def drawn(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.randn(*shape, device="cuda", dtype=dtype)


@dataclass(frozen=True, slots=True)
class DeltaShape:
    """One gated delta net."""

    key_heads: int
    value_heads: int
    dim: int
    by_channel: bool = False
    """True if each channel of a key has a decay of its own."""

    @property
    def channels(self) -> int:
        return (2 * self.key_heads + self.value_heads) * self.dim

    @property
    def outputs(self) -> int:
        return self.value_heads * self.dim

    @property
    def state(self) -> tuple[int, ...]:
        return self.value_heads, self.dim, self.dim

    @property
    def chunk_operations(self) -> int:
        """Operations of one chunk of all value heads: k k, q k, written, taken, inside; S read twice, written."""
        small, large = CHUNK**2 * self.dim, CHUNK * self.dim**2
        return 2 * self.value_heads * (5 * small + 3 * large)

    def call(self, tokens: int, states: Tensor, where: Tensor | StateRuns) -> Call:
        keys = self.key_heads * self.dim
        q, k, v = drawn(tokens, self.channels).split([keys, keys, self.outputs], dim=-1)
        heads = [each.unflatten(-1, (-1, self.dim)) for each in (q, k, v)]
        a, b = drawn(tokens, 2 * self.value_heads).chunk(2, dim=-1)
        bias = drawn(self.value_heads, dtype=torch.float32)
        if self.by_channel:
            a, bias = drawn(tokens, self.value_heads, self.dim), drawn(self.value_heads, self.dim, dtype=torch.float32)
        # Decays from nearly 1 to those that forget within a few tokens.
        rates = torch.linspace(-6, 2, self.value_heads, device="cuda")
        op = delta_runs if isinstance(where, StateRuns) else delta_step
        return op, (*heads, a, b, rates, bias, states, where)

    def norms(self, tokens: int) -> list[Call]:
        x = drawn(tokens, self.value_heads, self.dim)
        return [(gated_rms_norm, (x, drawn(self.dim), drawn(*x.shape), 1e-6))]


@dataclass(frozen=True, slots=True)
class MambaShape:
    """One Mamba-2 mixer."""

    heads: int
    dim: int
    groups: int
    state_size: int

    @property
    def channels(self) -> int:
        return self.heads * self.dim + 2 * self.groups * self.state_size

    @property
    def outputs(self) -> int:
        return self.heads * self.dim

    @property
    def state(self) -> tuple[int, ...]:
        return self.heads, self.state_size, self.dim

    @property
    def chunk_operations(self) -> int:
        """Operations of one chunk of all heads: c b of each group, inside, S read and written."""
        of_head = CHUNK**2 * self.dim + 2 * CHUNK * self.state_size * self.dim
        return 2 * (self.heads * of_head + self.groups * CHUNK**2 * self.state_size)

    def call(self, tokens: int, states: Tensor, where: Tensor | StateRuns) -> Call:
        rows = self.groups * self.state_size
        x, b, c = drawn(tokens, self.channels).split([self.outputs, rows, rows], dim=-1)
        heads = (x.unflatten(-1, (-1, self.dim)), *(each.unflatten(-1, (self.groups, -1)) for each in (b, c)))
        rates = torch.linspace(-6, 2, self.heads, device="cuda")
        numbers = (drawn(self.heads, dtype=torch.float32), rates, drawn(self.heads, dtype=torch.float32))
        op = scan_runs if isinstance(where, StateRuns) else scan_step
        return op, (*heads, drawn(tokens, self.heads), *numbers, states, where)

    def norms(self, tokens: int) -> list[Call]:
        x = drawn(tokens, self.outputs)
        return [(gated_group_norm, (x, drawn(self.outputs), drawn(*x.shape), 1e-6, self.groups))]


@dataclass(frozen=True, slots=True)
class SelectiveShape:
    """One Mamba mixer. A selective scan has no products of matrices."""

    channels: int
    state_size: int
    chunk_operations: int = 0

    @property
    def outputs(self) -> int:
        return self.channels

    @property
    def state(self) -> tuple[int, ...]:
        return self.channels, self.state_size

    def call(self, tokens: int, states: Tensor, where: Tensor | StateRuns) -> Call:
        x, time = drawn(tokens, 2 * self.channels).chunk(2, dim=-1)
        b, c = drawn(tokens, 2 * self.state_size).chunk(2, dim=-1)
        rates = torch.linspace(-6, 2, self.state_size, device="cuda").expand(self.channels, -1).contiguous()
        bias, skip = (drawn(self.channels, dtype=torch.float32) for _ in range(2))
        op = selective_runs if isinstance(where, StateRuns) else selective_step
        return op, (x, time, b, c, bias, rates, skip, states, where)

    def norms(self, tokens: int) -> list[Call]:
        return []


Shape = DeltaShape | MambaShape | SelectiveShape
SHAPES: dict[str, Shape] = {
    "falcon-mamba": SelectiveShape(channels=8192, state_size=16),
    "kimi-linear": DeltaShape(key_heads=32, value_heads=32, dim=128, by_channel=True),
    "qwen3-next": DeltaShape(key_heads=16, value_heads=32, dim=128),
    "granite-4": MambaShape(heads=128, dim=64, groups=1, state_size=128),
}


def runs_of(lens: Sequence[int]) -> StateRuns:
    """One run of each row."""
    ends = torch.tensor(lens).cumsum(0).tolist()
    spans = tuple(StateRun(end - n, end, row, None) for row, (n, end) in enumerate(zip(lens, ends, strict=True)))
    tables = tables_of(spans, torch.tensor(lens, dtype=torch.int32).numpy())
    return runs_over(spans, tables, {name: torch.from_numpy(table).cuda() for name, table in tables.items()})


def check(call: Call) -> float:
    """The error by norm of a result and of the states behind it."""
    op, arguments = call
    states = len(arguments) - 2
    mine = [each.clone() if i == states else each for i, each in enumerate(arguments)]
    exact = [each.float() if isinstance(each, Tensor) and each.is_floating_point() else each for each in arguments]
    exact[states] = arguments[states].clone().float()
    found, expected = op(*mine), op.reference(*exact)
    errors = [
        float((a.double() - b.double()).norm() / b.double().norm())
        for a, b in ((found, expected), (mine[states], exact[states]))
    ]
    assert max(errors) < TOLERANCE, f"{op.name}: off by {errors}"
    return max(errors)


def old(call: Call) -> float:
    """Microseconds of the reference."""
    op, arguments = call
    return milliseconds(lambda: op.reference(*arguments), repeats=3) * 1e3


def timed(name: str, size: str, calls: Sequence[Call], floor: float, *, with_old: bool, **more: Any) -> dict[str, Any]:
    """The calls take turns."""

    def launch(i: int) -> object:
        op, arguments = calls[i]
        return op(*arguments)

    us = microseconds(launch, len(calls))
    found = {
        "op": name,
        "size": size,
        "floor_us": round(floor, 2),
        "us": round(us, 1),
        "of_floor": round(floor / us, 2),
    }
    return found | ({"old_us": round(old(calls[0]))} if with_old else {}) | more


def steps(shape: Shape, rows: int, ceilings: dict[str, Any], with_old: bool, kept: torch.dtype) -> list[dict[str, Any]]:
    store = drawn(1, *shape.state, dtype=kept)
    turns = max(2, min(8, STORE_BYTES // (rows * store.nbytes)))
    store = drawn(turns * rows + 1, *shape.state, dtype=kept)
    order = torch.randperm(turns * rows, device="cuda").view(turns, rows)
    calls = [shape.call(rows, store, at) for at in order]
    error = check(shape.call(rows, drawn(rows + 1, *shape.state, dtype=torch.float32), torch.arange(rows).cuda()))
    copied = float(ceilings["copy_tb_s"]) * 1e6
    floor = 2 * rows * store[0].nbytes / copied
    found = [timed(calls[0][0].name, f"{rows}", calls, floor, with_old=with_old, error=f"{error:.0e}")]
    recent = drawn(turns * rows + 1, 3, shape.channels)
    taps = drawn(shape.channels, 4)
    conv: list[Call] = [(conv_step, (drawn(rows, shape.channels), taps, recent, at)) for at in order]
    # The window and the new inputs are read, the window and the result are written.
    found.append(timed("conv_step", f"{rows}", conv, 2 * 8 * rows * shape.channels / copied, with_old=with_old))
    for norm in shape.norms(rows):
        floor = 3 * 2 * rows * shape.outputs / copied
        found.append(timed(norm[0].name, f"{rows}", [norm] * 2, floor, with_old=with_old))
    return found


def prompts(
    shape: Shape, rows: int, length: int, ceilings: dict[str, Any], with_old: bool, kept: torch.dtype
) -> list[dict[str, Any]]:
    tokens, runs = rows * length, runs_of([length] * rows)
    states = drawn(rows + 1, *shape.state, dtype=kept)
    call = shape.call(tokens, states, runs)
    some = runs_of([300, 64, 1, 200])
    error = check(shape.call(565, drawn(5, *shape.state, dtype=torch.float32), some))
    copied, rate = float(ceilings["copy_tb_s"]) * 1e6, float(ceilings["gemm_bf16_tflop_s"]) * 1e6
    moved = 2 * tokens * (shape.channels + shape.outputs) + 2 * rows * states[0].nbytes
    floor = max(moved / copied, tokens / CHUNK * shape.chunk_operations / rate)
    size = f"{rows}x{length}"
    found = [timed(call[0].name, size, [call], floor, with_old=with_old, error=f"{error:.0e}")]
    recent = drawn(rows + 1, 3, shape.channels)
    conv: Call = (conv_runs, (drawn(tokens, shape.channels), drawn(shape.channels, 4), recent, runs))
    found.append(timed("conv_runs", size, [conv], 2 * 2 * tokens * shape.channels / copied, with_old=with_old))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="+", default=list(SHAPES), choices=list(SHAPES))
    parser.add_argument("--rows", nargs="*", type=int, default=ROWS)
    parser.add_argument("--old", action="store_true", help="time the references too")
    parser.add_argument("--states", choices=["float32", "bfloat16"], default="float32", help="how they are kept")
    arguments = parser.parse_args()
    kept = getattr(torch, arguments.states)
    ceilings = measure()
    results: list[dict[str, Any]] = []
    work: list[tuple[str, Callable[[], list[dict[str, Any]]]]] = []
    for name in arguments.shapes:
        shape = SHAPES[name]
        for rows in arguments.rows:
            work.append((name, lambda s=shape, r=rows: steps(s, r, ceilings, arguments.old, kept)))
        for rows, length in PROMPTS:
            work.append((name, lambda s=shape, r=rows, n=length: prompts(s, r, n, ceilings, arguments.old, kept)))
    with torch.inference_mode():
        for name, measured in work:
            for found in measured():
                print(name, *found.values(), flush=True)
                results.append({"shape": name, **found})
    print(json.dumps({"ceilings": ceilings, "linear_attention": results}))


if __name__ == "__main__":
    main()
