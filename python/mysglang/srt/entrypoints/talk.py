"""Talk: the chunks of one request told as frames: the stream of every route that generates.

There is one way from chunks to frames, a route's `Teller`. Frames go through a generator like those of any stream;
where the connection has a wire, those between the first and the last go past it, in the turn in which their chunks
come.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Protocol

from mysglang.srt.entrypoints.openai.field_names import own_words
from mysglang.srt.entrypoints.streaming import EventStream
from mysglang.srt.entrypoints.wire import Wire
from mysglang.srt.managers.generation import Generation
from mysglang.srt.managers.request_state import GenerationChunk


class Teller(Protocol):
    """Chunks -> frames, in a route's own shape."""

    def tell(self, chunk: GenerationChunk) -> bytes:
        """What is new; empty if there is nothing to tell yet."""
        ...

    def end(self) -> bytes:
        """What stands behind the last chunk."""
        ...


@dataclass(frozen=True, slots=True)
class Talk:
    """What was asked, and who tells the answer."""

    chunks: AsyncGenerator[GenerationChunk, None]
    teller: Teller
    names: Mapping[str, str]
    """The front's names of fields -> those that the client sent; see `own_words`."""


def talk_stream(begin: Callable[[], Awaitable[Talk]]) -> EventStream:
    """The stream that answers a request. `begin` may take a while, and raise."""
    going = _Going(begin)
    return EventStream(going.frames(), shortcut=going.pour)


class _Going:
    """A talk from its beginning."""

    def __init__(self, begin: Callable[[], Awaitable[Talk]]) -> None:
        self._begin = begin
        self._talk: Talk | None = None

    async def frames(self) -> AsyncGenerator[bytes, None]:
        talk = self._talk = await self._begin()
        tell = talk.teller.tell
        with own_words(talk.names):
            async with aclosing(talk.chunks) as chunks:
                async for chunk in chunks:
                    if frames := tell(chunk):
                        yield frames
        yield talk.teller.end()

    async def pour(self, wire: Wire) -> None:
        """All that is still to come of the chunks. Where they come through other hands, that is left to `frames`."""
        talk = self._talk
        assert talk is not None, "there was a first frame"
        if isinstance(talk.chunks, Generation):
            with own_words(talk.names):
                await talk.chunks.pour(_ToWire(talk.teller.tell, wire))


class _ToWire:
    """An Outlet: each chunk leaves as its frames."""

    def __init__(self, tell: Callable[[GenerationChunk], bytes], wire: Wire) -> None:
        self._tell = tell
        self._wire = wire

    @property
    def has_room(self) -> bool:
        return self._wire.has_room

    def take(self, chunk: GenerationChunk) -> None:
        self._wire.write_piece(self._tell(chunk))

    def call_when_room(self, call: Callable[[], None] | None) -> None:
        self._wire.call_when_room(call)
