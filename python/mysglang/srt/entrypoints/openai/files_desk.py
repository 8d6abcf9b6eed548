"""The service behind /v1/files and /v1/batches. It is open on a folder that no other server uses, or closed, if the
server was started without such a folder.

FOLDER/lock                locked by the server that uses the folder
FOLDER/records.sqlite3     records of files and batches (`record_tables.py`)
FOLDER/files/              FileStore
FOLDER/batches/            BatchStore
"""

from __future__ import annotations

import asyncio
import fcntl
from collections.abc import AsyncIterator, Collection, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from mysglang.srt.entrypoints.front import Front
from mysglang.srt.entrypoints.openai.batches_room import Room
from mysglang.srt.entrypoints.openai.batches_service import BatchEndpoints, Batches
from mysglang.srt.entrypoints.openai.batches_store import BatchStore
from mysglang.srt.entrypoints.openai.files_store import FileStore
from mysglang.srt.entrypoints.openai.record_tables import Database
from mysglang.srt.errors import ConfigError, NotFound


@dataclass(frozen=True, slots=True, kw_only=True)
class DeskOptions:
    """Folder of the files, and their limits."""

    folder: Path
    max_total_bytes: int
    max_in_flight: int
    """Lines of batches that are answered at once."""


class Desk(Protocol):
    """The service of files and batches. Without one, `files` and `batches` raise NotFound, which says what to do."""

    @property
    def files(self) -> FileStore: ...

    @property
    def batches(self) -> Batches: ...

    def open(self) -> AbstractAsyncContextManager[None]:
        """Opens the service: inside the context, files and batches can be requested, and batches are processed. Raises
        ConfigError.
        """
        ...


def desk_for(
    options: DeskOptions | None, front: Front, endpoints: BatchEndpoints, owners: Collection[str] = ("",)
) -> Desk:
    """Makes the service of files and batches, or one that refuses all requests if there are no options.

    `owners`: names of the API keys that the server knows, by `auth.owner_name`; one empty name if it needs none.
    """
    return ClosedDesk() if options is None else OpenDesk(options, front, endpoints, owners)


class ClosedDesk:
    """The null desk, for a server that keeps no files."""

    @property
    def files(self) -> FileStore:
        raise NotFound("This server keeps no files; it does if started with --file-storage-path DIRECTORY.")

    @property
    def batches(self) -> Batches:
        raise NotFound("This server runs no batches; it does if started with --file-storage-path DIRECTORY.")

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        yield


class OpenDesk:
    """The service for files and batches in a folder. It reads and writes nothing before `open`."""

    def __init__(self, options: DeskOptions, front: Front, endpoints: BatchEndpoints, owners: Collection[str]) -> None:
        self._folder = options.folder
        self._database = Database(options.folder)
        self._files = FileStore(options.folder / "files", self._database, options.max_total_bytes, len(owners))
        self._store = BatchStore(options.folder / "batches", self._database)
        room = Room(front.tokenizer_manager, options.max_in_flight, front.facts.max_running_requests)
        self._batches = Batches(self._store, self._files, room, endpoints, owners)

    @property
    def files(self) -> FileStore:
        return self._files

    @property
    def batches(self) -> Batches:
        return self._batches

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        with _alone_in(self._folder), closing(self._database):
            await asyncio.to_thread(self._load)
            self._batches.start()
            try:
                yield
            finally:
                await self._batches.stop()

    def _load(self) -> None:
        try:
            self._database.open()
            self._store.load()
            self._files.load(coming=self._store.coming_files())
        except OSError as error:
            raise _unusable(self._folder, str(error)) from None


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Locks the folder, because two servers would process every line twice. Raises ConfigError."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = (folder / "lock").open("ab")
    except OSError as error:
        raise _unusable(folder, str(error)) from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise _unusable(folder, "another server keeps its files there") from None
        yield


def _unusable(folder: Path, why: str) -> ConfigError:
    return ConfigError(f"--file-storage-path {folder}: {why}.")
