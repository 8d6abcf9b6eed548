"""BatchRun: one batch from its input to its files, continued from any point.

Every line is asked of the same object that serves its route. What a line raises is that line's answer; what ends the
server ends the run, which goes on after the next start: nothing of it is lost but lines in the midst of being answered.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TypeVar

from mysglang.srt.entrypoints.error_responses import describe
from mysglang.srt.entrypoints.openai import batches_record as steps
from mysglang.srt.entrypoints.openai.batch_endpoints import Answer
from mysglang.srt.entrypoints.openai.batches_input import (
    MAX_FAULTS,
    InputLine,
    InputLines,
    InputRefused,
    read_input,
    read_request,
)
from mysglang.srt.entrypoints.openai.batches_journal import Journal
from mysglang.srt.entrypoints.openai.batches_record import BatchFault, BatchRecord, Ending, Tally
from mysglang.srt.entrypoints.openai.batches_room import Room
from mysglang.srt.entrypoints.openai.batches_store import BatchStore
from mysglang.srt.entrypoints.openai.files_record import BATCH_OUTPUT, now
from mysglang.srt.entrypoints.openai.files_store import FileStore, new_file_id
from mysglang.srt.errors import MemoryReleased, NotFound, Overloaded, ServerEnded
from mysglang.srt.messages.generate import REFUSED, FieldReport
from mysglang.srt.utils.shortage import shortage_in

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

RETRY_S = 0.5
"""Until a line that found the queue full, or the memory released, is asked again."""

_WHY_NOT: dict[Ending, str] = {
    "cancelled": "The batch was cancelled before this request was answered.",
    "expired": "The completion window of the batch ended before this request was answered.",
}


class BatchRun:
    """Runs `live`, and again if it raises, from the point that was reached."""

    def __init__(
        self,
        batch_id: str,
        batches: BatchStore,
        files: FileStore,
        room: Room,
        answer: Answer,
        fields: FieldReport = REFUSED,
    ) -> None:
        """`fields` receives unknown fields that are in the lines outside of their bodies."""
        self._id = batch_id
        self._batches = batches
        self._files = files
        self._room = room
        self._answer = answer
        self._fields = fields
        self._journal: Journal | None = None
        self._cancelled = asyncio.Event()

    @property
    def tally(self) -> Tally | None:
        """Counts so far; None before the first line."""
        return None if self._journal is None else self._journal.tally

    def cancel(self) -> None:
        """Sends no further line, and gives up lines that are being answered."""
        self._cancelled.set()

    def holding_input(self) -> AbstractContextManager[None]:
        """Returns a context in which the input cannot be deleted, also between two attempts of `live`."""
        return self._files.held(self._batches.get(self._id).input_file_id)

    async def live(self) -> None:
        """Run to the end, while the input is held. Raises OSError, or an ExceptionGroup around it, if the disk refuses
        a write; an ExceptionGroup around ServerEnded if the engine ends first.
        """
        record = self._batches.get(self._id)
        if record.status == "cancelling":
            self._cancelled.set()
        if record.ending is not None and not await asyncio.to_thread(self._is_whole, record):
            record = await self._batches.change(self._id, steps.reopened)
        if record.ending is None:
            record = await self._work(record)
        if record.ending is not None:
            await self._hand_out(record)

    async def _work(self, record: BatchRecord) -> BatchRecord:
        """Answers the lines that were not answered yet. A batch without a valid input fails."""
        try:
            path = self._files.path(self._files.get(record.input_file_id, record.owner))
            lines = await asyncio.to_thread(read_input, path, record.endpoint, self._fields)
        except InputRefused as refused:
            return await self._fail(refused.faults)
        except NotFound as gone:
            return await self._fail(
                [BatchFault(code="input_file_not_found", message=gone.message, param="input_file_id")]
            )
        await self._batches.change(self._id, lambda known: steps.begun(known, len(lines), now()))
        journal = self._journal = await asyncio.to_thread(self._batches.journal, self._id)
        how: Ending = "cancelled"
        try:
            if not self._cancelled.is_set():
                how = await self._until_end(self._ask_all(journal, path, lines, record.owner), record.expires_at)
            await asyncio.to_thread(_close, journal, how, path, lines)
        except (InputRefused, ExceptionGroup) as error:
            if not (faults := _faults_in(error)):
                raise
            return await self._fail(faults)
        return await self._end(journal, how)

    async def _fail(self, faults: list[BatchFault]) -> BatchRecord:
        """Fails the batch because its input was damaged. Existing answers are delivered nevertheless."""
        journal = await asyncio.to_thread(self._batches.journal, self._id)
        if not journal.answered:
            return await self._batches.change(self._id, lambda known: steps.failed(known, faults, now()))
        await self._batches.change(self._id, lambda known: steps.blamed(known, faults))
        return await self._end(journal, "failed")

    def _is_whole(self, record: BatchRecord) -> bool:
        """True if all answers are still on disk. Blocks. Files that the client already has are not checked again."""
        handed_out = (record.output_file_id, record.error_file_id)
        if record.tally is None or any(name is not None and self._files.is_there(name) for name in handed_out):
            return True
        tally = self._batches.journal(self._id).tally
        return (tally.completed, tally.failed) == (record.tally.completed, record.tally.failed)

    async def _end(self, journal: Journal, how: Ending) -> BatchRecord:
        tally = journal.tally
        output = new_file_id() if tally.completed else None
        errors = new_file_id() if tally.failed else None
        await asyncio.to_thread(journal.sync)
        return await self._batches.change(
            self._id, lambda known: steps.ending(known, how, tally, output, errors, now())
        )

    async def _until_end(self, work: Awaitable[None], deadline: int) -> Ending:
        """Waits until `work` has ended, for any reason."""
        asking = asyncio.ensure_future(work)
        stopping = asyncio.create_task(self._cancelled.wait())
        try:
            seconds = max(0.0, deadline - time.time())
            await asyncio.wait((asking, stopping), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            if asking.done():
                asking.result()
                return "completed"
            return "cancelled" if stopping.done() else "expired"
        finally:
            asking.cancel()
            stopping.cancel()
            await asyncio.gather(asking, stopping, return_exceptions=True)

    async def _ask_all(self, journal: Journal, path: Path, lines: InputLines, owner: str) -> None:
        async with asyncio.TaskGroup() as group:
            for line in lines:
                if line.name in journal.answered:
                    continue
                await self._room.enter(owner)
                asked = group.create_task(self._ask(journal, path, line))
                # Not in the task itself: a task that is cancelled before its first step runs none of its code.
                asked.add_done_callback(lambda _: self._room.leave(owner))

    async def _ask(self, journal: Journal, path: Path, line: InputLine) -> None:
        """Answers one line, and records the result. Raises InputRefused if the line is not there any more."""
        name = f"req_{uuid.uuid4().hex}"
        custom_id, body = await _when_possible(lambda: asyncio.to_thread(read_request, path, line))
        try:
            answer = await _when_possible(lambda: self._answer(body))
        except ServerEnded:
            raise
        except Exception as error:
            # Any failure of a line becomes its answer here, as at the edge of HTTP.
            facts = describe(error)
            if facts.status == 500:
                logger.exception(
                    "Line %d of %s failed. The error file has it with status 500; the batch continues.",
                    line.number,
                    self._id,
                )
            response = {"status_code": facts.status, "request_id": name, "body": {"error": facts.fields(name)}}
            entry = {"custom_id": custom_id, "response": response, "error": None, "line": line.number}
            journal.add(entry, good=False)
        else:
            response = {"status_code": 200, "request_id": name, "body": answer}
            journal.add({"custom_id": custom_id, "response": response, "error": None}, good=True)

    async def _hand_out(self, record: BatchRecord) -> None:
        """Turns the journal into files of the client. If it was interrupted by a crash, it does what is left."""
        output, errors = self._batches.journal_paths(self._id)
        for path, file_id, kind in ((output, record.output_file_id, "output"), (errors, record.error_file_id, "error")):
            if file_id is not None:
                if not self._files.is_there(file_id) and not path.exists():
                    logger.warning(
                        "The journal of the %s file of %s is gone, so the client gets an empty file.", kind, self._id
                    )
                    path.touch()
                name = f"{record.id}_{kind}.jsonl"
                life_s = record.output_life_s
                await self._files.adopt(
                    path, file_id, owner=record.owner, name=name, purpose=BATCH_OUTPUT, life_s=life_s
                )
        await self._batches.change(self._id, lambda known: steps.ended(known, now()))


def _faults_in(error: Exception) -> list[BatchFault]:
    """Returns the faults of lines that were found damaged when they were to be asked; empty for other errors."""
    if isinstance(error, ExceptionGroup):
        return [fault for each in error.exceptions for fault in _faults_in(each)][:MAX_FAULTS]
    return error.faults if isinstance(error, InputRefused) else []


async def _when_possible(work: Callable[[], Awaitable[Result]]) -> Result:
    """Returns the result of `work`, which is retried while the queue is full, the memory of the engine is released, or
    the system has no file or thread to spare.
    """
    while True:
        try:
            return await work()
        except (Overloaded, MemoryReleased):
            pass
        except (OSError, RuntimeError) as error:
            if shortage_in(error) is None:
                raise
        await asyncio.sleep(RETRY_S)


def _close(journal: Journal, how: Ending, path: Path, lines: InputLines) -> None:
    """Records, for each line that was not answered, why."""
    if len(journal.answered) == len(lines):
        return
    for line in lines:
        if line.name not in journal.answered:
            custom_id, _ = read_request(path, line)
            error = {"code": f"batch_{how}", "message": _WHY_NOT[how]}
            entry = {"custom_id": custom_id, "response": None, "error": error, "line": line.number}
            journal.add(entry, good=False)
