"""ControlClient: ask the scheduler something, await its reply. Knows no request and no route."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias, TypeVar

import msgspec

from mysglang.srt.errors import Aborted, ServerEnded
from mysglang.srt.messages.channels import Sender
from mysglang.srt.messages.control import (
    Command,
    ControlReqOutput,
    FlushCacheReqInput,
    FlushCacheReqOutput,
    GetInternalStateReq,
    GetInternalStateReqOutput,
    Reply,
)
from mysglang.srt.messages.generate import convert_fields
from mysglang.srt.messages.requests import ToScheduler
from mysglang.srt.utils.awake import awake_timeout

REPLY_TIMEOUT_S = 10.0
"""Time limit for a reply. A scheduler reads its messages between two steps, and a step is far shorter than this."""

Question: TypeAlias = FlushCacheReqInput | GetInternalStateReq | Command
Kind = TypeVar("Kind", FlushCacheReqOutput, GetInternalStateReqOutput, ControlReqOutput)


@dataclass(slots=True)
class Waiting:
    """A control request that not all ranks have answered."""

    reply: asyncio.Future[Reply]
    by_rank: dict[int, Reply] = field(default_factory=dict)


class ControlClient:
    """Matches replies with the control requests that wait for them, by id."""

    def __init__(
        self,
        to_scheduler: Sender[ToScheduler],
        timeout_s: float = REPLY_TIMEOUT_S,
        *,
        front: int = 0,
        num_fronts: int = 1,
        num_ranks: int = 1,
    ) -> None:
        """A call's number modulo `num_fronts` is the front that called. Each of `num_ranks` ranks answers it."""
        self._to_scheduler = to_scheduler
        self._timeout_s = timeout_s
        self._waiting: dict[int, Waiting] = {}
        self._num_ranks = num_ranks
        self._last_id = front
        self._num_fronts = num_fronts

    async def flush_cache(self) -> FlushCacheReqOutput:
        """Empties the prefix cache. Raises Aborted (503) if no reply comes, or ServerEnded."""
        return await self._ask(lambda number: FlushCacheReqInput(id=number), FlushCacheReqOutput)

    async def get_internal_state(self) -> GetInternalStateReqOutput:
        """Returns the scheduler's internal state. Raises the errors of `ask`."""
        return await self._ask(lambda number: GetInternalStateReq(id=number), GetInternalStateReqOutput)

    async def command(self, make: Callable[[int], Command], *, patience_s: float | None = None) -> ControlReqOutput:
        """Sends the command that `make` builds from its number, and returns the reply. `patience_s`: how many seconds
        it may take. Raises the errors of `ask`, and InvalidRequest that names a field whose value has a wrong type: the
        scheduler would drop such a message, and no reply would come.
        """

        def checked(number: int) -> Command:
            command = make(number)
            return convert_fields(msgspec.to_builtins(command), type(command), "")

        return await self._ask(checked, ControlReqOutput, patience_s)

    @property
    def num_waiting(self) -> int:
        """Number of calls that were not answered yet."""
        return len(self._waiting)

    def answer(self, reply: Reply) -> None:
        """Takes a rank's reply. A reply that no caller waits for any more is dropped."""
        waiting = self._waiting.get(reply.id)
        if waiting is None or waiting.reply.done():
            return
        waiting.by_rank[reply.rank] = reply
        if len(waiting.by_rank) == self._num_ranks:
            waiting.reply.set_result(_of_all(waiting.by_rank))

    def fail_all(self, error: ServerEnded) -> None:
        """Fails all open calls, because the server ends and no reply will come."""
        for waiting in self._waiting.values():
            if not waiting.reply.done():
                waiting.reply.set_exception(error.again())

    async def _ask(
        self, question: Callable[[int], Question], kind: type[Kind], patience_s: float | None = None
    ) -> Kind:
        timeout_s = self._timeout_s if patience_s is None else patience_s
        self._last_id += self._num_fronts
        number = self._last_id
        waiting = self._waiting[number] = Waiting(asyncio.get_running_loop().create_future())
        try:
            self._to_scheduler.send(question(number))
            async with awake_timeout(timeout_s):
                reply = await waiting.reply
        except TimeoutError:
            raise Aborted(f"The scheduler did not answer within {timeout_s:g} s.", status=503) from None
        finally:
            del self._waiting[number]
        assert isinstance(reply, kind), f"{type(reply).__name__} in answer to question {number}"
        return reply


def _of_all(by_rank: Mapping[int, Reply]) -> Reply:
    """Merges the replies of all ranks into one: the first rank's, or the first refusal that knows its cause."""
    first = by_rank[0]
    if isinstance(first, GetInternalStateReqOutput):
        others = [by_rank[rank] for rank in sorted(by_rank) if rank]
        return msgspec.structs.replace(first, ranks=others) if others else first
    rest = [reply for _, reply in sorted(by_rank.items()) if not isinstance(reply, GetInternalStateReqOutput)]
    refusals = [reply for reply in rest if not reply.success]
    causes = [reply for reply in refusals if not (isinstance(reply, ControlReqOutput) and reply.of_peer)]
    return [*causes, *refusals, first][0]
