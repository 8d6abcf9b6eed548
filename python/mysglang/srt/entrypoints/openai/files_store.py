"""FileStore: files of clients, their bytes in a folder and their records in a table.

    ID.bin        the bytes
    FileRecord    written after the bytes and removed before them: a file exists if its record does

Paths are made of ids that we drew, never of anything that a client sent: a client's id is looked up in the table. API
keys share the room for files, and for uploads. Threads write to the disk; the event loop reads records, and alone
changes what is counted in memory.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import uuid
from collections import Counter
from collections.abc import Container, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from mysglang.srt.entrypoints.openai.files_record import FileRecord, now
from mysglang.srt.entrypoints.openai.record_tables import Database, RecordTable
from mysglang.srt.errors import InvalidRequest, NotFound
from mysglang.srt.utils.disk import UNFINISHED, remove_file, room_for, sync_folder
from mysglang.srt.utils.shared_room import SharedRoom

logger = logging.getLogger(__name__)

MAX_FILES = 100_000

_COPY_BYTES = 1 << 20


class Arrival:
    """An upload in progress. The bytes that have arrived already reserve space."""

    def __init__(self, room: SharedRoom, owner: str) -> None:
        self._room = room
        self._owner = owner
        self._taken = 0

    def expect(self, size: int) -> None:
        """Raises InvalidRequest if there is no room for `size` bytes."""
        if not self._room.has_room(self._owner, size):
            raise InvalidRequest(
                f"The files kept here may have {self._room.total} bytes in all, those of other API keys included; "
                "delete some first.",
                param="file",
            )

    def grow(self, size: int) -> None:
        """Reserves space for `size` more bytes. Raises InvalidRequest if there is no space for them."""
        self.expect(size)
        self._room.take(self._owner, size)
        self._taken += size

    def end(self) -> None:
        """Releases the reserved space, because the upload has become a file or has failed."""
        self._room.give(self._owner, self._taken)
        self._taken = 0


class FileStore:
    """Stores the files of clients on disk. `load` must be called before any other method."""

    def __init__(self, folder: Path, database: Database, max_total_bytes: int, num_keys: int = 1) -> None:
        """`max_total_bytes`: uploads beyond this are refused, but results of batches are kept. `num_keys`: the number
        of API keys that share the space.
        """
        self._folder = folder
        self._database = database
        self._table = RecordTable(database, "files", FileRecord)
        self._room = SharedRoom(max_total_bytes, num_keys)
        self._number = SharedRoom(MAX_FILES, num_keys)
        self._held = Counter[str]()
        self._going: set[str] = set()
        """Files that a thread is removing: no client can ask for them any more."""

    def load(self, coming: Container[str] = ()) -> None:
        """Loads all records; blocks.

        Files whose record cannot be read, or does not match their bytes, are left alone, with a warning. Bytes without
        a record are removed, except files that are still `coming`, which will be passed to `adopt`.
        """
        self._table.load(self._folder)
        for record in list(self._table.select()):
            content = self._content(record.id)
            # We make no links, and what a link leads to does not belong to the client.
            if content.is_symlink() or not content.is_file():
                self._table.hide(record.id)
            elif (size := content.stat().st_size) != record.bytes:
                logger.warning(
                    "%s has %d bytes instead of %d: clients cannot use it, and it is kept on disk.",
                    content,
                    size,
                    record.bytes,
                )
                self._table.hide(record.id)
        for owner, (number, size) in self._table.used().items():
            self._number.take(owner, number)
            self._room.take(owner, size)
        if self._database.whole:
            self._remove_orphans(coming)

    def get(self, file_id: str, owner: str, *, param: str = "file_id") -> FileRecord:
        """Returns the file's record. Raises NotFound, also for a file that has expired or belongs to another owner.
        param: what the client calls the id.
        """
        record = self._table.get(file_id)
        if record is None or record.owner != owner or self._over(record):
            raise NotFound(f"There is no file {file_id!r}.", param=param)
        return record

    def is_there(self, file_id: str) -> bool:
        """True if the bytes of a file are in place, whether or not it has a record."""
        return self._content(file_id).exists()

    def path(self, record: FileRecord) -> Path:
        """Returns the path of the file with the bytes of an uploaded file."""
        return self._content(record.id)

    def of_owner(self, owner: str, *, oldest_first: bool = False) -> Iterator[FileRecord]:
        """Yields the files of one owner, the newest first. Each is read when the caller reaches it."""
        records = self._table.select("owner = ?", owner, oldest_first=oldest_first)
        return (record for record in records if not self._over(record))

    @contextmanager
    def arriving(self, owner: str) -> Iterator[Arrival]:
        """Yields an upload of `owner`, which reserves space inside the context."""
        arrival = Arrival(self._room, owner)
        try:
            yield arrival
        finally:
            arrival.end()

    async def add(
        self, source: IO[bytes], *, arrival: Arrival, owner: str, name: str, purpose: str, life_s: int | None
    ) -> FileRecord:
        """Stores a copy of `source`, which was `arriving`, for `life_s` seconds, or for ever. Raises InvalidRequest if
        it is too much, and NoRoom.
        """
        await self._remove_old()
        size = source.seek(0, os.SEEK_END)
        # The file takes the place of its upload.
        arrival.end()
        arrival.grow(size)
        if not self._number.has_room(owner, 1):
            raise InvalidRequest("There is no room for more files; delete some first.", param="file")
        self._number.take(owner, 1)
        record = _new_record(new_file_id(), size, owner, name, purpose, life_s)
        try:
            with room_for("this file"):
                await asyncio.to_thread(self._write, record, source)
        finally:
            arrival.end()
            self._number.give(owner, 1)
        self._count(record)
        return record

    async def adopt(
        self, source: Path, file_id: str, *, owner: str, name: str, purpose: str, life_s: int | None
    ) -> FileRecord:
        """Makes the file at `source`, in the same file system, the stored file `file_id`. Repeating it changes
        nothing.
        """
        known = self._table.get(file_id)
        if known is not None:
            return known
        record = await asyncio.to_thread(self._adopt, source, file_id, owner, name, purpose, life_s)
        self._count(record)
        return record

    async def delete(self, file_id: str, owner: str) -> None:
        """Delete a file. Raises NotFound, and InvalidRequest for a file that is in use."""
        record = self.get(file_id, owner)
        if self._held[file_id]:
            message = f"{file_id} is the input of a batch that is not complete; cancel that first."
            raise InvalidRequest(message, param="file_id")
        await self._remove(record)

    @contextmanager
    def held(self, file_id: str) -> Iterator[None]:
        """Returns a context in which neither a client nor expiry removes the file."""
        self._held[file_id] += 1
        try:
            yield
        finally:
            self._held[file_id] -= 1

    def _write(self, record: FileRecord, source: IO[bytes]) -> None:
        content = self._content(record.id)
        unfinished = content.with_name(content.name + UNFINISHED)
        try:
            source.seek(0)
            with unfinished.open("xb") as file:
                shutil.copyfileobj(source, file, _COPY_BYTES)
                file.flush()
                os.fsync(file.fileno())
            unfinished.replace(content)
            sync_folder(self._folder)
        finally:
            unfinished.unlink(missing_ok=True)
        try:
            self._table.write(record)
        except OSError:
            # No record will ever name these bytes.
            content.unlink()
            raise

    def _adopt(self, source: Path, file_id: str, owner: str, name: str, purpose: str, life_s: int | None) -> FileRecord:
        content = self._content(file_id)
        # A crash may have come between this and the record.
        if not content.exists():
            source.replace(content)
            sync_folder(source.parent)
            sync_folder(self._folder)
        record = _new_record(file_id, content.stat().st_size, owner, name, purpose, life_s)
        self._table.write(record)
        return record

    async def _remove_old(self) -> None:
        for record in list(self._table.select("ends_at <= ?", now())):
            if not self._held[record.id] and record.id not in self._going:
                await self._remove(record)

    async def _remove(self, record: FileRecord) -> None:
        self._going.add(record.id)
        try:
            await asyncio.to_thread(self._erase, record)
        finally:
            self._going.discard(record.id)
        self._room.give(record.owner, record.bytes)
        self._number.give(record.owner, 1)

    def _erase(self, record: FileRecord) -> None:
        self._table.remove(record.id)
        self._content(record.id).unlink(missing_ok=True)

    def _remove_orphans(self, coming: Container[str]) -> None:
        for path in self._folder.glob("*.bin"):
            # A record that an older version wrote, and that cannot be read, names bytes all the same.
            named = self._table.has(path.stem) or path.with_suffix(".json").exists()
            if not named and path.stem not in coming:
                remove_file(path)

    def _count(self, record: FileRecord) -> None:
        self._room.take(record.owner, record.bytes)
        self._number.take(record.owner, 1)

    def _over(self, record: FileRecord) -> bool:
        ended = record.expires_at is not None and record.expires_at <= now()
        return record.id in self._going or (ended and not self._held[record.id])

    def _content(self, file_id: str) -> Path:
        return self._folder / f"{file_id}.bin"


def new_file_id() -> str:
    return f"file-{uuid.uuid4().hex}"


def _new_record(file_id: str, size: int, owner: str, name: str, purpose: str, life_s: int | None) -> FileRecord:
    created = now()
    return FileRecord(
        id=file_id,
        bytes=size,
        created_at=created,
        filename=name,
        purpose=purpose,
        expires_at=None if life_s is None else created + life_s,
        owner=owner,
    )
