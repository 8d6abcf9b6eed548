"""Role: which part of a request's life this scheduler leads, and what must be there before it may begin.

The seam for grammars that are compiled elsewhere (`constrained/grammar_queue.py`) and prefill-decode disaggregation.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from mysglang.srt.scheduling.request import Req


class Role(Protocol):
    """Stands between a request's arrival and the waiting queue."""

    def admit(self, req: Req) -> None:
        """A request arrived."""
        ...

    def look(self) -> Sequence[Any]:
        """What makes requests ready and is a matter of time: see `utils/outside.py`."""
        ...

    def learn(self, news: Any) -> None: ...

    def ready(self) -> Iterable[Req]:
        """Requests that may wait for memory from now on, and those that cannot (`finish` is set); each once.

        A matter of what was admitted and learned alone.
        """
        ...

    @property
    def expecting(self) -> bool:
        """Whether a request may become ready any moment, without a message that tells of it."""
        ...

    def abort(self, rid: str) -> Req | None:
        """Drop a request that is not ready yet; None if there is none of that name."""
        ...


class UnifiedRole:
    """Prefill and decode in one place: every request is ready on arrival."""

    def __init__(self) -> None:
        self._arrived: list[Req] = []

    def admit(self, req: Req) -> None:
        self._arrived.append(req)

    def look(self) -> Sequence[Any]:
        return ()

    def learn(self, news: Any) -> None:
        raise AssertionError("nobody waits for anything here")

    def ready(self) -> Iterable[Req]:
        arrived, self._arrived = self._arrived, []
        return arrived

    @property
    def expecting(self) -> bool:
        return False

    def abort(self, rid: str) -> Req | None:
        for req in self._arrived:
            if req.rid == rid:
                self._arrived.remove(req)
                return req
        return None
