"""Batches: what the routes ask for, and the runs behind it. Those that a restart broke off go on."""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Collection
from functools import partial

from mysglang.srt.entrypoints.openai import batches_record as steps
from mysglang.srt.entrypoints.openai.batch_endpoints import BatchEndpoints
from mysglang.srt.entrypoints.openai.batches_record import BatchRecord, CreateBatchRequest, new_record
from mysglang.srt.entrypoints.openai.batches_room import Room
from mysglang.srt.entrypoints.openai.batches_run import BatchRun
from mysglang.srt.entrypoints.openai.batches_store import BatchStore, no_batch
from mysglang.srt.entrypoints.openai.files_record import BATCH_INPUT, now, page
from mysglang.srt.entrypoints.openai.files_store import FileStore
from mysglang.srt.errors import InvalidRequest, Overloaded, ServerEnded
from mysglang.srt.managers.caller import CALLER, Caller
from mysglang.srt.utils.disk import room_for
from mysglang.srt.utils.shared_room import SharedRoom
from mysglang.srt.utils.shortage import shortage_in

logger = logging.getLogger(__name__)

MAX_OPEN = 100
"""Batches that are not over: each keeps the places of its lines in memory."""

DISK_RETRY_S = 10.0
"""Until a batch goes on that found no room on the disk."""


class Batches:
    """The service of batches. It lives in one event loop, between `start` and `stop`."""

    def __init__(
        self,
        store: BatchStore,
        files: FileStore,
        room: Room,
        endpoints: BatchEndpoints,
        owners: Collection[str] = ("",),
    ) -> None:
        """`owners`: names of the API keys that the server knows; one empty name if it needs none."""
        self._store = store
        self._owners = owners
        self._open = SharedRoom(MAX_OPEN, len(owners))
        self._files = files
        self._room = room
        self._endpoints = endpoints
        self._runs: dict[str, BatchRun] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Continues the interrupted batches, the oldest first."""
        for record in self._store.open_batches():
            if record.status == "cancelling":
                self._begin(record)
            elif record.owner not in self._owners:
                logger.warning(
                    "%s waits: this server does not have the API key that created it. Start one that has the key.",
                    record.id,
                )
            elif record.model != self._endpoints.model or record.endpoint not in self._endpoints.answers:
                logger.warning(
                    "%s waits: it needs a server of the model %s with the endpoint %s.",
                    record.id,
                    record.model,
                    record.endpoint,
                )
            else:
                self._begin(record)

    async def stop(self) -> None:
        """Stops the running batches; they continue after the next start."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def create(self, body: CreateBatchRequest, owner: str) -> dict[str, object]:
        """Creates a batch. Raises NotFound for a missing file, InvalidRequest for one that is no valid input,
        Overloaded, NoRoom.
        """
        if body.endpoint not in self._endpoints.answers:
            known = ", ".join(self._endpoints.answers)
            raise InvalidRequest(f"endpoint: must be one of {known}, got {body.endpoint!r}.", param="endpoint")
        file = self._files.get(body.input_file_id, owner, param="input_file_id")
        if file.purpose != BATCH_INPUT:
            message = f"input_file_id: the purpose of the file must be {BATCH_INPUT!r}, not {file.purpose!r}."
            raise InvalidRequest(message, param="input_file_id")
        if not self._open.has_room(owner, 1):
            raise Overloaded("Too many batches are open already.")
        # Answers are kept even where files have all the room; that must not go on for ever.
        with self._files.arriving(owner) as answers:
            answers.expect(0)
        record = new_record(body, self._endpoints.model, owner, now())
        self._open.take(owner, 1)
        try:
            with self._files.held(file.id), room_for("this batch"):
                await self._store.add(record)
                self._begin(record)
        finally:
            # Until here the place was kept for it; now it has one of its own.
            self._open.give(owner, 1)
        return record.wire()

    def get(self, batch_id: str, owner: str) -> dict[str, object]:
        """Returns the batch. Raises NotFound, also for a batch of another owner."""
        return self._shown(self._owned(batch_id, owner)).wire()

    def list(self, owner: str, *, after: str | None, limit: int) -> dict[str, object]:
        """Returns the batches of one owner, the newest first. Raises InvalidRequest."""
        return page(map(self._shown, self._store.of_owner(owner)), after=after, limit=limit)

    async def cancel(self, batch_id: str, owner: str) -> dict[str, object]:
        """Cancels a batch. Raises NotFound, InvalidRequest for a batch that is over, and NoRoom."""
        record = self._owned(batch_id, owner)
        if record.over:
            raise InvalidRequest(f"{batch_id} is {record.status} and cannot be cancelled.", param="batch_id")
        with room_for("this change"):
            record = await self._store.change(batch_id, lambda known: steps.cancelling(known, now()))
        if record.status == "cancelling":
            if batch_id in self._runs:
                self._runs[batch_id].cancel()
            else:
                # One that waited for another server ends here.
                self._begin(record)
        return self._shown(record).wire()

    def _owned(self, batch_id: str, owner: str) -> BatchRecord:
        record = self._store.get(batch_id)
        if record.owner != owner:
            raise no_batch(batch_id)
        return record

    def _shown(self, record: BatchRecord) -> BatchRecord:
        """Returns the record with the counts of this moment."""
        run = self._runs.get(record.id)
        return record if run is None or run.tally is None else steps.counted(record, run.tally)

    def _begin(self, record: BatchRecord) -> None:
        self._open.take(record.owner, 1)
        answer = self._endpoints.answers.get(record.endpoint, _no_answer)
        run = BatchRun(record.id, self._store, self._files, self._room, answer, self._endpoints.fields)
        self._runs[record.id] = run
        # The lines are their owner's, also those that are asked after another start.
        context = contextvars.copy_context()
        context.run(CALLER.set, Caller(api_key=record.owner))
        task = asyncio.create_task(_see_through(run, record.id), name=record.id, context=context)
        self._tasks.add(task)
        task.add_done_callback(partial(self._ended, record.owner))

    def _ended(self, owner: str, task: asyncio.Task[None]) -> None:
        self._open.give(owner, 1)
        self._tasks.discard(task)
        self._runs.pop(task.get_name(), None)
        error = None if task.cancelled() else task.exception()
        if error is None:
            return
        if isinstance(error, BaseExceptionGroup) and error.split(ServerEnded)[1] is None:
            logger.warning("%s continues after the next start of the server.", task.get_name())
        else:
            logger.error(
                "%s failed. It is tried again after the next start of the server.", task.get_name(), exc_info=error
            )


