"""Generation: the chunks of one call, for a reader that asks for each one or has them poured into an outlet.

A reader that asks is woken for each chunk: its task resumes through all the code around it. A reader with an outlet is
called in the turn in which chunks arrive, and waits only for the end. Both get the same chunks.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Collection, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, TypeAlias

from mysglang.srt.managers.request_state import GenerationChunk, Inbox, ReqState
from mysglang.srt.managers.unfold import Unfolded
from mysglang.srt.messages.generate import GenerateReqInput
from mysglang.srt.utils.fair_turns import Breather


@dataclass(slots=True)
class Call:
    """The answers that one caller asked for, read through one inbox."""

    unfolded: Unfolded
    inbox: Inbox
    states: list[ReqState]
    open_answers: int
    """Number of answers whose last chunk was not read yet."""
    owner: str
    """The API key that asks; its names are its own."""
    names: Collection[str]
    """Names of the call and of its answers, each once."""

    def take(self, state: ReqState) -> GenerationChunk:
        """Returns the new part of one of its answers. Raises the errors of `ReqState.take`."""
        chunk = state.take()
        if chunk.finish_reason is not None:
            self.open_answers -= 1
        return chunk


class CallDesk(Protocol):
    """The part of the TokenizerManager that answers calls."""

    async def open_call(self, obj: GenerateReqInput) -> Call:
        """Gives the answers their ids, so that they can be aborted from here on."""
        ...

    async def send_call(self, obj: GenerateReqInput, call: Call) -> None:
        """Tokenizes the prompts, and sends all requests to the scheduler."""
        ...

    def close_call(self, call: Call) -> None:
        """Forgets the call, and aborts answers that are not complete."""
        ...


FramesOfText: TypeAlias = Mapping[int, Callable[[str, bytes], bytes]]
"""Answer -> function that makes frames of a new text and its tokens, as int32 bytes."""


class Outlet(Protocol):
    """Destination into which chunks are poured."""

    @property
    def has_room(self) -> bool:
        """True if it accepts more chunks. Otherwise they accumulate, and become one chunk for each answer. Asked once
        before as many chunks as there are answers.
        """
        ...

    @property
    def frames_of_text(self) -> FramesOfText:
        """Makes frames of new text: `write` takes them. Chunks of such an answer need not be made as long as only its
        text grows. `take` takes the chunks of all others.
        """
        ...

    def write(self, frames: bytes) -> None:
        """Takes frames of an answer's text; they may be empty."""
        ...

    def is_long(self, chunk: GenerationChunk) -> bool:
        """True if taking `chunk` at once is too much work; asked only for chunks with numbers."""
        ...

    def take(self, chunk: GenerationChunk) -> None: ...

    async def take_long(self, chunk: GenerationChunk) -> None:
        """Takes a long chunk. No other chunk is sent until this returns."""
        ...

    def call_when_room(self, call: Callable[[], None] | None) -> None:
        """Sets a function to call whenever there is room again; None to remove it."""
        ...


class Generation(AsyncGenerator[GenerationChunk, None]):
    """The chunks of one request, as an async generator. Closing or dropping it aborts its incomplete answers, and so
    does any exception raised in it.
    """

    def __init__(self, desk: CallDesk, obj: GenerateReqInput) -> None:
        self._desk = desk
        self._obj = obj
        self._call: Call | None = None
        self._over = False
        self._breather = Breather()
        self._loop: asyncio.AbstractEventLoop | None = None

    async def __anext__(self) -> GenerationChunk:
        if self._over:
            raise StopAsyncIteration
        try:
            call = self._call or await self._begin()
            if call.open_answers:
                return call.take(await self._next_state(call))
        except BaseException:
            self._end()
            raise
        self._end()
        raise StopAsyncIteration

    async def pour(self, outlet: Outlet) -> None:
        """Sends all chunks that are still to come to `outlet`. Raises the errors of iterating, and those of
        `outlet`.
        """
        if self._over:
            return
        try:
            call = self._call or await self._begin()
            if call.open_answers:
                await _poured(call, outlet)
        finally:
            self._end()

    async def aclose(self) -> None:
        self._end()

    async def asend(self, value: None) -> GenerationChunk:
        return await self.__anext__()

    async def athrow(
        self,
        typ: type[BaseException] | BaseException,
        val: BaseException | object = None,
        tb: TracebackType | None = None,
    ) -> GenerationChunk:
        self._end()
        raise typ

    def __del__(self) -> None:
        if self._call is not None and not self._over and self._loop is not None:
            # Objects may be dropped in any thread, and at the very end.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._desk.close_call, self._call)

    async def _next_state(self, call: Call) -> ReqState:
        """Returns the next state with news. A caller with many ready answers does not block other tasks for all of
        them.
        """
        if (state := call.inbox.next()) is not None:
            await self._breather.rest()
            return state
        state = await call.inbox.get()
        self._breather.rested()
        return state

    async def _begin(self) -> Call:
        self._loop = asyncio.get_running_loop()
        self._call = await self._desk.open_call(self._obj)
        await self._desk.send_call(self._obj, self._call)
        return self._call

    def _end(self) -> None:
        if not self._over and self._call is not None:
            self._desk.close_call(self._call)
        self._over = True


async def _poured(call: Call, outlet: Outlet) -> None:
    """Pours the chunks of `call` until the last one was taken."""
    while (long := await _Pouring(call, outlet).until_long()) is not None:
        await outlet.take_long(long)


class _Pouring:
    """Passes chunks on in the same turn of the event loop in which they arrive; if there are very many, some in later
    turns.
    """

    def __init__(self, call: Call, outlet: Outlet) -> None:
        self._call = call
        self._outlet = outlet
        self._loop = asyncio.get_running_loop()
        self._done: asyncio.Future[GenerationChunk | None] = self._loop.create_future()
        self._resting = False

    async def until_long(self) -> GenerationChunk | None:
        """Sends chunks until one is long work to take, and returns this one; None after the last chunk. Raises the
        errors of the outlet.
        """
        self._outlet.call_when_room(self._hand_over)
        self._call.inbox.call_with_news(self._hand_over)
        try:
            self._hand_over()
            return await self._done
        finally:
            self._call.inbox.call_with_news(None)
            self._outlet.call_when_room(None)

    def _hand_over(self) -> None:
        if self._resting or self._done.done() or not self._outlet.has_room:
            return
        try:
            self._take_all()
        except Exception as error:
            self._done.set_exception(error)

    def _take_all(self) -> None:
        call, outlet = self._call, self._outlet
        news, frames_of_text = call.inbox.news, outlet.frames_of_text
        breather = Breather() if call.open_answers > 1 else None
        while news and call.open_answers:
            state = news.popleft()
            goes_on = state.only_text and state.finish_reason is None
            if goes_on and (frames_of := frames_of_text.get(state.index)) is not None:
                text, token_bytes = state.take_text()
                outlet.write(frames_of(text, token_bytes))
            else:
                chunk = call.take(state)
                if chunk.with_numbers and outlet.is_long(chunk):
                    self._done.set_result(chunk)
                    return
                outlet.take(chunk)
            if breather is not None and breather.due:
                self._resting = True
                self._loop.call_soon(self._go_on)
                return
        if not call.open_answers:
            self._done.set_result(None)
        elif call.inbox.failure is not None:
            raise call.inbox.failure.again()

    def _go_on(self) -> None:
        self._resting = False
        self._hand_over()
