"""AdmissionRule: may this request join the batch that is being formed? The seam for every per-batch limit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from mysglang.srt.scheduling.request import Req


class AdmissionRule(Protocol):
    """Asked before memory is taken. Must be a function of its arguments: all ranks decide alike."""

    def allows(self, req: Req, others: Sequence[Req]) -> bool:
        """Whether `req` may run beside `others`, which run or were admitted before it."""
        ...
