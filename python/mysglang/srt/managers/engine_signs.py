"""EngineSigns: when each process of a server was heard of last."""

from __future__ import annotations

from dataclasses import dataclass, field
from operator import itemgetter

from mysglang.srt.messages.control import HeartBeat

TOGETHER_S = 2.0
"""Between the last signs of life of processes that hang at the same moment. Each gives one about once a second."""


@dataclass(slots=True)
class EngineSigns:
    """The newest signs of life from the other processes, in seconds of the AWAKE clock; 0 before the first."""

    last_heartbeat: float = 0.0
    heartbeat: HeartBeat | None = None
    last_detokenizer_beat: float = 0.0
    open_texts: int = 0
    """Requests of which the detokenizer held text then."""

    fronts: dict[int, float] = field(default_factory=dict)
    """When other fronts were heard of."""
    ranks: dict[int, float] = field(default_factory=dict)
    """When the schedulers of other ranks than the first were heard of."""

    def quietest(self) -> tuple[str, float]:
        """Returns the name of the process whose last sign of life is oldest, and the time of that sign."""
        return min(self._last_signs().items(), key=itemgetter(1))

    def silenced_together(self) -> list[str]:
        """Returns the processes whose last sign of life came within TOGETHER_S of the oldest one.

        A rank that hangs silences the ranks that wait for it, so which of them is the quietest is an accident.
        """
        signs = self._last_signs()
        first = min(signs.values())
        return [who for who, at in signs.items() if at <= first + TOGETHER_S]

    def _last_signs(self) -> dict[str, float]:
        """Returns the time of the last sign of life of each process, by its name."""
        return {
            "scheduler": self.last_heartbeat,
            **{f"scheduler of rank {rank}": at for rank, at in self.ranks.items()},
            "detokenizer": self.last_detokenizer_beat,
            **{f"front {front}": at for front, at in self.fronts.items()},
        }
