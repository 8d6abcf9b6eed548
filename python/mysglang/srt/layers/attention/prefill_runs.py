"""runs_of: divides the rows of a step into runs of neighbours that read their keys in the same place.

    rows   | continued | a long chunk of a long prompt | new | new | new |     a new row has nothing in the cache but
    runs   |   pages   |            copies             |    own keys     |     this step's tokens

Array arithmetic on the host.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum, auto
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import torch

from mysglang.srt.forward.forward_batch import AttentionSpec
from mysglang.srt.forward.worker_batch import Ints

WORTH_A_RUN = 2048
"""Number of new tokens from which a launch of its own costs less than computing the row together with others."""

WORTH_COPYING = 8192
"""Number of keys from which a row of WORTH_A_RUN new tokens reads copies. Attention over neighbouring keys takes about
six sevenths of the time of attention over pages. A copy costs each key once, and what it saves grows with the queries.
"""


class Reads(IntEnum):
    """The place in which a run finds its keys."""

    PAGES = auto()
    OWN = auto()
    """The step's own keys, where the projection left them."""
    COPIES = auto()
    """Copies of a row's keys, which lie side by side. Such a run is one row."""


@dataclass(frozen=True, slots=True)
class Run:
    """Rows that are neighbours and read alike."""

    rows: slice
    tokens: slice
    reads: Reads


def runs_of(extend_lens: Ints, seq_lens: Ints, most_copied: int = 0) -> tuple[Run, ...]:
    """Divides the rows of a prefill step into runs. A run of rows without cached tokens attends to its own keys alone,
    unless it is too short to be worth a launch. most_copied: number of keys of a row that may be copied; 0 for none.
    """
    new = extend_lens == seq_lens
    if new.all():
        return (Run(slice(0, len(new)), slice(0, int(extend_lens.sum())), Reads.OWN),)
    copied = copied_rows(extend_lens, seq_lens, most_copied)
    token_starts = starts_of(extend_lens)
    runs: list[Run] = []
    for first, last in _alike(new, copied):
        begin, end = int(token_starts[first]), int(token_starts[last])
        reads = Reads.PAGES
        if copied[first]:
            reads = Reads.COPIES
        elif new[first] and end - begin >= WORTH_A_RUN:
            reads = Reads.OWN
        if runs and reads is runs[-1].reads is Reads.PAGES:
            first, begin = runs[-1].rows.start, runs[-1].tokens.start
            runs.pop()
        runs.append(Run(slice(first, last), slice(begin, end), reads))
    return tuple(runs)


def copied_rows(extend_lens: Ints, seq_lens: Ints, most_copied: int) -> npt.NDArray[np.bool_]:
    """Returns for each row whether its keys are worth a copy: [R]."""
    long = (extend_lens >= WORTH_A_RUN) & (seq_lens >= WORTH_COPYING) & (seq_lens <= most_copied)
    return long & (extend_lens < seq_lens)


def copied_bytes(spec: AttentionSpec, max_context: int) -> int:
    """Returns the number of bytes that copies of the longest row take, in a layer of 16-bit keys and values."""
    if spec.window is not None or max_context < WORTH_COPYING:
        return 0
    return 2 * 2 * spec.num_kv_heads * spec.head_dim * max_context


def hopper(device: torch.device | None = None) -> bool:
    """True if FlashAttention 3 runs on the device; without one, on the current one."""
    return torch.cuda.is_available() and torch.cuda.get_device_capability(device)[0] == 9


def _alike(new: npt.NDArray[np.bool_], copied: npt.NDArray[np.bool_]) -> Iterator[tuple[int, int]]:
    """Yields the first row of each run and the row after its last; each copied row is a run."""
    borders = np.flatnonzero(np.diff(new) | copied[1:] | copied[:-1]) + 1
    yield from pairwise((0, *borders.tolist(), len(new)))


def own_from_token(extend_lens: Ints, seq_lens: Ints) -> int:
    """Returns the index of the first token of the rows at the end of a step that attend over their own keys only.

    Rows may be empty. All tokens, if what is new at the end is not worth a launch.
    """
    starts, continued = starts_of(extend_lens), np.flatnonzero(extend_lens != seq_lens)
    first, total = int(starts[continued[-1] + 1]) if len(continued) else 0, int(starts[-1])
    return first if not first or total - first >= WORTH_A_RUN else total


def starts_of(lens: Ints) -> Ints:
    """Returns where each row begins if rows follow one another, and the end: [R] -> [R + 1] int32."""
    starts = np.zeros(len(lens) + 1, dtype=np.int32)
    np.cumsum(lens, out=starts[1:])
    return starts
