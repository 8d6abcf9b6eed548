"""Which rows of a step attend over its own keys alone, and which over pages: runs of neighbours that read alike.

    rows   | continued | new | new | new |     a new row has nothing in the cache but this step's tokens
    runs   |   pages   |    own keys     |

Array arithmetic on the host.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mysglang.srt.forward.worker_batch import Ints

WORTH_A_RUN = 2048
"""Number of new tokens from which a launch of its own costs less than computing the row together with others."""


@dataclass(frozen=True, slots=True)
class Run:
    """Rows that are neighbours and read alike: their own keys of this step, or pages."""

    rows: slice
    tokens: slice
    own: bool


def runs_of(extend_lens: Ints, seq_lens: Ints) -> tuple[Run, ...]:
    """Divides the rows of a prefill step into runs. A run of rows without cached tokens attends to its own keys alone,
    unless it is too short to be worth a launch.
    """
    new = extend_lens == seq_lens
    if new.all():
        return (Run(slice(0, len(new)), slice(0, int(extend_lens.sum())), own=True),)
    token_starts, borders = starts_of(extend_lens), np.flatnonzero(np.diff(new)) + 1
    runs: list[Run] = []
    for first, last in zip((0, *borders.tolist()), (*borders.tolist(), len(new)), strict=True):
        begin, end = int(token_starts[first]), int(token_starts[last])
        own = bool(new[first]) and end - begin >= WORTH_A_RUN
        if runs and not own and not runs[-1].own:
            first, begin = runs[-1].rows.start, runs[-1].tokens.start
            runs.pop()
        runs.append(Run(slice(first, last), slice(begin, end), own))
    return tuple(runs)


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
