"""Requests kept whole in files, one JSON line for each, as POST /generate takes them: to be asked again elsewhere.

A line has the prompt as token ids, however it came (as vectors, if these are what it was; as it came, if the request
ended before it was answered at all), the parameters, and what was answered. Written by a thread when the request is
over: a slow disk delays no request. What cannot be written is logged, and lost; no part of it stays.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import queue
import threading
import time
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import orjson

from mysglang.srt.errors import InvalidRequest
from mysglang.srt.managers.request_state import GenerationChunk
from mysglang.srt.managers.response_dict import finish_reason_dict
from mysglang.srt.messages.generate import GenerateReqInput
from mysglang.srt.utils.disk import append_whole, try_folder
from mysglang.srt.utils.service_thread import ServiceThread

logger = logging.getLogger(__name__)

FILE_MODE = 0o600
"""Only the server's user may read the texts of clients."""

MAX_WAITING = 64 << 20
"""Bytes of kept requests that wait for the disk."""
LAST_LINES_S = 2.0
"""Seconds at the end of the server in which the disk may take what waits."""

KEPT = (
    *("stream", "return_logprob", "logprob_start_len", "top_logprobs_num", "token_ids_logprob", "extra_key"),
    *("return_hidden_states", "custom_logit_processor", "max_thinking_tokens", "input_embeds"),
)


async def dumped(
    obj: GenerateReqInput, coming: AsyncGenerator[GenerationChunk, None], folder: str
) -> AsyncGenerator[GenerationChunk, None]:
    """Yields the chunks unchanged. After the last one, the request is written to the dump."""
    started, answers = time.time(), dict[int, DumpedAnswer]()
    try:
        async with contextlib.aclosing(coming) as chunks:
            async for chunk in chunks:
                answers.setdefault(chunk.index, DumpedAnswer()).add(chunk)
                yield chunk
    finally:
        line = orjson.dumps(dump_record(obj, answers, started), option=orjson.OPT_APPEND_NEWLINE)
        _KEEPER.put(Path(folder), line)


def check_folder(folder: Path, name: str = "dump_requests_folder") -> None:
    """Makes the folder if it does not exist. Raises InvalidRequest if requests cannot be stored there. Blocks.

    `name`: what the error calls the field or option that gives the folder.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        try_folder(folder)
    except (OSError, ValueError) as error:
        # ValueError: the name is invalid.
        why = error.strerror if isinstance(error, OSError) else error
        message = f"{name}: nothing can be kept in {str(folder)!r}: {why}."
        raise InvalidRequest(message, param=name) from None


class DumpedAnswer:
    """The answer of a dumped request, added up from its chunks."""

    def __init__(self) -> None:
        self.text = ""
        self.output_ids: list[int] = []
        self.prompt_ids: list[int] = []
        self.finish: dict[str, Any] | None = None

    def add(self, chunk: GenerationChunk) -> None:
        self.text += chunk.text
        self.output_ids += chunk.token_ids.tolist()
        self.finish = finish_reason_dict(chunk.finish_reason)
        if chunk.prompt_ids is not None and not self.prompt_ids:
            self.prompt_ids = chunk.prompt_ids.tolist()


def dump_record(obj: GenerateReqInput, answers: Mapping[int, DumpedAnswer], started: float) -> dict[str, Any]:
    """Returns a line of the file: a request that began at `started`, seconds of the epoch, and its answers so far."""
    default = GenerateReqInput()
    request = {name: getattr(obj, name) for name in KEPT if getattr(obj, name) != getattr(default, name)}
    params = obj.sampling_params
    n = params[0].n if isinstance(params, list) else params.n
    if obj.input_embeds is None:
        request |= _prompts(obj, answers, n)
    # As on the wire, where a parameter with its default value is left out, except the one for which null is not the
    # default.
    request["sampling_params"] = msgspec.to_builtins(params, str_keys=True)
    return {
        "rid": obj.rid,
        "started": started,
        "seconds": time.time() - started,
        "request": request,
        "answers": [
            {"text": one.text, "output_ids": one.output_ids, "finish_reason": one.finish}
            for _, one in sorted(answers.items())
        ],
    }


def _prompts(obj: GenerateReqInput, answers: Mapping[int, DumpedAnswer], n: int) -> dict[str, Any]:
    """Returns the prompts as token ids, or as they were sent if the request ended before the ids of all were known."""
    several = isinstance(obj.text, list) or any(isinstance(entry, list) for entry in obj.input_ids or [])
    count = len(obj.text or obj.input_ids or []) if several else 1
    known = [answers[index].prompt_ids for index in range(0, count * n, n) if index in answers]
    if len(known) < count:
        return {"text": obj.text} if obj.input_ids is None else {"input_ids": obj.input_ids}
    return {"input_ids": known if several else known[0]}


def written(timeout: float = LAST_LINES_S) -> None:
    """Waits until all dumped requests are in their files, but no longer than `timeout` seconds."""
    _KEEPER.written.wait(timeout)


class _Keeper:
    """Appends lines to files, in a thread of its own that may wait for a disk."""

    def __init__(self) -> None:
        self._lines: queue.SimpleQueue[tuple[Path, bytes]] = queue.SimpleQueue()
        self._waiting = 0
        self._lock = threading.Lock()
        self._thread: ServiceThread | None = None
        self.written = threading.Event()
        self.written.set()

    def put(self, folder: Path, line: bytes) -> None:
        """Queues the line for writing, unless the disk has fallen behind by MAX_WAITING bytes."""
        with self._lock:
            if self._waiting and self._waiting + len(line) > MAX_WAITING:
                logger.error("A request was left out of the request dump, because the disk is too slow.")
                return
            if self._thread is None:
                try:
                    self._thread = ServiceThread("request dump", self._keep)
                except RuntimeError as error:
                    logger.error("A request could not be added to the request dump: %s", error)
                    return
                atexit.register(written)
            self._waiting += len(line)
            self.written.clear()
            self._lines.put((folder, line))

    def _keep(self) -> None:
        while True:
            folder, line = self._lines.get()
            _append(folder, line)
            with self._lock:
                self._waiting -= len(line)
                if not self._waiting:
                    self.written.set()


_KEEPER = _Keeper()


def _append(folder: Path, line: bytes) -> None:
    """Appends a line to the dump file of this process and day."""
    path = folder / f"requests-{time.strftime('%Y%m%d')}-{os.getpid()}.jsonl"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        append_whole(path, line)
    except OSError as error:
        logger.error("A request could not be added to the request dump: %s", error)
