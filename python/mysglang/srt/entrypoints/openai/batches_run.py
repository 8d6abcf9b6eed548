"""BatchRun: one batch from its input to its files, from wherever it was left.

Every line is asked of the same object that serves its route. What a line raises is that line's answer; what ends the
server ends the run, which goes on after the next start: nothing of it is lost but lines in the midst of being answered.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from mysglang.srt.entrypoints.error_responses import describe
from mysglang.srt.entrypoints.openai import batches_record as steps
from mysglang.srt.entrypoints.openai.batches_input import InputLine, InputRefused, read_body, read_input
from mysglang.srt.entrypoints.openai.batches_record import BatchFault, BatchRecord, Ending, Tally
from mysglang.srt.entrypoints.openai.batches_room import Room
from mysglang.srt.entrypoints.openai.batches_store import BatchStore, Journal
from mysglang.srt.entrypoints.openai.files_record import BATCH_OUTPUT, now
from mysglang.srt.entrypoints.openai.files_store import FileStore, new_file_id
from mysglang.srt.errors import NotFound, Overloaded, ServerEnded

logger = logging.getLogger(__name__)

Answer = Callable[[dict[str, object]], Awaitable[dict[str, object]]]
"""What a route does with a body. Raises what `error_responses` knows."""

RETRY_S = 0.5
"""Until a line that found the queue full is asked again."""

_WHY_NOT: dict[Ending, str] = {
    "cancelled": "The batch was cancelled before this request was answered.",
    "expired": "The completion window of the batch ended before this request was answered.",
}


class BatchRun:
    """`live`, and again if that raises: it goes on from wherever it was left."""

    def __init__(self, batch_id: str, batches: BatchStore, files: FileStore, room: Room, answer: Answer) -> None:
        self._id = batch_id
        self._batches = batches
        self._files = files
        self._room = room
        self._answer = answer
        self._journal: Journal | None = None
        self._cancelled = asyncio.Event()

    @property
    def tally(self) -> Tally | None:
        """As far as it has come; None before the first line."""
        return None if self._journal is None else self._journal.tally

    def cancel(self) -> None:
        """Ask nothing more. Lines in the midst of being answered are given up."""
        self._cancelled.set()

    async def live(self) -> None:
        """To the end. Raises OSError, or an ExceptionGroup around it, if the disk takes nothing; an ExceptionGroup
        around ServerEnded if the engine ends first.
        """
        record = self._batches.get(self._id)
        if record.status == "cancelling":
            self._cancelled.set()
        with self._files.held(record.input_file_id):
            if record.ending is None:
                lines = await self._check(record)
                if lines is None:
                    return
                record = await self._answer_all(record, lines)
            await self._hand_out(record)

    async def _check(self, record: BatchRecord) -> list[InputLine] | None:
        """The requests in its input; None if that is not valid, which ends it."""
        try:
            path = self._files.path(self._files.get(record.input_file_id, record.owner))
            lines = await asyncio.to_thread(read_input, path, record.endpoint)
        except InputRefused as refused:
            faults = refused.faults
        except NotFound as gone:
            faults = [BatchFault(code="input_file_not_found", message=gone.message, param="input_file_id")]
        else:
            await self._batches.change(self._id, lambda known: steps.begun(known, len(lines), now()))
            return lines
        await self._batches.change(self._id, lambda known: steps.failed(known, faults, now()))
        return None

    async def _answer_all(self, record: BatchRecord, lines: Sequence[InputLine]) -> BatchRecord:
        journal = self._journal = await asyncio.to_thread(self._batches.journal, self._id)
        path = self._files.path(self._files.get(record.input_file_id, record.owner))
        left = [line for line in lines if line.custom_id not in journal.answered]
        how = await self._until_end(self._ask_all(journal, path, left), record.expires_at)
        await asyncio.to_thread(_close, journal, how, left)
        tally = journal.tally
        output = new_file_id() if tally.completed else None
        errors = new_file_id() if tally.failed else None
        return await self._batches.change(
            self._id, lambda known: steps.ending(known, how, tally, output, errors, now())
        )

    async def _until_end(self, work: Awaitable[None], deadline: int) -> Ending:
        """`work` is over when this returns, whatever ended it."""
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

    async def _ask_all(self, journal: Journal, path: Path, lines: Sequence[InputLine]) -> None:
        async with asyncio.TaskGroup() as group:
            for line in lines:
                await self._room.enter()
                asked = group.create_task(self._ask(journal, path, line))
                # Not in the task itself: one that is cancelled before its first step runs none of its code.
                asked.add_done_callback(lambda _: self._room.leave())

    async def _ask(self, journal: Journal, path: Path, line: InputLine) -> None:
        """Ask one line, and note what came of it."""
        name = f"batch_req_{uuid.uuid4().hex}"
        try:
            body = await asyncio.to_thread(read_body, path, line)
            answer = await self._answer_when_possible(body)
        except ServerEnded:
            raise
        except Exception as error:
            # The edge at which a line's failure, whatever it is, becomes its answer, as at the edge of HTTP.
            facts = describe(error)
            if facts.status == 500:
                logger.exception("line %d of %s failed", line.number, self._id)
            response = {"status_code": facts.status, "request_id": name, "body": {"error": facts.fields(name)}}
            entry = {**_entry(name, line), "response": response, "error": None, "line": line.number}
            journal.add(entry, good=False)
        else:
            response = {"status_code": 200, "request_id": name, "body": answer}
            journal.add({**_entry(name, line), "response": response, "error": None}, good=True)

    async def _answer_when_possible(self, body: dict[str, object]) -> dict[str, object]:
        while True:
            try:
                return await self._answer(body)
            except Overloaded:
                await asyncio.sleep(RETRY_S)

    async def _hand_out(self, record: BatchRecord) -> None:
        """Make the journal files of the client. Begun again after a crash, it does what is left of it."""
        output, errors = self._batches.journal_paths(self._id)
        for path, file_id, kind in ((output, record.output_file_id, "output"), (errors, record.error_file_id, "error")):
            if file_id is not None:
                name = f"{record.id}_{kind}.jsonl"
                life_s = record.output_life_s
                await self._files.adopt(
                    path, file_id, owner=record.owner, name=name, purpose=BATCH_OUTPUT, life_s=life_s
                )
        await self._batches.change(self._id, lambda known: steps.ended(known, now()))


def _close(journal: Journal, how: Ending, lines: Sequence[InputLine]) -> None:
    """Say of each line that was not answered why; then all of it is on the disk."""
    for line in lines:
        if line.custom_id not in journal.answered:
            entry = _entry(f"batch_req_{uuid.uuid4().hex}", line)
            error = {"code": f"batch_{how}", "message": _WHY_NOT[how]}
            journal.add({**entry, "response": None, "error": error, "line": line.number}, good=False)
    journal.sync()


def _entry(name: str, line: InputLine) -> dict[str, object]:
    return {"id": name, "custom_id": line.custom_id}
