"""Batches on disk: a record for each, and a journal of what was answered (`batches_journal.py`).

    ID.json            a BatchRecord, replaced at each step of its life
    ID.output.jsonl    answers, ID.error.jsonl    what was not answered, until they become files of the client

Only this process writes here (`files_desk.py` holds a lock). Records are also in memory, changed by the event loop
alone. They are kept as long as there is room, which API keys share.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import msgspec

from mysglang.srt.entrypoints.openai.batches_journal import Journal
from mysglang.srt.entrypoints.openai.batches_record import BatchRecord
from mysglang.srt.entrypoints.openai.record_folder import RecordFolder
from mysglang.srt.errors import NotFound
from mysglang.srt.utils.shared_room import SharedRoom

MAX_BYTES = 64 << 20
"""Bytes of all records together, as JSON: some 100,000 batches."""


class BatchStore:
    """Nothing is known before `load`."""

    def __init__(self, folder: Path) -> None:
        self._folder = RecordFolder(folder, BatchRecord)
        self._records: dict[str, BatchRecord] = {}
        self._room = SharedRoom(MAX_BYTES)
        self._sizes: dict[str, int] = {}
        self._of_owner: dict[str, dict[str, None]] = {}
        """Ids of each key's batches, the oldest first."""
        self._changing = asyncio.Lock()

    def load(self) -> None:
        """Blocks. Records that cannot be read are left alone, with a warning."""
        records, _ = self._folder.load()
        for record in sorted(records, key=_age):
            self._know(record, len(msgspec.json.encode(record)))

    def get(self, batch_id: str) -> BatchRecord:
        """Raises NotFound."""
        if batch_id not in self._records:
            raise no_batch(batch_id)
        return self._records[batch_id]

    def all(self) -> list[BatchRecord]:
        """The newest first."""
        return sorted(self._records.values(), key=_age, reverse=True)

    def of_owner(self, owner: str) -> list[BatchRecord]:
        """Those of one key, the newest first."""
        return sorted((self._records[name] for name in self._of_owner.get(owner, ())), key=_age, reverse=True)

    def coming_files(self) -> set[str]:
        """Files that are being made, perhaps with their bytes in place already."""
        open_records = [record for record in self._records.values() if not record.over]
        return {name for record in open_records for name in (record.output_file_id, record.error_file_id) if name}

    async def add(self, record: BatchRecord) -> None:
        """Raises OSError, as all that writes here. Forgets batches that are over if all records are too many."""
        async with self._changing:
            await self._write(record)
            while self._room.overfull and (oldest := self._oldest_over(self._room.largest())) is not None:
                self._forget(oldest)
                await asyncio.to_thread(self._folder.remove, oldest.id)

    async def change(self, batch_id: str, step: Callable[[BatchRecord], BatchRecord]) -> BatchRecord:
        """What `step` makes of the record, on disk when this returns. One change at a time."""
        async with self._changing:
            record = step(self.get(batch_id))
            await self._write(record)
            return record

    def journal(self, batch_id: str) -> Journal:
        """Blocks: reads what was answered before. Raises OSError."""
        return Journal(batch_id, *self.journal_paths(batch_id))

    def journal_paths(self, batch_id: str) -> tuple[Path, Path]:
        """The journal of answers, and the one of errors."""
        folder = self._folder.path
        return folder / f"{batch_id}.output.jsonl", folder / f"{batch_id}.error.jsonl"

    async def _write(self, record: BatchRecord) -> None:
        self._know(record, await asyncio.to_thread(self._folder.write, record))

    def _know(self, record: BatchRecord, size: int) -> None:
        self._room.give(record.owner, self._sizes.get(record.id, 0))
        self._room.take(record.owner, size)
        self._sizes[record.id] = size
        self._records[record.id] = record
        self._of_owner.setdefault(record.owner, {})[record.id] = None

    def _forget(self, record: BatchRecord) -> None:
        del self._records[record.id], self._of_owner[record.owner][record.id]
        self._room.give(record.owner, self._sizes.pop(record.id))

    def _oldest_over(self, owner: str) -> BatchRecord | None:
        records = (self._records[name] for name in self._of_owner[owner])
        return next((record for record in records if record.over), None)


def _age(record: BatchRecord) -> tuple[int, str]:
    return record.created_at, record.id


def no_batch(batch_id: str) -> NotFound:
    return NotFound(f"There is no batch {batch_id!r}.", param="batch_id")
