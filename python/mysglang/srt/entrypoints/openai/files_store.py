"""FileStore: files of clients in one folder, and what is known of each.

    ID.bin     the bytes
    ID.json    a FileRecord, written last and removed first: a file exists if this does

Paths are made of ids that we drew, never of anything that a client sent: a client's id is looked up among those known.
All that is known is also in memory, and changed by the event loop alone; threads touch only the disk.
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

import msgspec

from mysglang.srt.entrypoints.openai.files_record import FileRecord, now
from mysglang.srt.errors import InvalidRequest, NotFound
from mysglang.srt.utils.disk import UNFINISHED, remove_unfinished, room_for, sync_folder, write_atomically

logger = logging.getLogger(__name__)

_COPY_BYTES = 1 << 20


class FileStore:
    """Nothing is known before `load`."""

    def __init__(self, folder: Path, max_total_bytes: int) -> None:
        """`max_total_bytes`: uploads beyond it are refused; answers of batches are kept all the same."""
        self._folder = folder
        self._max_total_bytes = max_total_bytes
        self._records: dict[str, FileRecord] = {}
        self._held = Counter[str]()
        self._arriving = 0
        """Bytes that are being copied."""

    def load(self, coming: Container[str] = ()) -> None:
        """Blocks. Files whose record cannot be read are left alone, with a warning; bytes without a record are not,
        but for the files that are still `coming`: those that somebody is going to `adopt`.
        """
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        remove_unfinished(self._folder)
        unreadable = set()
        for path in sorted(self._folder.glob("*.json")):
            try:
                record = msgspec.json.decode(path.read_bytes(), type=FileRecord)
            except msgspec.DecodeError as error:
                logger.warning("%s is not readable and is left alone: %s", path, error)
                unreadable.add(path.stem)
                continue
            if record.id == path.stem and self._content(record.id).is_file():
                self._records[record.id] = record
        for path in self._folder.glob("*.bin"):
            if path.stem not in self._records and path.stem not in unreadable and path.stem not in coming:
                path.unlink(missing_ok=True)

    def get(self, file_id: str, owner: str) -> FileRecord:
        """Raises NotFound, also for a file whose time is over, or that is somebody else's."""
        record = self._records.get(file_id)
        if record is None or record.owner != owner or self._over(record):
            raise NotFound(f"There is no file {file_id!r}.", param="file_id")
        return record

    def path(self, record: FileRecord) -> Path:
        """Where its bytes are."""
        return self._content(record.id)

    def all(self, owner: str) -> list[FileRecord]:
        """Those of one owner, the newest first."""
        there = [record for record in self._records.values() if record.owner == owner and not self._over(record)]
        return sorted(there, key=lambda record: (record.created_at, record.id), reverse=True)

    async def add(self, source: IO[bytes], *, owner: str, name: str, purpose: str, life_s: int | None) -> FileRecord:
        """Keep a copy of `source` for `life_s` seconds, or for ever. Raises InvalidRequest for more than may be kept,
        and NoRoom.
        """
        for old in self._forget_old():
            await asyncio.to_thread(self._erase, old)
        size = source.seek(0, os.SEEK_END)
        if self._arriving + sum(record.bytes for record in self._records.values()) + size > self._max_total_bytes:
            message = f"The files kept here may have {self._max_total_bytes} bytes in all; delete some first."
            raise InvalidRequest(message, param="file")
        record = _new_record(new_file_id(), size, owner, name, purpose, life_s)
        self._arriving += size
        try:
            with room_for("this file"):
                await asyncio.to_thread(self._write, record, source)
        finally:
            self._arriving -= size
        self._records[record.id] = record
        return record

    async def adopt(
        self, source: Path, file_id: str, *, owner: str, name: str, purpose: str, life_s: int | None
    ) -> FileRecord:
        """Make the file at `source`, of the same file system, the file `file_id`. Doing it again changes nothing."""
        known = self._records.get(file_id)
        if known is not None:
            return known
        record = await asyncio.to_thread(self._adopt, source, file_id, owner, name, purpose, life_s)
        self._records[file_id] = record
        return record

    async def delete(self, file_id: str, owner: str) -> None:
        """Raises NotFound, and InvalidRequest for a file that somebody holds."""
        record = self.get(file_id, owner)
        if self._held[file_id]:
            message = f"{file_id} is the input of a batch that is not complete; cancel that first."
            raise InvalidRequest(message, param="file_id")
        del self._records[file_id]
        await asyncio.to_thread(self._erase, record)

    @contextmanager
    def held(self, file_id: str) -> Iterator[None]:
        """Neither a client nor time removes the file meanwhile."""
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
        finally:
            unfinished.unlink(missing_ok=True)
        try:
            self._write_meta(record)
        except OSError:
            # Nobody would ever know of it.
            content.unlink()
            raise

    def _adopt(self, source: Path, file_id: str, owner: str, name: str, purpose: str, life_s: int | None) -> FileRecord:
        content = self._content(file_id)
        # A crash may have come between this and the record.
        if not content.exists():
            source.replace(content)
            sync_folder(source.parent)
        record = _new_record(file_id, content.stat().st_size, owner, name, purpose, life_s)
        self._write_meta(record)
        return record

    def _write_meta(self, record: FileRecord) -> None:
        write_atomically(self._meta(record.id), msgspec.json.encode(record))

    def _erase(self, record: FileRecord) -> None:
        self._meta(record.id).unlink(missing_ok=True)
        self._content(record.id).unlink(missing_ok=True)

    def _forget_old(self) -> list[FileRecord]:
        over = [record for record in self._records.values() if self._over(record)]
        for record in over:
            del self._records[record.id]
        return over

    def _over(self, record: FileRecord) -> bool:
        return record.expires_at is not None and record.expires_at <= now() and not self._held[record.id]

    def _meta(self, file_id: str) -> Path:
        return self._folder / f"{file_id}.json"

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
