"""Sessions: requests that go on where an earlier one of the same session ended; a client sends only what is new.

A session remembers the token ids of its finished requests by their names, as a tree: each continues another one, or
starts a new conversation. A streaming session is a line instead: each request goes on from the one before, one at a
time, and only the last is remembered. Nothing is held in the engine: what a session says again is found in the prefix
cache while it is there, and computed again if not. A session's requests say where it goes on (`tail_end`), so that the
cache keeps the page that a turn has begun for the next one. Knows no route.

All sessions share one room, and so do API keys. When it is full, the key that has most of it loses the session that it
used longest ago.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field

import msgspec

from mysglang.srt.entrypoints.front import Manager
from mysglang.srt.errors import InvalidRequest, Overloaded
from mysglang.srt.managers.caller import CALLER
from mysglang.srt.managers.request_state import GenerationChunk
from mysglang.srt.messages.generate import GenerateReqInput, SessionParams
from mysglang.srt.messages.outputs import Abort
from mysglang.srt.messages.packing import ID_BYTES, pack_ids, unpack_ids
from mysglang.srt.utils.awake import AWAKE
from mysglang.srt.utils.shared_room import SharedRoom

MAX_SESSIONS = 4096
MAX_BYTES = 512 << 20
"""Bytes that all sessions together may remember."""
MAX_REQUESTS = 1024
"""Remembered of one session; the oldest are forgotten."""
MAX_ID_LENGTH = 256
TURN_BYTES = 1 << 10
"""Bytes of a remembered request in addition to its ids, including its name."""


@dataclass(frozen=True, slots=True)
class _Turn:
    """A finished request of a session. Its tokens are int32 bytes."""

    prompt: bytes
    output: bytes
    parent: str | None

    @property
    def num_computed(self) -> int:
        """Tokens whose keys and values the engine had: all except the last."""
        return (len(self.prompt) + len(self.output)) // ID_BYTES - 1

    @property
    def nbytes(self) -> int:
        return len(self.prompt) + len(self.output) + TURN_BYTES


@dataclass(frozen=True, slots=True)
class _Start:
    """The tokens that a new prompt continues."""

    ids: list[int]
    num_computed: int
    """Tokens of the request gone on from that the engine has computed; `ids` may be fewer."""


@dataclass(slots=True)
class _Session:
    name: tuple[str, str]
    """The API key that opened it, and its id."""
    idle_s: float | None
    """Seconds without a request after which it may be forgotten."""
    used: float
    streaming: bool = False
    turn: object = None
    """The open request of a streaming session; None if there is none."""
    turns: dict[str, _Turn] = field(default_factory=dict)
    counted: int = 0
    """Bytes of the room that are counted as its own."""

    @property
    def owner(self) -> str:
        return self.name[0]

    def forget_after(self, rid: str) -> None:
        """Removes every turn that continues the request `rid`, directly or through other turns."""
        gone = [rid]
        while gone:
            parent = gone.pop()
            children = [name for name, turn in self.turns.items() if turn.parent == parent]
            for child in children:
                del self.turns[child]
            gone += children


class Sessions:
    """Serves sessions: generates as the manager does, and resolves `session_params`."""

    def __init__(self, manager: Manager, num_keys: int = 1, clock: Callable[[], float] = AWAKE.now) -> None:
        """`num_keys`: the number of API keys that share the space for sessions."""
        self._manager = manager
        self._clock = clock
        self._number = SharedRoom(MAX_SESSIONS, num_keys)
        self._bytes = SharedRoom(MAX_BYTES)
        self._sessions: dict[tuple[str, str], _Session] = {}
        """Sessions by API key and id: with several API keys, a client cannot continue another's session. The most
        recently used session is last.
        """

    def open(self, session_id: str | None = None, idle_s: float | None = None, *, streaming: bool = False) -> str:
        """Opens a session, and returns its id. Raises InvalidRequest for an id that is taken, Overloaded if there are
        too many.
        """
        self._expire()
        name = uuid.uuid4().hex if session_id is None else session_id
        if not 0 < len(name) <= MAX_ID_LENGTH:
            raise InvalidRequest(f"session_id must have 1 to {MAX_ID_LENGTH} characters.", param="session_id")
        if _owned(name) in self._sessions:
            raise InvalidRequest(f"session_id {name!r} is open already.", param="session_id")
        owner = CALLER.get().api_key
        if not self._number.has_room(owner, 1):
            raise Overloaded("Too many sessions are open; close some, or open them with a timeout.")
        self._number.take(owner, 1)
        self._sessions[_owned(name)] = _Session(_owned(name), idle_s, self._clock(), streaming)
        return name

    def close(self, session_id: str) -> None:
        """Closes a session; an unknown id is no error. Its open requests continue."""
        self._forget(_owned(session_id))

    def generate_request(self, obj: GenerateReqInput) -> AsyncGenerator[GenerationChunk, None]:
        """Does what the manager's `generate_request` does; with `session_params`, the prompt is appended to the tokens
        that they refer to.
        """
        if obj.session_params is None:
            return self._manager.generate_request(obj)
        return self._go_on(obj, obj.session_params)

    async def _go_on(self, obj: GenerateReqInput, params: SessionParams) -> AsyncGenerator[GenerationChunk, None]:
        _check_single(obj)
        session = self._find(params.id)
        if not session.streaming:
            chunks = self._behind(obj, session, _before(session, params), params.rid)
        else:
            _check_only_appends(session, params)
            chunks = self._in_line(obj, session)
        async with contextlib.aclosing(chunks):
            async for chunk in chunks:
                yield chunk

    async def _in_line(self, obj: GenerateReqInput, session: _Session) -> AsyncGenerator[GenerationChunk, None]:
        """Answers one more turn of a streaming session. A turn that does not finish leaves the session unchanged."""
        turn = session.turn = object()
        try:
            last = next(iter(session.turns), None)
            before = _before(session, SessionParams(id="", rid=last))
            async with contextlib.aclosing(self._behind(obj, session, before, None)) as chunks:
                async for chunk in chunks:
                    if chunk.finish_reason is not None:
                        # A client that has the last chunk may send the next turn at once.
                        session.turn = None
                    yield chunk
        finally:
            if session.turn is turn:
                session.turn = None

    async def _behind(
        self, obj: GenerateReqInput, session: _Session, before: _Start, parent: str | None
    ) -> AsyncGenerator[GenerationChunk, None]:
        """Answers the part of the prompt after `before`, and stores the result as a child of `parent`."""
        own = obj.input_ids or []
        if obj.text is not None:
            assert isinstance(obj.text, str)
            own = [*await self._manager.input_tokenizer.encode(obj.text, add_special_tokens=not before.ids)]
        rid = obj.rid if isinstance(obj.rid, str) else uuid.uuid4().hex
        whole = msgspec.structs.replace(
            obj,
            text=None,
            input_ids=[*before.ids, *own],
            rid=rid,
            session_params=None,
            tail_end=before.num_computed,
        )
        output = b""
        async with contextlib.aclosing(self._manager.generate_request(whole)) as chunks:
            async for chunk in chunks:
                output += chunk.token_ids.tobytes()
                if chunk.finish_reason is not None and not isinstance(chunk.finish_reason, Abort):
                    prompt = b"" if chunk.prompt_ids is None else pack_ids(chunk.prompt_ids)
                    _remember(session, rid, _Turn(prompt, output, parent))
                    self._count(session)
                yield chunk

    def _find(self, session_id: str) -> _Session:
        self._expire()
        session = self._sessions.get(_owned(session_id))
        if session is None:
            raise InvalidRequest(f"session_params: no session {session_id!r} is open.", param="session_params")
        session.used = self._clock()
        self._sessions[session.name] = self._sessions.pop(session.name)
        return session

    def _expire(self) -> None:
        now = self._clock()
        late = [
            name
            for name, session in self._sessions.items()
            if session.idle_s is not None and now - session.used > session.idle_s
        ]
        for name in late:
            self._forget(name)

    def _forget(self, name: tuple[str, str]) -> None:
        session = self._sessions.pop(name, None)
        if session is not None:
            self._number.give(session.owner, 1)
            self._bytes.give(session.owner, session.counted)

    def _count(self, session: _Session) -> None:
        """Counts again what the session stores. If that exceeds the limit, drops other sessions of the key that has
        most, or the oldest requests of this session if it is the only one.
        """
        if self._sessions.get(session.name) is not session:
            return  # closed in the meantime
        self._recount(session)
        while self._bytes.overfull:
            owner = self._bytes.largest()
            oldest = next(one for one in self._sessions.values() if one.owner == owner and one.counted)
            if oldest is not session:
                self._forget(oldest.name)
            elif len(session.turns) > 1:
                del session.turns[next(iter(session.turns))]
                self._recount(session)
            else:
                break

    def _recount(self, session: _Session) -> None:
        self._bytes.give(session.owner, session.counted)
        session.counted = sum(turn.nbytes for turn in session.turns.values())
        self._bytes.take(session.owner, session.counted)


def _owned(session_id: str) -> tuple[str, str]:
    return CALLER.get().api_key, session_id


def _check_single(obj: GenerateReqInput) -> None:
    several = isinstance(obj.text, list) or any(isinstance(entry, list) for entry in obj.input_ids or [])
    if several or isinstance(obj.sampling_params, list) or obj.sampling_params.n != 1:
        raise InvalidRequest("session_params: only for one prompt with one answer.", param="session_params")
    if obj.input_embeds is not None:
        message = "input_embeds: a session goes on from token ids, which vectors have none of."
        raise InvalidRequest(message, param="input_embeds")
    if obj.text is not None and obj.input_ids is not None:
        raise InvalidRequest("Exactly one of text and input_ids must be given.", param="text")


def _check_only_appends(session: _Session, params: SessionParams) -> None:
    # Its rid says nothing, as in SGLang: there is one request to go on from.
    if params.offset or params.replace or params.drop_previous_output:
        message = "session_params: a streaming session goes on from its last request, without offset or replace."
        raise InvalidRequest(message, param="session_params")
    if session.turn is not None:
        message = "session_params: a request of this streaming session is open; it takes one at a time."
        raise InvalidRequest(message, param="session_params")


def _before(session: _Session, params: SessionParams) -> _Start:
    """Returns the tokens that the new prompt continues."""
    if params.rid is None:
        if params.replace:
            session.turns.clear()
        return _Start([], 0)
    turn = session.turns.get(params.rid)
    if turn is None:
        message = f"session_params: the session has no finished request {params.rid!r}."
        raise InvalidRequest(message, param="session_params")
    if params.replace:
        session.forget_after(params.rid)
    ids = unpack_ids(turn.prompt if params.drop_previous_output else turn.prompt + turn.output)
    if params.offset and not -len(ids) <= params.offset <= len(ids):
        message = f"session_params: offset must be between -{len(ids)} and {len(ids)}, got {params.offset}."
        raise InvalidRequest(message, param="session_params")
    return _Start(ids[: params.offset or None].tolist(), turn.num_computed)


def _remember(session: _Session, rid: str, turn: _Turn) -> None:
    if session.streaming:
        session.turns.clear()
    session.turns[rid] = turn
    while len(session.turns) > MAX_REQUESTS:
        del session.turns[next(iter(session.turns))]
