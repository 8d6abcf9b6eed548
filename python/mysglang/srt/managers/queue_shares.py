"""Queue shares: how much of the room for open answers one tenant may take, so that there is some for who comes next."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from mysglang.srt.managers.caller import CALLER
from mysglang.srt.managers.request_state import ReqState
from mysglang.srt.managers.unfold import Unfolded
from mysglang.srt.messages.generate import GenerateReqInput
from mysglang.srt.messages.requests import ShareKey


class QueueShares(Protocol):
    """Tells tenants apart and what each may have."""

    def tenant(self, obj: GenerateReqInput, unfolded: Unfolded) -> str:
        """Whose request this is."""
        ...

    def has_room(self, tenant: str, count: int, opened: Iterable[ReqState], free: int) -> bool:
        """Whether `tenant` may open `count` answers more beside those in `opened`, while `free` places are left."""
        ...


class OneForAll:
    """First come, first served, as long as there is room."""

    def tenant(self, obj: GenerateReqInput, unfolded: Unfolded) -> str:
        return ""

    def has_room(self, tenant: str, count: int, opened: Iterable[ReqState], free: int) -> bool:
        return True


class EqualShares:
    """Nobody has more than what is left for all, but as many as can run at once: one alone takes half of the room.

    (Dynamic thresholds; Choudhury and Hahne, 1998.) What a tenant has open is counted at each front for itself.
    """

    def __init__(self, key: ShareKey, max_running: int) -> None:
        self._key = key
        self._max_running = max_running

    def tenant(self, obj: GenerateReqInput, unfolded: Unfolded) -> str:
        caller = CALLER.get()
        match self._key:
            case "api_key":
                return caller.api_key
            case "extra_key":
                return unfolded.extra_key
            case "routing_key":
                return caller.routing_key if obj.routing_key is None else obj.routing_key

    def has_room(self, tenant: str, count: int, opened: Iterable[ReqState], free: int) -> bool:
        mine = sum(state.tenant == tenant for state in opened)
        return mine + count <= max(free, self._max_running)
