"""A scheduler's links to other processes, for benchmarks that have it in their own."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Link:
    """Both ends of a link that keeps only the messages that were not read yet."""

    queue: deque[Any] = field(default_factory=deque)
    keeps: bool = True

    def send(self, message: Any) -> None:
        if self.keeps:
            self.queue.append(message)

    def poll(self, timeout_ms: int) -> bool:
        return bool(self.queue)

    def drain(self) -> list[Any]:
        found = list(self.queue)
        self.queue.clear()
        return found
