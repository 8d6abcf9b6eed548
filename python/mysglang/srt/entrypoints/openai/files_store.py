"""FileStore: files of clients in one folder, and what is known of each.

    ID.bin     the bytes
    ID.json    a FileRecord, written last and removed first: a file exists if this does

Paths are made of ids that we drew, never of anything that a client sent: a client's id is looked up among those known.
All that is known is also in memory, and changed by the event loop alone; threads touch only the disk. API keys share
the room for files, and for what is on its way here.
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
from mysglang.srt.entrypoints.openai.record_folder import RecordFolder
from mysglang.srt.errors import InvalidRequest, NotFound
from mysglang.srt.utils.disk import UNFINISHED, remove_file, room_for, sync_folder
from mysglang.srt.utils.shared_room import SharedRoom

logger = logging.getLogger(__name__)

MAX_FILES = 100_000

_COPY_BYTES = 1 << 20


class Arrival:
    """An upload on its way: what has come of it takes room already."""

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
        """So many bytes more have come. Raises InvalidRequest if there is no room for them."""
        self.expect(size)
        self._room.take(self._owner, size)
        self._taken += size

    def end(self) -> None:
        """It takes no room any more: it has become a file, or is gone."""
        self._room.give(self._owner, self._taken)
        self._taken = 0


class FileStore:
    """Nothing is known before `load`."""

    def __init__(self, folder: Path, max_total_bytes: int, num_keys: int = 1) -> None:
        """`max_total_bytes`: uploads beyond it are refused; answers of batches are kept all the same. `num_keys`: API
        keys that share it.
        """
        self._folder = RecordFolder(folder, FileRecord)
        self._room = SharedRoom(max_total_bytes, num_keys)
        self._number = SharedRoom(MAX_FILES, num_keys)
        self._records: dict[str, FileRecord] = {}
        self._of_owner: dict[str, dict[str, None]] = {}
        """Ids of each key's files, the oldest first."""
        self._held = Counter[str]()

    def load(self, coming: Container[str] = ()) -> None:
        """Blocks. Files whose record cannot be read, or is not that of their bytes, are left alone, with a warning;
        bytes without a record are not, but for the files that are still `coming`: those that somebody is going to
        `adopt`.
        """
        records, damaged = self._folder.load()
        for record in sorted(records, key=_age):
            content = self._content(record.id)
            # Nothing of ours is a link, and what another one leads to is not the client's.
            if content.is_symlink() or not content.is_file():
                continue
            if (size := content.stat().st_size) != record.bytes:
                logger.warning("%s has %d bytes instead of %d and is left alone.", content, size, record.bytes)
                damaged.add(record.id)
            else:
                self._know(record)
        for path in self._folder.path.glob("*.bin"):
            if path.stem not in self._records and path.stem not in damaged and path.stem not in coming:
                remove_file(path)

    def get(self, file_id: str, owner: str) -> FileRecord:
        """Raises NotFound, also for a file whose time is over, or that is somebody else's."""
        record = self._records.get(file_id)
        if record is None or record.owner != owner or self._over(record):
            raise NotFound(f"There is no file {file_id!r}.", param="file_id")
        return record

    def is_there(self, file_id: str) -> bool:
        """True if the bytes of a file are in place, whether it is known already or not."""
        return file_id in self._records or self._content(file_id).exists()

    def path(self, record: FileRecord) -> Path:
        """Where its bytes are."""
        return self._content(record.id)

    def all(self, owner: str) -> list[FileRecord]:
        """Those of one owner, the newest first."""
        mine = (self._records[name] for name in self._of_owner.get(owner, ()))
        return sorted((record for record in mine if not self._over(record)), key=_age, reverse=True)

    @contextmanager
    def arriving(self, owner: str) -> Iterator[Arrival]:
        """An upload of `owner` takes room while inside."""
        arrival = Arrival(self._room, owner)
        try:
            yield arrival
        finally:
            arrival.end()

    async def add(
        self, source: IO[bytes], *, arrival: Arrival, owner: str, name: str, purpose: str, life_s: int | None
    ) -> FileRecord:
        """Keep a copy of `source`, which was `arriving`, for `life_s` seconds, or for ever. Raises InvalidRequest for
        more than may be kept, and NoRoom.
        """
        for old in self._forget_old():
            await asyncio.to_thread(self._erase, old)
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
        self._know(record)
        return record

    async def adopt(
        self, source: Path, file_id: str, *, owner: str, name: str, purpose: str, life_s: int | None
    ) -> FileRecord:
        """Make the file at `source`, of the same file system, the file `file_id`. Doing it again changes nothing."""
        known = self._records.get(file_id)
        if known is not None:
            return known
        record = await asyncio.to_thread(self._adopt, source, file_id, owner, name, purpose, life_s)
        self._know(record)
        return record

    async def delete(self, file_id: str, owner: str) -> None:
        """Raises NotFound, and InvalidRequest for a file that somebody holds."""
        record = self.get(file_id, owner)
        if self._held[file_id]:
            message = f"{file_id} is the input of a batch that is not complete; cancel that first."
            raise InvalidRequest(message, param="file_id")
        self._forget(record)
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
            self._folder.write(record)
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
        self._folder.write(record)
        return record

    def _erase(self, record: FileRecord) -> None:
        self._folder.remove(record.id)
        self._content(record.id).unlink(missing_ok=True)

    def _forget_old(self) -> list[FileRecord]:
        over = [record for record in self._records.values() if self._over(record)]
        for record in over:
            self._forget(record)
        return over

    def _know(self, record: FileRecord) -> None:
        self._records[record.id] = record
        self._of_owner.setdefault(record.owner, {})[record.id] = None
        self._room.take(record.owner, record.bytes)
        self._number.take(record.owner, 1)

    def _forget(self, record: FileRecord) -> None:
        del self._records[record.id], self._of_owner[record.owner][record.id]
        self._room.give(record.owner, record.bytes)
        self._number.give(record.owner, 1)

    def _over(self, record: FileRecord) -> bool:
        return record.expires_at is not None and record.expires_at <= now() and not self._held[record.id]

    def _content(self, file_id: str) -> Path:
        return self._folder.path / f"{file_id}.bin"


def _age(record: FileRecord) -> tuple[int, str]:
    return record.created_at, record.id


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
