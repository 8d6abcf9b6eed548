"""ControlClient: ask the scheduler something, await its reply. Knows no request and no route."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeAlias, TypeVar

from mysglang.srt.errors import Aborted, ServerEnded
from mysglang.srt.messages.channels import Sender
from mysglang.srt.messages.codec import ToScheduler
from mysglang.srt.messages.control import (
    Command,
    ControlReqOutput,
    FlushCacheReqInput,
    FlushCacheReqOutput,
    GetInternalStateReq,
    GetInternalStateReqOutput,
)
from mysglang.srt.utils.awake import awake_timeout

REPLY_TIMEOUT_S = 10.0
"""A scheduler reads its messages between two steps; the longest step is far shorter."""

Question: TypeAlias = FlushCacheReqInput | GetInternalStateReq | Command
Reply: TypeAlias = FlushCacheReqOutput | GetInternalStateReqOutput | ControlReqOutput
Kind = TypeVar("Kind", FlushCacheReqOutput, GetInternalStateReqOutput, ControlReqOutput)


class ControlClient:
    """Matches replies with the questions that wait for them, by id."""

    def __init__(
        self,
        to_scheduler: Sender[ToScheduler],
        timeout_s: float = REPLY_TIMEOUT_S,
        *,
        front: int = 0,
        num_fronts: int = 1,
    ) -> None:
        """A question's number tells which of `num_fronts` asked it, by what is left of a division."""
        self._to_scheduler = to_scheduler
        self._timeout_s = timeout_s
        self._waiting: dict[int, asyncio.Future[Reply]] = {}
        self._last_id = front
        self._num_fronts = num_fronts

    async def flush_cache(self) -> FlushCacheReqOutput:
        """Empty the prefix cache. Raises Aborted (503) if no reply comes, ServerEnded."""
        return await self._ask(lambda number: FlushCacheReqInput(id=number), FlushCacheReqOutput)

    async def get_internal_state(self) -> GetInternalStateReqOutput:
        """What the scheduler holds. Raises likewise."""
        return await self._ask(lambda number: GetInternalStateReq(id=number), GetInternalStateReqOutput)

    async def command(self, make: Callable[[int], Command], *, patience_s: float | None = None) -> ControlReqOutput:
        """Have the command carried out that `make` gives its number, within `patience_s` seconds if it is one that
        takes long. Raises likewise.
        """
        return await self._ask(make, ControlReqOutput, patience_s)

    @property
    def num_waiting(self) -> int:
        """Questions that were not answered yet."""
        return len(self._waiting)

    def answer(self, reply: Reply) -> None:
        """A reply arrived. One that nobody waits for any more is dropped."""
        waiting = self._waiting.get(reply.id)
        if waiting is not None and not waiting.done():
            waiting.set_result(reply)

    def fail_all(self, error: ServerEnded) -> None:
        """No reply will come any more."""
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(error.again())

    async def _ask(
        self, question: Callable[[int], Question], kind: type[Kind], patience_s: float | None = None
    ) -> Kind:
        timeout_s = self._timeout_s if patience_s is None else patience_s
        self._last_id += self._num_fronts
        number = self._last_id
        future = self._waiting[number] = asyncio.get_running_loop().create_future()
        try:
            self._to_scheduler.send(question(number))
            async with awake_timeout(timeout_s):
                reply = await future
        except TimeoutError:
            raise Aborted(f"The scheduler did not answer within {timeout_s:g} s.", status=503) from None
        finally:
            del self._waiting[number]
        assert isinstance(reply, kind), f"{type(reply).__name__} in answer to question {number}"
        return reply
