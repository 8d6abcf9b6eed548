"""SamplingTensors: how the next tokens of a step are chosen, on the device. Rows are those of the logits [S, vocab]."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from mysglang.srt.sampling.penalties import Penalties


@dataclass(frozen=True, slots=True)
class Edits:
    """logits[rows[i], ids[i]] += values[i]. int64, int64, float32; the pairs are distinct."""

    rows: Tensor
    ids: Tensor
    values: Tensor

    def apply(self, logits: Tensor) -> None:
        """Change float32 logits in place."""
        at = (self.rows, self.ids)
        logits[at] = logits[at] + self.values


@dataclass(frozen=True, slots=True)
class Bitmask:
    """Which tokens the rows [C] int64 may get: [C, words] int32, one bit for each token."""

    rows: Tensor
    bits: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """The random choice of rows; what only greedy rows need is absent. All [S]."""

    temperature: Tensor
    """float32; 1 for greedy rows."""
    greedy: Tensor
    """bool: rows that take the most likely token all the same."""
    top_k: Tensor | None
    """int32; None if no row has a top_k."""
    top_p: Tensor | None
    min_p: Tensor | None


@dataclass(frozen=True, slots=True)
class SamplingTensors:
    """What stays the same while the rows do."""

    drawing: Drawing | None
    """None: every row is greedy."""
    penalties: Penalties | None
    bias: Edits | None
