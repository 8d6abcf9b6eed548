"""Batches on disk: a record for each, and a journal of what was answered (`batches_journal.py`).

    a row of the table      a BatchRecord, replaced at each step of its life
    ID.output.jsonl         answers, ID.error.jsonl    what was not answered, until they become files of the client

Only this process writes here (`files_desk.py` holds a lock). Records are kept as long as there is room, which API keys
share. Journals are not in the database: they become the client's files as they are, and damage to one of their lines
must cost only that line.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

from mysglang.srt.entrypoints.openai.batches_journal import Journal
from mysglang.srt.entrypoints.openai.batches_record import BatchRecord
from mysglang.srt.entrypoints.openai.record_tables import Database, RecordTable
from mysglang.srt.errors import NotFound

MAX_BYTES = 64 << 20
"""Bytes of all records together, as JSON: some 100,000 batches."""


class BatchStore:
    """Stores the records of batches. `load` must be called before any other method."""

    def __init__(self, folder: Path, database: Database) -> None:
        self._folder = folder
        self._table = RecordTable(database, "batches", BatchRecord)
        self._changing = asyncio.Lock()

    def load(self) -> None:
        """Loads all records; blocks. Records that cannot be read are left alone, with a warning."""
        self._table.load(self._folder)

    def get(self, batch_id: str) -> BatchRecord:
        """Returns the record of a batch. Raises NotFound."""
        record = self._table.get(batch_id)
        if record is None:
            raise no_batch(batch_id)
        return record

    def open_batches(self) -> list[BatchRecord]:
        """Returns the batches that are not over, the oldest first."""
        return list(self._table.select("ends_at IS NULL", oldest_first=True))

    def of_owner(self, owner: str) -> Iterator[BatchRecord]:
        """Yields the batches of one key, the newest first. Each is read when the caller reaches it."""
        return self._table.select("owner = ?", owner)

    def coming_files(self) -> set[str]:
        """Returns the names of files that are being made, perhaps with their bytes in place already."""
        names = ((record.output_file_id, record.error_file_id) for record in self.open_batches())
        return {name for pair in names for name in pair if name}

    async def add(self, record: BatchRecord) -> None:
        """Adds a record. Raises OSError, as all methods that write. Removes batches that are over if there are too many
        records.
        """
        async with self._changing:
            await asyncio.to_thread(self._table.write, record)
            await asyncio.to_thread(self._make_room)

    async def change(self, batch_id: str, step: Callable[[BatchRecord], BatchRecord]) -> BatchRecord:
        """Apply `step` to the record; it is on disk when this returns. One change at a time."""
        async with self._changing:
            record = step(self.get(batch_id))
            await asyncio.to_thread(self._table.write, record)
            return record

    def journal(self, batch_id: str) -> Journal:
        """Opens the journal of a batch; blocks, because it reads what was answered before. Raises OSError."""
        return Journal(batch_id, *self.journal_paths(batch_id))

    def journal_paths(self, batch_id: str) -> tuple[Path, Path]:
        """Returns the journal of answers, and the one of errors."""
        return self._folder / f"{batch_id}.output.jsonl", self._folder / f"{batch_id}.error.jsonl"

    def _make_room(self) -> None:
        """Removes the oldest batches of the key that has most, while all records together take too much space."""
        held = {owner: size for owner, (_, size) in self._table.used().items()}
        while sum(held.values()) > MAX_BYTES:
            owner = max(held, key=held.__getitem__)
            size = self._table.remove_oldest("owner = ? AND ends_at IS NOT NULL", owner)
            if size is None:
                return
            held[owner] -= size


def no_batch(batch_id: str) -> NotFound:
    return NotFound(f"There is no batch {batch_id!r}.", param="batch_id")
