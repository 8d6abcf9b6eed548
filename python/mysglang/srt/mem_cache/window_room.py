"""WindowRoom: whether a prompt fits into the pools of layers with a window. NO_WINDOWS: there are none."""

from __future__ import annotations

from typing import Protocol

from mysglang.srt.mem_cache.prefix_match import PrefixMatch


class WindowRoom(Protocol):
    """While one step is planned. What is planned for it is taken from the pools at once."""

    def lacking(self, match: PrefixMatch, end: int, to_come: int) -> float:
        """Tokens that would have to come free for a row with this match to have its tokens before `end` computed in a
        step, and `to_come` more later; 0 or less: none.
        """
        ...

    def admit(self, end: int, to_come: int) -> None:
        """Such a row was admitted: set aside what it may still need."""
        ...


class NoWindows:
    """The null object."""

    def lacking(self, match: PrefixMatch, end: int, to_come: int) -> float:
        return 0.0

    def admit(self, end: int, to_come: int) -> None:
        pass


NO_WINDOWS = NoWindows()
