"""Batches on disk: a record for each, and a journal of what was answered, so that no restart loses or repeats a line.

    ID.json            a BatchRecord, replaced at each step of its life
    ID.output.jsonl    answers, ID.error.jsonl    what was not answered: a line each, appended the moment it is known,
                       until they become files of the client

Only this process writes here (`storage.py` holds a lock). Records are also in memory, changed by the event loop alone.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import orjson

from mysglang.srt.entrypoints.openai.batches_record import BatchRecord, Tally
from mysglang.srt.errors import NotFound
from mysglang.srt.utils.disk import append_whole, remove_unfinished, write_atomically

logger = logging.getLogger(__name__)


class BatchStore:
    """Nothing is known before `load`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._records: dict[str, BatchRecord] = {}
        self._changing = asyncio.Lock()

    def load(self) -> None:
        """Blocks. Records that cannot be read are left alone, with a warning."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        remove_unfinished(self._folder)
        for path in sorted(self._folder.glob("*.json")):
            try:
                record = msgspec.json.decode(path.read_bytes(), type=BatchRecord)
            except msgspec.DecodeError as error:
                logger.warning("%s is not readable and is left alone: %s", path, error)
                continue
            if record.id == path.stem:
                self._records[record.id] = record

    def get(self, batch_id: str) -> BatchRecord:
        """Raises NotFound."""
        if batch_id not in self._records:
            raise no_batch(batch_id)
        return self._records[batch_id]

    def all(self) -> list[BatchRecord]:
        """The newest first."""
        return sorted(self._records.values(), key=lambda record: (record.created_at, record.id), reverse=True)

    def coming_files(self) -> set[str]:
        """Files that are being made, perhaps with their bytes in place already."""
        open_records = [record for record in self._records.values() if not record.over]
        return {name for record in open_records for name in (record.output_file_id, record.error_file_id) if name}

    async def add(self, record: BatchRecord) -> None:
        """Raises OSError, as all that writes here."""
        async with self._changing:
            await self._write(record)

    async def change(self, batch_id: str, step: Callable[[BatchRecord], BatchRecord]) -> BatchRecord:
        """What `step` makes of the record, on disk when this returns. One change at a time."""
        async with self._changing:
            record = step(self.get(batch_id))
            await self._write(record)
            return record

    def journal(self, batch_id: str) -> Journal:
        """Blocks: reads what was answered before."""
        return Journal(*self.journal_paths(batch_id))

    def journal_paths(self, batch_id: str) -> tuple[Path, Path]:
        """Of answers, and of errors."""
        return self._folder / f"{batch_id}.output.jsonl", self._folder / f"{batch_id}.error.jsonl"

    async def _write(self, record: BatchRecord) -> None:
        path = self._folder / f"{record.id}.json"
        await asyncio.to_thread(write_atomically, path, msgspec.json.encode(record))
        self._records[record.id] = record


def no_batch(batch_id: str) -> NotFound:
    return NotFound(f"There is no batch {batch_id!r}.", param="batch_id")


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
    """Of a line of the journal, what is needed again."""

    custom_id: str
    response: _Response | None = None


class Journal:
    """What became of the lines of one batch."""

    def __init__(self, output: Path, errors: Path) -> None:
        """Reads what is there. What a crash left half written is cut off: that line was not answered."""
        self.output = output
        self.errors = errors
        self.tally = Tally()
        self.answered: set[str] = set()
        """Names (custom_id) of the lines that are done with."""
        self._decoder = msgspec.json.Decoder(_Entry)
        for path, good in ((output, True), (errors, False)):
            if path.exists():
                self._read_back(path, good=good)

    def add(self, entry: Mapping[str, Any], *, good: bool) -> None:
        """Append a line, in one write: after a crash of this process it is there. Raises OSError; then it is not."""
        # Vectors come as arrays.
        line = orjson.dumps(entry, option=orjson.OPT_SERIALIZE_NUMPY)
        append_whole(self.output if good else self.errors, line + b"\n")
        self._count(line, good=good)

    def sync(self) -> None:
        """Blocks until all of it is on the disk."""
        for path in (self.output, self.errors):
            if path.exists():
                with path.open("rb") as file:
                    os.fsync(file.fileno())

    def _read_back(self, path: Path, *, good: bool) -> None:
        whole = 0
        with path.open("rb") as file:
            for line in file:
                if not line.endswith(b"\n"):
                    break
                whole += len(line)
                self._count(line, good=good)
        if whole < path.stat().st_size:
            os.truncate(path, whole)

    def _count(self, line: bytes, *, good: bool) -> None:
        entry = self._decoder.decode(line)
        self.answered.add(entry.custom_id)
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
