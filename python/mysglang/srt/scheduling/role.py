"""Role: which part of a request's life this scheduler leads. The seam for prefill-decode disaggregation."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from mysglang.srt.scheduling.request import Req


class Role(Protocol):
    """Stands between a request's arrival and the waiting queue."""

    def admit(self, req: Req) -> None:
        """A request arrived."""
        ...

    def ready(self) -> Iterable[Req]:
        """Requests that may wait for memory from now on; each is given once."""
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

    def ready(self) -> Iterable[Req]:
        arrived, self._arrived = self._arrived, []
        return arrived

    def abort(self, rid: str) -> Req | None:
        for req in self._arrived:
            if req.rid == rid:
                self._arrived.remove(req)
                return req
        return None
