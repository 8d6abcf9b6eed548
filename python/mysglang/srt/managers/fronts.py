"""Fronts: one front among those of its server, as its TokenizerManager knows them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from mysglang.srt.managers.board import Board
from mysglang.srt.managers.open_names import NoOthers, OpenNames
from mysglang.srt.managers.request_metrics import NoMetrics, RequestMetrics
from mysglang.srt.messages.channels import Sender
from mysglang.srt.messages.codec import ToTokenizer


@dataclass(frozen=True, slots=True)
class Fronts:
    """The default is a server's only front."""

    index: int = 0
    """Of this one; 0 is the server's main process."""
    count: int = 1
    others: Sequence[Sender[ToTokenizer]] = ()
    board: Board = field(default_factory=Board.alone)
    names: OpenNames = field(default_factory=NoOthers)
    """Under which requests are open at other fronts."""
    metrics: RequestMetrics = field(default_factory=NoMetrics)
    """Hears of this front's requests, and tells of all fronts'."""

    def tell(self, message: ToTokenizer) -> None:
        """Tell all others."""
        for other in self.others:
            other.send(message)
