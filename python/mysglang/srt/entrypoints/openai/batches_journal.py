"""Journal: the results of the lines of one batch, on disk, so that no restart loses or repeats a line.

    {"id":"batch_req_DIGEST","custom_id":...}        a line for each, appended the moment it is known

The digest is of all that follows it in the line, and of the batch. So a line that was cut short, written over or copied
from elsewhere is known wherever it stands, and the lines around it are kept. Answers and errors have a file each, which
become the client's as they are.
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Iterator, Mapping
from hashlib import blake2b
from pathlib import Path
from typing import IO, Any

import msgspec
import orjson

from mysglang.srt.entrypoints.openai.batches_input import name_of
from mysglang.srt.entrypoints.openai.batches_record import Tally
from mysglang.srt.utils.disk import UNFINISHED, append_whole, sync_folder
from mysglang.srt.utils.json_lines import unbroken

logger = logging.getLogger(__name__)

_HEAD = b'{"id":"batch_req_'
_BEHIND_DIGEST = b'",'
_DIGEST_BYTES = 16
_BODY_AT = len(_HEAD) + 2 * _DIGEST_BYTES + len(_BEHIND_DIGEST)
_READ_BYTES = 1 << 20


class _Details(msgspec.Struct):
    cached_tokens: int = 0


class _ThoughtDetails(msgspec.Struct):
    reasoning_tokens: int = 0


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: _Details | None = None
    completion_tokens_details: _ThoughtDetails | None = None


class _Body(msgspec.Struct):
    usage: _Usage | None = None


class _Response(msgspec.Struct):
    body: _Body


class _Entry(msgspec.Struct):
    """The fields of a journal line that are read back after a restart."""

    custom_id: str
    response: _Response | None = None


class Journal:
    """The answers of a batch so far, in files on disk. Every method blocks on the disk, so call it in a thread."""

    def __init__(self, batch_id: str, output: Path, errors: Path) -> None:
        """Reads the journal, and removes damaged lines, which count as not answered. Raises OSError."""
        self.output = output
        self.errors = errors
        self.tally = Tally()
        self.answered: set[bytes] = set()
        """Names of the lines that are done with, by `name_of`."""
        self._batch = batch_id.encode()
        self._decoder = msgspec.json.Decoder(_Entry)
        for path in (output, errors):
            # Opening a pipe would wait for its other end.
            if path.exists() and not path.is_file():
                raise OSError(errno.EINVAL, "Not a regular file", str(path))
        cut = [self._read_back(path, good=good) for path, good in ((output, True), (errors, False)) if path.exists()]
        if any(cut):
            logger.warning(
                "The journal of %s is damaged: %d bytes were cut out. %d lines are kept; the others are asked again.",
                batch_id,
                sum(cut),
                len(self.answered),
            )

    def add(self, entry: Mapping[str, Any], *, good: bool) -> None:
        """Appends a line, in one write. If this process crashes afterwards, the line is kept. Raises OSError; then it
        is not there.
        """
        # Vectors come as arrays.
        body = unbroken(orjson.dumps(entry, option=orjson.OPT_SERIALIZE_NUMPY))[1:]
        line = self._begin(body) + body
        append_whole(self.output if good else self.errors, line + b"\n")
        self._count(self._decoder.decode(line), good=good)

    def sync(self) -> None:
        """Blocks until all of the journal is on the disk."""
        for path in (self.output, self.errors):
            if path.exists():
                with path.open("rb") as file:
                    os.fsync(file.fileno())

    def _read_back(self, path: Path, *, good: bool) -> int:
        """Counts the complete lines, and keeps only these. Returns how many bytes were removed."""
        spans: list[tuple[int, int]] = []
        with path.open("rb") as file:
            for start, line in _lines(file):
                entry = self._entry(line)
                # A line that is there twice counts once.
                if entry is None or name_of(entry.custom_id) in self.answered:
                    continue
                self._count(entry, good=good)
                if spans and spans[-1][1] == start:
                    start = spans.pop()[0]
                spans.append((start, file.tell()))
            size = file.tell()
            whole = sum(end - start for start, end in spans)
            if whole < size:
                _keep(path, file, spans)
        return size - whole

    def _entry(self, line: bytes) -> _Entry | None:
        """Returns the entry in a line; None if the line is not one that was written here."""
        body = line[_BODY_AT:].removesuffix(b"\n")
        if not line.endswith(b"\n") or line[:_BODY_AT] != self._begin(body):
            return None
        return self._decoder.decode(line)

    def _begin(self, body: bytes) -> bytes:
        """Returns the bytes of a line that come before `body`."""
        digest = blake2b(body, digest_size=_DIGEST_BYTES, key=self._batch).hexdigest().encode()
        return _HEAD + digest + _BEHIND_DIGEST

    def _count(self, entry: _Entry, *, good: bool) -> None:
        self.answered.add(name_of(entry.custom_id))
        tally = self.tally
        if not good:
            tally.failed += 1
            return
        tally.completed += 1
        usage = entry.response.body.usage if entry.response is not None else None
        if usage is not None:
            tally.input_tokens += usage.prompt_tokens
            tally.output_tokens += usage.completion_tokens
            if usage.prompt_tokens_details is not None:
                tally.cached_tokens += usage.prompt_tokens_details.cached_tokens
            if usage.completion_tokens_details is not None:
                tally.reasoning_tokens += usage.completion_tokens_details.reasoning_tokens


def _lines(file: IO[bytes]) -> Iterator[tuple[int, bytes]]:
    """Yields each line and the offset at which it begins. Only the beginning of a line that cannot be one of ours is
    read into memory: a file may have gigabytes of zeros.
    """
    start = 0
    while piece := file.readline(_READ_BYTES):
        pieces = [piece]
        ours = piece.startswith(_HEAD)
        while not piece.endswith(b"\n") and (piece := file.readline(_READ_BYTES)):
            ours = ours and b"\0" not in piece
            if ours:
                pieces.append(piece)
        # Without its end, a foreign line remains invalid.
        yield start, b"".join(pieces) if ours else b""
        start = file.tell()


def _keep(path: Path, file: IO[bytes], spans: list[tuple[int, int]]) -> None:
    """Rewrites the file so that it contains these byte spans only, in this order."""
    if len(spans) <= 1 and all(start == 0 for start, _ in spans):
        os.truncate(path, spans[0][1] if spans else 0)
        return
    unfinished = path.with_name(path.name + UNFINISHED)
    try:
        with unfinished.open("wb") as copy:
            for start, end in spans:
                file.seek(start)
                while start < end:
                    start += copy.write(file.read(min(_READ_BYTES, end - start)))
            copy.flush()
            os.fsync(copy.fileno())
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
    sync_folder(path.parent)
