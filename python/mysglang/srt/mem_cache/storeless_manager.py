"""StorelessKvManager: rows of a model that keeps nothing of a prompt. A slot is all that a row takes.

Its verbs are the KvManager's, so that planning need not know: every prompt has room, no prefix is cached, and nothing
is written anywhere.
"""

from __future__ import annotations

import numpy as np

from mysglang.srt.forward.worker import SpaceShape
from mysglang.srt.forward.worker_batch import Ints, Slots
from mysglang.srt.mem_cache.chunk_cache import ChunkCache
from mysglang.srt.mem_cache.kv_manager import KvManager

ROOM = 2
"""Longest prompts for which each free slot counts as room: one prompt, and the same amount that planning reserves
beside it.
"""


class StorelessKvManager(KvManager):
    """A KvManager without pages, for models that keep nothing of a prompt. Nothing is ever evicted or lacking."""

    def __init__(self, num_slots: int, max_context: int) -> None:
        super().__init__((SpaceShape(0, 1),), num_slots, max_context, ChunkCache)
        self._max_context = max_context

    def extend(self, slot: int, new_len: int) -> bool:
        return True

    def extend_rows(self, slots: Slots, new_lens: Ints, lows: Ints | None = None) -> bool:
        return True

    def commit(self, slot: int, ids: Ints, *, more: bool = False) -> None:
        """Does nothing: there is nothing to share."""

    def release(self, slot: int, ids: Ints, urgency: int = 0, tail_end: int = 0) -> None:
        self.discard(slot)

    def longest_row(self, chunk: int | None, context: int) -> int:
        return context

    def available_tokens(self) -> int:
        return ROOM * self._max_context * self.free_slots

    @property
    def used_tokens(self) -> int:
        return 0

    def pages_short(self, slots: Slots, new_lens: Ints) -> int:
        return 0

    def locations(self, slots: Slots, starts: Ints, lens: Ints) -> Ints:
        return np.zeros(int(lens.sum()), dtype=np.int32)

    def next_locations(self, slots: Slots, positions: Ints) -> Ints:
        return np.zeros(len(slots), dtype=np.int32)
