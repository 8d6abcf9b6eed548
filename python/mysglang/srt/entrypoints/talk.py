"""Talk: turns the chunks of one request into frames, for the stream of every route that generates.

There is one way from chunks to frames, a route's `FrameRenderer`. A reader asks for frames one by one, like those of
any stream. If the connection has a wire (`wire.py`), all but the first and the last are written directly to it, in the
turn of the event loop in which their chunks arrive.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Protocol, Self

import msgspec

from mysglang.srt.entrypoints.openai.field_names import own_words
from mysglang.srt.entrypoints.streaming import EventStream
from mysglang.srt.entrypoints.wire import Wire
from mysglang.srt.managers.generation import FramesOfText, Generation
from mysglang.srt.managers.request_state import GenerationChunk
from mysglang.srt.managers.text_pool import TextPool
from mysglang.srt.utils.json_lines import unbroken

NO_FRAMES_OF_TEXT: FramesOfText = MappingProxyType({})


class FrameRenderer(Protocol):
    """Turns chunks of an answer into frames, in the format of one route."""

    @property
    def frames_of_text(self) -> FramesOfText:
        """Renders chunks that are nothing but new text. Answers that need their whole chunks are not in it."""
        ...

    def numbers(self, chunk: GenerationChunk) -> int:
        """Returns the number of log-probabilities and similar values in the frames of a chunk."""
        ...

    def render(self, chunk: GenerationChunk) -> bytes:
        """Returns the frames for a chunk; empty if there is nothing to send yet."""
        ...

    def end(self) -> bytes:
        """Returns the frames that follow the last chunk."""
        ...


class Talk(msgspec.Struct, frozen=True):
    """A request that is being answered: the chunks of its answer, and the FrameRenderer that turns them into frames."""

    chunks: AsyncGenerator[GenerationChunk, None]
    renderer: FrameRenderer
    names: Mapping[str, str]
    """The front's names of fields -> those that the client sent; see `own_words`."""
    pool: TextPool
    """Pool in which long frames are made."""

    async def render(self, chunk: GenerationChunk) -> bytes:
        """Returns the frames of `chunk`, without keeping others waiting for them."""
        renderer = self.renderer
        if not chunk.with_numbers:
            return renderer.render(chunk)
        return await self.pool.run_if_many(renderer.numbers(chunk), partial(renderer.render, chunk))


def talk_stream(begin: Callable[[], Awaitable[Talk]]) -> EventStream:
    """Returns the stream that answers a request. `begin` may take a while, and raise."""
    stream = _TalkStream(begin)
    return EventStream(stream, shortcut=stream.pour)


class _TalkStream:
    """The frames of one Talk, for a reader that asks for each of them, or pours them to a wire after the first one. It
    is an object and no generator function, which the event loop would have to remember until it ends.
    """

    def __init__(self, begin: Callable[[], Awaitable[Talk]]) -> None:
        self._begin = begin
        self._talk: Talk | None = None
        self._over = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        if self._over:
            raise StopAsyncIteration
        talk = self._talk
        try:
            if talk is None:
                talk = self._talk = await self._begin()
            with own_words(talk.names):
                async for chunk in talk.chunks:
                    if frames := await talk.render(chunk):
                        return frames
        except BaseException:
            await self.aclose()
            raise
        self._over = True
        return talk.renderer.end()

    async def aclose(self) -> None:
        """Ends the request behind the frames, if it has begun and is not complete."""
        self._over = True
        if self._talk is not None:
            await self._talk.chunks.aclose()

    async def pour(self, wire: Wire) -> None:
        """Writes all remaining frames directly to the connection. If the chunks come from another generator, a reader
        asks for their frames.
        """
        talk = self._talk
        assert talk is not None, "there was a first frame"
        if isinstance(talk.chunks, Generation) and not self._over:
            reader = _ToWire(talk, wire)
            with own_words(talk.names):
                await talk.chunks.pour(reader)
            self._over = True
            reader.write(talk.renderer.end())


class _ToWire:
    """An Outlet that writes each chunk as frames to the connection."""

    def __init__(self, talk: Talk, wire: Wire) -> None:
        self._talk = talk
        self._render = talk.renderer.render
        self._wire = wire
        self.frames_of_text = talk.renderer.frames_of_text

    @property
    def has_room(self) -> bool:
        return self._wire.has_room

    def is_long(self, chunk: GenerationChunk) -> bool:
        return self._talk.pool.is_many(self._talk.renderer.numbers(chunk))

    def write(self, frames: bytes) -> None:
        self._wire.write_piece(unbroken(frames))

    def take(self, chunk: GenerationChunk) -> None:
        self.write(self._render(chunk))

    async def take_long(self, chunk: GenerationChunk) -> None:
        self.write(await self._talk.render(chunk))

    def call_when_room(self, call: Callable[[], None] | None) -> None:
        self._wire.call_when_room(call)
