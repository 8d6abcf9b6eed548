"""The reference for a decode step: requests as objects, and loops over them, as a scheduler is written at first.

It does the least that a step must do for requests that all decode: look for messages, make the columns that a worker
is handed, write down each token, find the ended requests, and those that must be sent. No memory is planned, nothing is
evicted, no request is admitted, and no answer is sent: a lower bound of what such a scheduler takes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from mysglang.srt.messages.channels import Pull
from mysglang.srt.messages.requests import scheduler_codec

EOS = 2


@dataclass(slots=True)
class PlainRequest:
    """One request that decodes."""

    rid: str
    row: int
    ids: list[int]
    final_len: int
    pages: list[int] = field(default_factory=list)
    temperature: float = 0.0
    top_k: int = -1
    top_p: float = 1.0
    sent: int = 0
    finished: bool = False


class PlainLoop:
    """Turns as often as asked; every request has the same number of tokens to come."""

    def __init__(self, folder: Path, rows: int, prompt: int, steps: int) -> None:
        self._requests = Pull(f"ipc://{folder}/plain", scheduler_codec())
        self.running = [
            PlainRequest(f"{row:032x}", row, list(range(3, 3 + prompt)), prompt + steps, list(range(prompt)))
            for row in range(rows)
        ]
        self._free = list(range(rows * (prompt + steps), 0, -1))
        self._tokens = np.full(rows, 7, dtype=np.int32)

    def step(self) -> None:
        self._requests.drain()
        columns = self._build()
        tokens = self._run(columns)
        self._apply(tokens)

    def _build(self) -> tuple[npt.NDArray[np.generic], ...]:
        for request in self.running:
            request.pages.append(self._free.pop())
        running = self.running
        return (
            np.array([request.ids[-1] for request in running], dtype=np.int32),
            np.array([len(request.ids) - 1 for request in running], dtype=np.int32),
            np.array([request.pages[-1] for request in running], dtype=np.int32),
            np.array([request.row for request in running], dtype=np.int64),
            np.array([request.temperature for request in running], dtype=np.float32),
            np.array([request.top_k for request in running], dtype=np.int32),
            np.array([request.top_p for request in running], dtype=np.float32),
        )

    def _run(self, columns: tuple[npt.NDArray[np.generic], ...]) -> npt.NDArray[np.int32]:
        return self._tokens

    def _apply(self, tokens: npt.NDArray[np.int32]) -> None:
        for request, token in zip(self.running, tokens.tolist(), strict=True):
            request.ids.append(token)
            if token == EOS or len(request.ids) >= request.final_len:
                request.finished = True
            if len(request.ids) - request.sent >= 1 << 20:
                request.sent = len(request.ids)
        if any(request.finished for request in self.running):
            self.running = [request for request in self.running if not request.finished]
