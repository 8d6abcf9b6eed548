"""Lane: the requests that decode together, and the one among the running whose prompt is half computed."""

from __future__ import annotations

import numpy as np

from mysglang.srt.forward.worker_batch import Slots
from mysglang.srt.scheduling.request import Req


class Lane:
    """`slots` in the order of joining: another array whenever somebody joined or left, the same while nobody did.

    A loop owns its lanes; no request is in two.
    """

    def __init__(self) -> None:
        self.slots: Slots = np.zeros(0, dtype=np.int64)
        self.chunked: Req | None = None
        """Its next chunk comes before any other prefill; it holds its slot and pages meanwhile."""

    def join(self, slots: Slots) -> None:
        """Requests whose prompt is computed start to decode."""
        self.slots = np.concatenate([self.slots, slots])

    def leave(self, slots: Slots) -> None:
        """Requests that ended or were retracted."""
        if self.chunked is not None and self.chunked.slot in slots:
            self.chunked = None
        if len(slots) == 1:
            self.slots = self.slots[self.slots != slots[0]]
        else:
            self.slots = self.slots[~np.isin(self.slots, slots)]

    @property
    def size(self) -> int:
        """Requests that hold a slot."""
        return len(self.slots) + (self.chunked is not None)
