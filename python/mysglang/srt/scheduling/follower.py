"""What a rank that follows has in the place of what only the first rank does: hear requests, make masks, tell answers.

Such a rank plans and computes every step as the first rank does, from the messages that the first rank passes on.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mysglang.srt.forward.worker_batch import DraftColumns, Slots, TokenMask, mask_words
from mysglang.srt.messages.channels import Sender
from mysglang.srt.messages.codec import ToDetokenizer, ToScheduler
from mysglang.srt.scheduling.batch import ScheduleBatch
from mysglang.srt.scheduling.request import Req


class NoRequests:
    """A Receiver at which nothing arrives. It never waits: this rank waits for the first one's next turn instead."""

    def poll(self, timeout_ms: int) -> bool:
        return False

    def drain(self) -> list[ToScheduler]:
        return []


class NoMasks:
    """Masks of no row. The first rank chooses the tokens under its masks."""

    def __init__(self, vocab_size: int) -> None:
        self._none = TokenMask(np.zeros(0, dtype=np.int32), np.zeros((0, mask_words(vocab_size)), dtype=np.int32), ())

    def of(self, batch: ScheduleBatch, drafts: DraftColumns | None = None) -> TokenMask:
        return self._none


class SilentStreamer:
    """Tells nobody. The first rank streams the answers."""

    def __init__(self) -> None:
        self.to_detokenizer: Sender[ToDetokenizer] = NoListener()

    def send(self, running: Slots, ended: Sequence[Req]) -> None:
        pass


class NoListener:
    """A Sender into nothing."""

    def send(self, message: ToDetokenizer) -> None:
        pass
