"""States that layers keep for each row, and the spans of new tokens that go through them.

States lie in stores of N entries; `at` or `runs` name the entry of each row. The last entry belongs to rows without a
state: rows that name it may share it, and what they get is unspecified.

    short_convolution.py, delta_rule.py, state_space.py, selective_scan.py   ops: one token of many rows (`_step`), or
                                                                             many tokens of some rows (`_runs`)

All is computed in float32; kernels for CUDA multiply tiles in the dtype of the inputs and add in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol

import torch.nn.functional as F
from torch import Tensor

from mysglang.srt.kernels.op import Op

CHUNK = 64
"""Tokens that are computed together: chunks begin at the first token of a call."""


class Runs(Protocol):
    """Consecutive new tokens of some rows, which lie among the tokens of a step."""

    @property
    def spans(self) -> Iterable[tuple[int, int, int, int | None]]:
        """First token, the one after the last, the entry of the row's state before and after, and the entry that gets
        a copy of the state after these tokens, or None. Spans of one row follow one another.
        """
        ...

    @property
    def cuts(self) -> Tensor:
        """[S, 5] int32, the spans on the device: first token, the one after the last, the row's first token, the entry
        of its state, and the entry that gets a copy of the state, or -1.
        """
        ...

    @property
    def rows(self) -> Tensor:
        """[P + 1] int32: the first span of each row, and the number of spans."""
        ...

    @property
    def turns(self) -> Tensor:
        """[S, 5] int32, `cuts` in another order: the first spans of all rows, the second spans, and so on. A table for
        captured steps has spans without tokens behind each of these groups.
        """
        ...

    @property
    def turn_sizes(self) -> Sequence[int]:
        """How many rows have a first span, a second one, and so on, and in `turns` those without tokens with them."""
        ...

    @property
    def numbers(self) -> Tensor:
        """[S + 1] int32: 0, 1, 2, …"""
        ...

    @property
    def chunks(self) -> Tensor:
        """[C, 2] int32: the first token of each CHUNK tokens of a span, the last of which may be shorter; and the
        number of the span. Chunks that begin behind their span have no tokens.
        """
        ...


def turns_of(runs: Runs) -> Iterator[slice]:
    """Yields the places in `turns` of all first spans, of all second ones, and so on: one launch for each."""
    at = 0
    for rows in runs.turn_sizes:
        yield slice(at, at + rows)
        at += rows


def take_runs(runs: Runs, out: Tensor, state: Tensor, compute: Callable[[slice, int], Tensor]) -> Tensor:
    """Fills `out` at the tokens of each span with what `compute` makes of them from the state at an entry, which it
    updates, and copies states out. Returns `out`; other tokens are left as they are.
    """
    for start, end, entry, checkpoint in runs.spans:
        out[start:end] = compute(slice(start, end), entry)
        if checkpoint is not None:
            state[checkpoint] = state[entry]
    return out


def in_chunks(x: Tensor, rest: int) -> Tensor:
    """Cuts tokens into chunks: [T, heads or groups, D] -> [chunks, heads or groups, CHUNK, D], with `rest` zeros at the
    end.
    """
    padded = F.pad(x, (0, 0, 0, 0, 0, rest))
    return padded.reshape(-1, CHUNK, *x.shape[1:]).transpose(1, 2).contiguous()


def _copy_states(sources: Tensor, targets: Tensor, buffers: Sequence[Tensor]) -> None:
    """Copies states: in each buffer, [entries, …] dense, entry targets[i] becomes what sources[i] was before the call.
    A negative source is a state of zeros.

    sources, targets: [N] int64; the targets are distinct.
    """
    empty = sources < 0
    sources = sources.clamp(min=0)
    for buffer in buffers:
        states = buffer.index_select(0, sources)
        # Filled instead of multiplied by 0, because a free state may contain NaN. Indexing by `empty` would wait for
        # the device.
        states.masked_fill_(empty.view(-1, *[1] * (buffer.dim() - 1)), 0)
        buffer.index_copy_(0, targets, states)


copy_states = Op("copy_states", reference=_copy_states, cuda="mysglang.srt.kernels.cuda.states:copy_states")
