"""ScheduleBatch: one step in the scheduler's own terms: which slots, how many tokens of each, and which rows yield a
token.
"""

from __future__ import annotations

import msgspec
import numpy as np
from msgspec.structs import replace

from mysglang.srt.forward.outputs import BatchResult
from mysglang.srt.forward.worker_batch import (
    Bools,
    DraftColumns,
    ForwardMode,
    HiddenColumns,
    Ints,
    LogprobColumns,
    Longs,
    Slots,
)


class Asked(msgspec.Struct, frozen=True, eq=False):
    """Outputs of a step that are wanted in addition to its tokens."""

    logprobs: LogprobColumns | None = None
    hidden: HiddenColumns | None = None
    drafts: DraftColumns | None = None
    """Drafts that the host proposes."""


class ScheduleBatch(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """The rows of one step. A row is (slot, life): its result counts only while the slot still has that life."""

    mode: ForwardMode
    slots: Slots
    lives: Longs
    starts: Ints
    """Tokens in the KV cache before this step; ON_DEVICE where only the device knows."""
    lens: Ints
    """New tokens, drafts included."""
    high_lens: Ints
    """Tokens in the KV cache after this step, at most; so many where `starts` is known."""
    late: Bools | None = None
    """Which rows start where only the device knows; None: there are no such rows."""
    yields: Bools
    """True for rows whose next token will be sampled."""
    new_tokens: int
    """Sum of `lens`."""
    cached_tokens: int = 0
    """Tokens that the rows which start in this step found in the prefix cache."""
    new_seqs: int = 0
    """Rows that start in this step."""
    decoding: int = 0
    """Number of rows at the end of an EXTEND step that decode beside the prompts."""

    def __len__(self) -> int:
        return len(self.slots)

    @property
    def num_prompts(self) -> int:
        """Number of rows, the first ones, of which prompt tokens are computed."""
        return 0 if self.mode.is_decode else len(self.slots) - self.decoding

    @property
    def prompt_tokens(self) -> int:
        """Number of new prompt tokens in this batch."""
        return int(self.lens[: self.num_prompts].sum())

    def beside(self, decode: ScheduleBatch) -> ScheduleBatch:
        """Returns this step of prompts together with a decode step of other rows."""
        return replace(
            self,
            slots=np.concatenate([self.slots, decode.slots]),
            lives=np.concatenate([self.lives, decode.lives]),
            starts=np.concatenate([self.starts, decode.starts]),
            lens=np.concatenate([self.lens, decode.lens]),
            high_lens=np.concatenate([self.high_lens, decode.high_lens]),
            late=None if decode.late is None else np.concatenate([np.zeros(len(self), np.bool_), decode.late]),
            yields=np.concatenate([self.yields, decode.yields]),
            new_tokens=self.new_tokens + decode.new_tokens,
            decoding=len(decode),
        )


class Launched:
    """A step that the worker has taken."""

    __slots__ = ("asked", "at", "batch", "result")

    def __init__(self, batch: ScheduleBatch, asked: Asked, result: BatchResult, at: float) -> None:
        """`at`: time of the launch, in seconds."""
        self.batch = batch
        self.asked = asked
        self.result = result
        self.at = at
