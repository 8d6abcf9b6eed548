"""PenaltyTable: which tokens each penalised request has seen, counted on the device. Knows lines, no request.

One int32 for each (line, token): twice the times it was generated, plus one if the prompt holds it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

FIRST_LINES = 8

CHUNK_BYTES = 128 << 20
"""Of the counts that are worked with at once. What is made of them on the way takes five times as much, which for all
rows of a large step would be gigabytes.
"""


@dataclass(frozen=True, slots=True)
class Penalties:
    """Rows of the logits that are penalised, all [P]: int64 rows and lines, float32 strengths."""

    rows: Tensor
    lines: Tensor
    frequency: Tensor
    presence: Tensor
    repetition: Tensor

    def parts(self, size: int) -> Iterator[Penalties]:
        """Up to `size` of the rows at a time."""
        columns = (self.rows, self.lines, self.frequency, self.presence, self.repetition)
        for begin in range(0, len(self.rows), size):
            yield Penalties(*(column[begin : begin + size] for column in columns))


class PenaltyTable:
    """Grows with the highest line used. A line's content means nothing until `reset`."""

    def __init__(self, vocab_size: int, device: torch.device) -> None:
        self._counts = torch.zeros(0, vocab_size, dtype=torch.int32, device=device)

    def reserve(self, num_lines: int) -> None:
        """Make lines 0 … num_lines - 1 exist."""
        have = len(self._counts)
        if num_lines > have:
            grown = self._counts.new_zeros(max(num_lines, 2 * have, FIRST_LINES), self._counts.shape[1])
            grown[:have] = self._counts
            self._counts = grown

    def reset(self, lines: Tensor, prompt: tuple[Tensor, Tensor], output: tuple[Tensor, Tensor]) -> None:
        """Start the lines anew. `prompt` and `output` are (line, token) pairs, int64, repeats included."""
        # Assigning a plain number to indices would wait for the device.
        self._counts.index_fill_(0, lines, 0)
        self._counts.index_put_(prompt, torch.ones_like(prompt[0], dtype=torch.int32))
        self._counts.index_put_(output, torch.full_like(output[0], 2, dtype=torch.int32), accumulate=True)

    def apply(self, logits: Tensor, penalties: Penalties) -> None:
        """Penalise the rows of float32 logits [S, vocab] in place: the additive penalties, then repetition.

        Frequency takes its strength off for each time a token was generated, presence once if it was at all;
        repetition divides positive and multiplies negative logits of tokens in prompt or output (Keskar et al.,
        "CTRL", 2019).
        """
        for part in penalties.parts(max(1, CHUNK_BYTES // (4 * logits.shape[1]))):
            self._apply(logits, part)

    def _apply(self, logits: Tensor, penalties: Penalties) -> None:
        known = self._counts[penalties.lines]
        generated = known >> 1
        rows = logits[penalties.rows]
        rows -= penalties.frequency[:, None] * generated
        rows -= penalties.presence[:, None] * (generated > 0)
        strength = penalties.repetition[:, None]
        rows = torch.where(known > 0, torch.where(rows > 0, rows / strength, rows * strength), rows)
        logits[penalties.rows] = rows

    def count(self, lines: Tensor, tokens: Tensor) -> None:
        """Each line generated one token more; a token of -1 counts nothing. Lines are distinct."""
        at = (lines, tokens.clamp(min=0))
        self._counts[at] = self._counts[at] + 2 * (tokens >= 0).to(torch.int32)
