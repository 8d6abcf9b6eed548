"""The service behind /v1/files and /v1/batches on a folder that no other server uses.

FOLDER/lock                locked by the server that uses the folder
FOLDER/records.sqlite3     records of files and batches (`record_tables.py`)
FOLDER/files/              FileStore
FOLDER/batches/            BatchStore
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Iterator
from contextlib import ExitStack, asynccontextmanager, closing, contextmanager
from pathlib import Path

from mysglang.srt.entrypoints.front import Front
from mysglang.srt.entrypoints.openai.batch_endpoints import BatchEndpoints
from mysglang.srt.entrypoints.openai.batches_room import Room
from mysglang.srt.entrypoints.openai.batches_service import Batches
from mysglang.srt.entrypoints.openai.batches_store import BatchStore
from mysglang.srt.entrypoints.openai.files_desk import DeskOptions
from mysglang.srt.entrypoints.openai.files_store import FileStore
from mysglang.srt.entrypoints.openai.record_tables import Database
from mysglang.srt.errors import ConfigError
from mysglang.srt.utils.folder_lock import IN_USE, locked


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
    with ExitStack() as stack:
        try:
            stack.enter_context(locked(folder))
        except BlockingIOError:
            raise _unusable(folder, IN_USE) from None
        except OSError as error:
            raise _unusable(folder, str(error)) from None
        yield


def _unusable(folder: Path, why: str) -> ConfigError:
    return ConfigError(f"--file-storage-path {folder}: {why}.")
