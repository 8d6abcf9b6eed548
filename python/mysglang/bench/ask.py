"""Sends one prompt over HTTP, and records what arrived when."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import msgspec
import orjson

from mysglang.bench.backends import AskOptions, Backend
from mysglang.bench.http_client import ConnectionFailed, HttpClient
from mysglang.bench.prompts import Prompt
from mysglang.bench.records import RequestRecord

OK = 200
DONE = b"[DONE]"
FRAME_END = b"\n\n"
FIELD = b"data:"


class FrameSplitter:
    """Splits a stream of server-sent events, given in pieces, into the payloads of whole events. Comments and other
    fields are dropped.
    """

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, piece: bytes) -> Iterator[bytes]:
        *whole, self._rest = (self._rest + piece).split(FRAME_END)
        for event in whole:
            payload = event.removeprefix(FIELD).strip()
            if event.startswith(FIELD) and payload != DONE:
                yield payload


class Asker:
    """Sends prompts to one server, all in the same way, and counts how much work it was to read the answers."""

    def __init__(self, client: HttpClient, backend: Backend, options: AskOptions) -> None:
        self.chunks = 0
        """Pieces of answers that came in."""
        self._client = client
        self._backend = backend
        self._options = options
        self._prepared: list[Prompt] = []
        self._bodies: dict[int, bytes] = {}

    def prepare(self, prompts: list[Prompt]) -> None:
        """Make the bodies beforehand: encoding thousands of long prompts would hold up the clock."""
        self._prepared = prompts  # as long as they live, their ids are theirs alone
        self._bodies = {id(prompt): self._body(prompt) for prompt in prompts}

    async def ask(self, prompt: Prompt) -> RequestRecord:
        """Asks one prompt. Never raises: an error is noted in the record."""
        body = self._bodies.get(id(prompt)) or self._body(prompt)
        record = RequestRecord(start=time.perf_counter(), prompt_tokens=prompt.prompt_len)
        reading = _Reading(self._backend, record, self._options.stream)
        try:
            status = await self._client.request("POST", self._backend.path, body, reading.take)
            reading.finish(status)
        except asyncio.CancelledError:
            raise
        except ConnectionFailed as error:
            record.error = str(error)
        record.end = time.perf_counter()
        self.chunks += reading.chunks
        return record

    def _body(self, prompt: Prompt) -> bytes:
        return orjson.dumps(self._backend.body(prompt, self._options))


class _Reading:
    """Reads one answer: a stream frame by frame, anything else when it is complete."""

    def __init__(self, backend: Backend, record: RequestRecord, stream: bool) -> None:
        self.chunks = 0
        self._backend = backend
        self._record = record
        self._stream = stream
        self._frames = FrameSplitter()
        self._plain: list[bytes] = []

    def take(self, status: int, piece: bytes) -> None:
        now = time.perf_counter()
        self.chunks += 1
        if not self._stream or status != OK:
            self._plain.append(piece)
            return
        for frame in self._frames.feed(piece):
            self._read(frame, now)

    def finish(self, status: int) -> None:
        body = b"".join(self._plain)
        if status != OK:
            self._record.error = f"status {status}: {body[:300].decode(errors='replace')}"
        elif not self._stream:
            self._read(body, time.perf_counter())
        elif not self._record.arrivals and not self._record.error:
            self._record.error = "the answer has no tokens"

    def _read(self, frame: bytes, now: float) -> None:
        try:
            self._backend.read(frame, now, self._record)
        except msgspec.DecodeError as error:
            self._record.error = f"a frame cannot be read ({error}): {frame[:300].decode(errors='replace')}"
