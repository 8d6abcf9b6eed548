"""Engines in processes of their own, all at once on one device, which answer when they are asked."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from offline_throughput.run_engine import MARK

HERE = Path(__file__).parent
DEATH_S = 3.0
"""Seconds that the driver takes to return the memory of a process that was killed."""


class SeatError(Exception):
    """An engine ended, or took longer than it may."""


class RunningEngine:
    """One engine that has been started. All its output goes to a log."""

    def __init__(self, command: list[str], environment: Mapping[str, str], log: Path) -> None:
        self._log = log
        self._said: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._process = subprocess.Popen(
            command,
            env=dict(environment),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            # Its workers are in its session, so that they can be ended with it.
            start_new_session=True,
        )
        assert self._process.stdout is not None and self._process.stdin is not None
        self._asks = self._process.stdin
        self._reader = threading.Thread(target=self._follow, args=(self._process.stdout,))
        self._reader.start()

    @classmethod
    def start(
        cls, engine: str, model: Path, arguments: list[str], *, environment: Mapping[str, str], log: Path
    ) -> RunningEngine:
        """Starts `run_engine.py` with these arguments."""
        command = [sys.executable, str(HERE / "run_engine.py"), engine, str(model), *arguments]
        return cls(command, environment, log)

    def ready(self, limit_s: float) -> dict[str, Any]:
        """Waits until the engine serves. Returns its version and the seconds that it took. Raises SeatError."""
        return self._next(limit_s)

    def seconds(self, workload: str, limit_s: float) -> float:
        """Runs one workload. Returns its seconds. Raises SeatError."""
        with contextlib.suppress(BrokenPipeError):
            print(workload, file=self._asks, flush=True)
        return float(self._next(limit_s)["seconds"])

    def end(self) -> None:
        """Ends the engine and all that it started, and waits until its memory is free."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._reader.join()
        with contextlib.suppress(BrokenPipeError):
            self._asks.close()
        time.sleep(DEATH_S)

    def _next(self, limit_s: float) -> dict[str, Any]:
        try:
            said = self._said.get(timeout=max(0.0, limit_s))
        except queue.Empty:
            raise SeatError(f"no answer within {limit_s:.0f} s") from None
        if said is None:
            raise SeatError(f"ended with status {self._process.wait()}:\n{self._last_lines()}")
        return said

    def _follow(self, output: IO[str]) -> None:
        with self._log.open("w") as log:
            for line in output:
                log.write(line)
                log.flush()
                if line.startswith(MARK):
                    self._said.put(json.loads(line[len(MARK) :]))
        self._said.put(None)

    def _last_lines(self, count: int = 12) -> str:
        lines = self._log.read_text(errors="replace").splitlines()
        return "\n".join(f"    {line[:200]}" for line in lines[-count:])
