"""Joining: a trainer's weight-update group that is being formed, until all members have joined or it is given up.

A thread waits for the members. Waiting for a listener at the group's address can be stopped at any time. Waiting for
the other members is torch's own call, and continues in the thread until it returns.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future

from mysglang.srt.distributed.update_group import UpdateGroup
from mysglang.srt.errors import Conflict, InvalidRequest

KNOCK_S = 0.5
"""Seconds between two attempts to connect to the group's address."""
ANSWER_S = 5.0
"""How long a try may take."""


class Joining:
    """A group of processes that is being joined. `done` is set when the group exists, or with the error:
    InvalidRequest, Conflict.
    """

    def __init__(
        self, name: str, address: str, port: int, make: Callable[[float], UpdateGroup], timeout_s: float
    ) -> None:
        """`make` joins the group within so many seconds; it is called in the thread that waits."""
        self.done: Future[None] = Future()
        self.group: UpdateGroup | None = None
        """Once it is there."""
        self._name = name
        self._address = (address, port)
        self._make = make
        self._deadline = time.monotonic() + timeout_s
        self._lock = threading.Lock()
        self._given_up = threading.Event()
        # A daemon thread: waiting for members that never come must not keep the process from ending.
        thread = threading.Thread(target=self._join, name="join update group", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            message = f"The group {name!r} cannot be joined for the moment: {error}; try again."
            self.done.set_exception(Conflict(message))

    def give_up(self) -> None:
        """Gives the group up: `done` is set with an error now. If the group forms afterwards, it is left again."""
        with self._lock:
            self._given_up.set()
            if not self.done.done():
                message = f"group_name: the group {self._name!r} was given up before its members had come."
                self.done.set_exception(Conflict(message, param="group_name"))

    def _join(self) -> None:
        try:
            self._wait_for_address()
            if self._given_up.is_set():
                return
            group = self._make(max(self._deadline - time.monotonic(), 1.0))
        except Exception as error:  # the edge of a thread: any error must reach the caller that waits for `done`
            with self._lock:
                if not self.done.done():
                    message = f"The group {self._name!r} did not come together: {error}"
                    self.done.set_exception(InvalidRequest(message))
            return
        with self._lock:
            if self._given_up.is_set():
                group.leave()
                return
            self.group = group
            self.done.set_result(None)

    def _wait_for_address(self) -> None:
        """Wait until a process listens at the address. Raises OSError after the time limit."""
        while not self._given_up.is_set():
            left = self._deadline - time.monotonic()
            try:
                with socket.create_connection(self._address, timeout=max(min(left, ANSWER_S), KNOCK_S)):
                    return
            except OSError:
                if left <= 0:
                    raise
            self._given_up.wait(KNOCK_S)
