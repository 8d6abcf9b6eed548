"""CacheWatch: answers the operator who looks at the prefix cache, and notes when its nodes were used.

The cache counts operations, so that all ranks evict alike, and reads no clock. People want seconds: with each heartbeat
the count is noted, with the time, for the last hour of work.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable

import msgspec

from mysglang.srt.managers.scheduler import Handlers
from mysglang.srt.mem_cache.prefix_cache import PrefixCache
from mysglang.srt.messages.channels import Sender
from mysglang.srt.messages.codec import ToTokenizer
from mysglang.srt.messages.control import ControlReqOutput, GetCacheTreeReq

MAX_NOTES = 3600


class CacheWatch:
    """Costs nothing but a note a second while nobody asks."""

    def __init__(
        self, cache: PrefixCache, to_tokenizer: Sender[ToTokenizer], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`clock`: seconds."""
        self._cache = cache
        self._to_tokenizer = to_tokenizer
        self._clock = clock
        self._notes: deque[tuple[int, float]] = deque([(0, clock())], MAX_NOTES)
        """(the cache's count of operations, when it had come so far), oldest first."""

    def handlers(self) -> Handlers:
        """The rows that this part contributes to the dispatch table."""
        return {GetCacheTreeReq: self.get_cache_tree}

    def on_beat(self) -> None:
        """Called about once a second, idle or busy."""
        if self._cache.clock != self._notes[-1][0]:
            self._notes.append((self._cache.clock, self._clock()))

    def get_cache_tree(self, message: GetCacheTreeReq) -> None:
        """A picture of the prefix cache, bounded in size and time, with seconds in place of counts of operations."""
        now, counts = self._clock(), [count for count, _ in self._notes]
        tree = msgspec.to_builtins(self._cache.view(message.preview_tokens))
        for node in tree["nodes"]:
            at = bisect_left(counts, node.pop("last_use"))
            # What was used since the last heartbeat was used just now.
            node["idle_s"] = round(now - self._notes[at][1], 1) if at < len(counts) else 0.0
        self._to_tokenizer.send(ControlReqOutput(id=message.id, success=True, details=tree))
