"""ServiceThread: a thread that its process cannot serve without. If it dies, the process ends, and logs why.

A thread that ends by an exception leaves those that wait for its work waiting for ever. So the edge of each process
says here what the death of such a thread means: a child tells its parent and ends, the main process ends the server.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

logger = logging.getLogger(__name__)

OnDeath = Callable[[str], None]
"""Called in the dying thread, with the name of the thread and the cause in one line."""

_mourners: list[OnDeath] = []


def on_thread_death(mourner: OnDeath) -> Callable[[], None]:
    """Sets a function that is called for every service thread of this process that dies. Returns a function that
    removes it.
    """
    _mourners.append(mourner)

    def forget() -> None:
        if mourner in _mourners:
            _mourners.remove(mourner)

    return forget


class ServiceThread(threading.Thread):
    """A thread that runs `work` until it returns, which is an orderly end; an exception is a death. Starts at once.

    Raises RuntimeError if the system has no room for a thread.
    """

    def __init__(self, name: str, work: Callable[[], None], on_death: OnDeath | None = None) -> None:
        """`on_death` is called when the thread dies, instead of the function that `on_thread_death` set."""
        super().__init__(name=name, daemon=True)
        self._work = work
        self._on_death = on_death
        self.start()

    def run(self) -> None:
        try:
            self._work()
        except BaseException as error:  # the edge of a thread: no caller above it would see the error
            lines = str(error).strip().splitlines()
            cause = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
            self._die(f"the thread {self.name!r} died: {cause}")

    def _die(self, cause: str) -> None:
        logger.critical("This process cannot continue: %s", cause, exc_info=True)
        for mourner in [self._on_death] if self._on_death is not None else list(_mourners):
            mourner(cause)
