"""CrashRecords: the requests of the last minutes, kept in memory and written to a file if the server dies.

A record has lengths, times and parameters. What clients and the model wrote is in it only with --crash-dump-contents.
`mysglang replay` sends the requests of such a file again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import threading
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any, Protocol

import orjson

from mysglang.srt.args.observability import ObservabilityArgs
from mysglang.srt.entrypoints.request_dump import FILE_MODE, DumpedAnswer, check_folder, dump_record
from mysglang.srt.errors import ConfigError, InvalidRequest
from mysglang.srt.managers.request_state import GenerationChunk
from mysglang.srt.messages.generate import GenerateReqInput
from mysglang.srt.sampling.sampling_params import SamplingParams
from mysglang.srt.utils.version import __version__

logger = logging.getLogger(__name__)

WINDOW_S = 300.0
"""How long a finished request is kept."""
MAX_REQUESTS = 10_000
MAX_BYTES = 64 << 20
"""Limit for the records of finished requests, as written. The oldest are dropped first."""
WRITE_S = 3.0
"""Seconds for writing the file when the server is about to end."""


class CrashRecords(Protocol):
    """Records the requests that come and go, for a crash dump."""

    def watched(
        self, obj: GenerateReqInput, coming: AsyncGenerator[GenerationChunk, None]
    ) -> AsyncGenerator[GenerationChunk, None]:
        """Passes on the chunks of an answer, and records them."""
        ...

    def lines(self, cause: str) -> list[bytes]:
        """Returns the lines of the crash file of a server that dies of `cause`, before the open requests are
        notified.
        """
        ...

    async def write(self, lines: list[bytes]) -> None:
        """Write the file. Takes no longer than WRITE_S, and never raises."""
        ...


class NoCrashRecords:
    """A null object: requests are not recorded."""

    def watched(
        self, obj: GenerateReqInput, coming: AsyncGenerator[GenerationChunk, None]
    ) -> AsyncGenerator[GenerationChunk, None]:
        return coming

    def lines(self, cause: str) -> list[bytes]:
        return []

    async def write(self, lines: list[bytes]) -> None:
        pass


class RecentRequests:
    """Keeps open requests, and finished ones for WINDOW_S."""

    def __init__(self, folder: Path, *, contents: bool, clock: Callable[[], float] = time.time) -> None:
        """Makes the folder `folder`/HOST for the files. Raises ConfigError if this fails."""
        self._folder = folder / socket.gethostname()
        try:
            check_folder(self._folder, f"--crash-dump-folder {folder}")
        except InvalidRequest as error:
            raise ConfigError(error.message) from None
        self._contents = contents
        self._clock = clock
        self._open: dict[int, _Kept] = {}
        self._finished: deque[tuple[float, bytes]] = deque()
        """(when, line), the oldest first."""
        self._bytes = 0

    async def watched(
        self, obj: GenerateReqInput, coming: AsyncGenerator[GenerationChunk, None]
    ) -> AsyncGenerator[GenerationChunk, None]:
        if obj.no_logs:
            async with contextlib.aclosing(coming) as chunks:
                async for chunk in chunks:
                    yield chunk
            return
        kept = _Kept(obj, self._clock(), contents=self._contents)
        self._open[id(kept)] = kept
        try:
            async with contextlib.aclosing(coming) as chunks:
                async for chunk in chunks:
                    kept.add(chunk)
                    yield chunk
        finally:
            del self._open[id(kept)]
            self._keep(kept.line(self._clock(), still_open=False))

    async def write(self, lines: list[bytes]) -> None:
        done = threading.Event()

        def work() -> None:
            try:
                logger.error(
                    "The requests of the last minutes are in %s; `mysglang replay` sends them again.",
                    self._write(lines),
                )
            except OSError as error:
                logger.error("The crash dump could not be written: %s", error)
            done.set()

        # A thread that the end of the process does not wait for: a disk may hang, and the server must end.
        threading.Thread(target=work, name="crash dump", daemon=True).start()
        end = time.monotonic() + WRITE_S
        while not done.is_set() and time.monotonic() < end:
            await asyncio.sleep(0.01)

    def lines(self, cause: str) -> list[bytes]:
        """Returns the cause, then the finished requests, then the open ones."""
        now = self._clock()
        self._forget(now)
        head = {"crash": cause, "time": now, "version": __version__, "contents": self._contents, "window_s": WINDOW_S}
        return [
            orjson.dumps(head),
            *(line for _, line in self._finished),
            *(kept.line(now, still_open=True) for kept in self._open.values()),
        ]

    def _keep(self, line: bytes) -> None:
        now = self._clock()
        self._finished.append((now, line))
        self._bytes += len(line)
        self._forget(now)

    def _forget(self, now: float) -> None:
        """Drops the oldest records if they are too old or too many."""
        finished = self._finished
        while finished and (finished[0][0] < now - WINDOW_S or len(finished) > MAX_REQUESTS or self._bytes > MAX_BYTES):
            self._bytes -= len(finished.popleft()[1])

    def _write(self, lines: list[bytes]) -> Path:
        name = f"crash_dump_{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.jsonl"
        path = self._folder / name
        part = path.with_name(f".{name}.part")
        # The process may end, or the disk be full, in the middle: only a whole dump gets the name.
        try:
            with open(part, "wb", opener=lambda path, flags: os.open(path, flags, FILE_MODE)) as file:
                file.write(b"\n".join(lines) + b"\n")
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)
        return path


class _Kept:
    """One request, single or a batch, and what its answers contain so far."""

    def __init__(self, obj: GenerateReqInput, started: float, *, contents: bool) -> None:
        self._obj = obj
        self._started = started
        self._contents = contents
        self._counts: dict[int, dict[str, Any]] = {}
        self._answers: dict[int, DumpedAnswer] = {}

    def add(self, chunk: GenerationChunk) -> None:
        self._counts[chunk.index] = {
            "prompt_tokens": chunk.prompt_tokens,
            "cached_tokens": chunk.cached_tokens,
            "completion_tokens": chunk.completion_tokens,
            "finished": None if chunk.finish_reason is None else type(chunk.finish_reason).__name__.lower(),
        }
        if self._contents:
            self._answers.setdefault(chunk.index, DumpedAnswer()).add(chunk)

    def line(self, now: float, *, still_open: bool) -> bytes:
        obj = self._obj
        params = obj.sampling_params[0] if isinstance(obj.sampling_params, list) else obj.sampling_params
        record = {
            "rid": obj.rid,
            "started": self._started,
            "seconds": now - self._started,
            "open": still_open,
            "stream": obj.stream,
            "prompts": _lengths(obj),
            "sampling_params": _numbers(params),
            "counts": [counts for _, counts in sorted(self._counts.items())],
        }
        if self._contents:
            record |= dump_record(obj, self._answers, self._started)
        return orjson.dumps(record)


def crash_records(args: ObservabilityArgs) -> CrashRecords:
    """Makes crash records as the options say. Raises ConfigError for a folder that cannot be written."""
    if args.crash_dump_folder is None:
        return NoCrashRecords()
    return RecentRequests(Path(args.crash_dump_folder), contents=args.crash_dump_contents)


def _lengths(obj: GenerateReqInput) -> list[dict[str, int]]:
    """Returns the size of each prompt: characters of text, or number of ids or vectors."""
    if obj.text is not None:
        return [{"characters": len(text)} for text in ([obj.text] if isinstance(obj.text, str) else obj.text)]
    if obj.input_embeds is not None:
        return [{"vectors": len(obj.input_embeds)}]
    ids = obj.input_ids or []
    several = [len(entry) for entry in ids if isinstance(entry, list)]
    return [{"tokens": count} for count in several or [len(ids)]]


def _numbers(params: SamplingParams) -> dict[str, Any]:
    """Returns the parameters that were set and are numbers or switches. Others are left out, since they may hold a
    client's words.
    """
    default = SamplingParams()
    values = {name: getattr(params, name) for name in params.__struct_fields__}
    return {
        name: value
        for name, value in values.items()
        if isinstance(value, (bool, int, float)) and value != getattr(default, name)
    }
