"""The service behind /v1/files and /v1/batches: open on a folder (`open_desk.py`), or closed, if the server was started
without such a folder. A closed one imports neither the database nor the stores.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from mysglang.srt.entrypoints.front import Front
from mysglang.srt.entrypoints.openai.batch_endpoints import BatchEndpoints
from mysglang.srt.errors import NotFound
from mysglang.srt.utils.late_import import at_first_call

if TYPE_CHECKING:
    from mysglang.srt.entrypoints.openai.batches_service import Batches
    from mysglang.srt.entrypoints.openai.files_store import FileStore


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


_open_desk: Callable[[DeskOptions, Front, BatchEndpoints, Collection[str]], Desk] = at_first_call(
    "mysglang.srt.entrypoints.openai.open_desk:OpenDesk"
)


def desk_for(
    options: DeskOptions | None, front: Front, endpoints: BatchEndpoints, owners: Collection[str] = ("",)
) -> Desk:
    """Makes the service of files and batches, or one that refuses all requests if there are no options.

    `owners`: names of the API keys that the server knows, by `auth.owner_name`; one empty name if it needs none.
    """
    return ClosedDesk() if options is None else _open_desk(options, front, endpoints, owners)


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