async def _no_answer(_: dict[str, object]) -> dict[str, object]:
    raise AssertionError("a batch that is cancelled asks nothing")


async def _see_through(run: BatchRun, batch_id: str) -> None:
    """Runs the batch to its end, however often the disk refuses answers. An answer that is on disk is not computed
    again.
    """
    with run.holding_input():
        while True:
            try:
                await run.live()
                return
            except (OSError, RuntimeError, ExceptionGroup) as error:
                if (fault := _disk_fault(error)) is None:
                    raise
                logger.warning(
                    "%s continues in %g s, because the system refused a file or a thread: %s",
                    batch_id,
                    DISK_RETRY_S,
                    fault,
                )
            await asyncio.sleep(DISK_RETRY_S)


def _disk_fault(error: Exception) -> Exception | None:
    """Returns the first of several errors, if the disk, or a lack of files or threads, has caused all of them."""
    group = error if isinstance(error, ExceptionGroup) else ExceptionGroup("", [error])
    faults, others = group.split(
        lambda each: (
            isinstance(each, OSError) or (not isinstance(each, ExceptionGroup) and shortage_in(each) is not None)
        )
    )
    if others is not None:
        return None
    fault: Exception | None = faults
    while isinstance(fault, ExceptionGroup):
        fault = fault.exceptions[0]
    return fault
