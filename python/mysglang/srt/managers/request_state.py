"""One request on the front side: what has arrived for it and was not yet handed to its reader.

An answer is one ReqState; the answers that one caller reads together share an Inbox. What piles up between two reads
becomes one chunk. `Unread` measures what a reader leaves lying. Knows neither sockets nor tokenizing nor HTTP.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from mysglang.srt.errors import Aborted, InvalidRequest, MemoryReleased, Overloaded, ServerEnded
from mysglang.srt.messages import outputs
from mysglang.srt.messages.outputs import Abort, FinishReason, RowLogprobs
from mysglang.srt.messages.packing import ID_BYTES, unpack_ids
from mysglang.srt.messages.requests import LogprobRequest
from mysglang.srt.messages.weights import FIRST_VERSION
from mysglang.srt.utils.awake import AWAKE

UNREAD_BYTES = 1 << 20
"""More than any reader leaves lying that still reads."""
STUCK_S = 1.0
"""A reader is stuck after so long, so that a front that was busy for a moment takes no reader for stuck."""
UNREAD = Abort(
    f"The stream was not read: more than {UNREAD_BYTES >> 20} MiB of log-probabilities or hidden states came since.",
    status=499,
    kind="SlowReader",
)
"""How a stream ends whose reader left too much lying."""
Ints = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Log-probabilities of N positions, one row for each."""

    vals: Floats
    """[N] of the token that is there; NaN for a prompt's first token, which has none."""
    ids: Ints
    """[N] the tokens."""
    top_vals: Floats
    """[N, top_num], largest first; NaN where there are none."""
    top_ids: Ints
    token_ids_vals: Floats
    """[N, number of ids asked for]."""


@dataclass(frozen=True, slots=True)
class LogprobChunk:
    """The log-probabilities that a chunk brings."""

    output: TokenLogprobs
    """Log-probabilities of the chunk's tokens."""
    input: TokenLogprobs | None
    """Log-probabilities of the prompt from `prompt_start` on: in the first chunk, if they were requested."""
    token_ids: Ints
    """The ids asked for: what the columns of `token_ids_vals` mean."""

    @property
    def numbers(self) -> int:
        """Number of log-probabilities in this chunk."""
        sides = (self.output,) if self.input is None else (self.output, self.input)
        return sum(side.vals.size + side.top_vals.size + side.token_ids_vals.size for side in sides)


UNCHANGED = ((FIRST_VERSION, 0),)
"""The versions of weights that never changed."""


class GenerationChunk(msgspec.Struct, frozen=True):
    """The new part of one answer since its last chunk. The counters are totals."""

    index: int
    """Which answer: prompts in order, and each prompt's `n` copies in order."""
    rid: str
    text: str
    """New text; may be empty while a character or a stop string is incomplete."""
    token_bytes: bytes
    """`token_ids` as int32 bytes."""
    finish_reason: FinishReason | None
    """Set in the last chunk of the answer."""
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    retractions: int
    drafts: bytes = b""
    """int32: drafts that were tried, then decode steps by the number of tokens that they gave; empty if none were."""
    logprobs: LogprobChunk | None = None
    """None if not asked for."""
    prompt_bytes: bytes | None = None
    """`prompt_ids` as int32 bytes."""
    vector: Floats | None = None
    """Vector of a request that asked for one, in its only chunk."""
    weight_versions: tuple[tuple[str, int], ...] = UNCHANGED
    """Versions of the weights that computed the answer so far: (name, index of its first token). Several if they
    changed during the answer.
    """
    sequence_score: float | None = None
    """Score of an answer that beam search found, by which it was compared with others."""
    hidden_states: Floats | None = None
    """[n, hidden_size], those that the chunk brings; None if not asked for."""

    # Most readers want the text alone, and an array costs as much as the whole chunk.

    @property
    def token_ids(self) -> Ints:
        """New tokens, including a stop token, whose text is left out."""
        return unpack_ids(self.token_bytes)

    @property
    def with_numbers(self) -> bool:
        """True if the chunk has more than text and tokens."""
        return self.logprobs is not None or self.hidden_states is not None

    @property
    def numbers(self) -> int:
        """Number of log-probabilities and elements of hidden states in the chunk: to write them may take long."""
        hidden = 0 if self.hidden_states is None else self.hidden_states.size
        return hidden if self.logprobs is None else hidden + self.logprobs.numbers

    @property
    def prompt_ids(self) -> Ints | None:
        """The prompt as the model reads it."""
        return None if self.prompt_bytes is None else unpack_ids(self.prompt_bytes)


RowCounters: TypeAlias = tuple[int, int, int, int]
"""A request's counters so far: prompt_tokens, completion_tokens, cached_tokens, retractions."""


class Post:
    """Notifies the readers of one manager that they have news: all together, after the messages of this turn of the
    event loop were handled.
    """

    def __init__(self) -> None:
        self._readers: list[Callable[[], None]] = []

    def notify_soon(self, reader: Callable[[], None]) -> None:
        """Calls `reader` after the other callbacks of this turn of the event loop. It must not raise."""
        if not self._readers:
            asyncio.get_running_loop().call_soon(self._notify)
        self._readers.append(reader)

    def _notify(self) -> None:
        readers, self._readers = self._readers, []
        for reader in readers:
            reader()


class Inbox:
    """The answers that have news for one reader, which waits for them or is called."""

    def __init__(self, post: Post | None = None) -> None:
        self._post = post or Post()
        self.news: deque[ReqState] = deque()
        """States with news; a reader that is called takes them from here, and then asks for the `failure`."""
        self.has_begun = False
        """True if a part of one of the answers has arrived."""
        self.failure: ServerEnded | None = None
        """The error that follows the last news."""
        self._waiting: asyncio.Future[None] | None = None
        self._reader: Callable[[], None] | None = None

    def put(self, state: ReqState) -> None:
        self.news.append(state)
        if self._reader is not None:
            self._post.notify_soon(self._reader)
        else:
            self._ring()

    def fail(self, error: ServerEnded) -> None:
        """Ends the request with an error: its reader gets the remaining states, then this error."""
        self.failure = error
        self._ring()

    async def get(self) -> ReqState:
        """Returns the next state with news. Raises ServerEnded."""
        while (state := self.next()) is None:
            self._waiting = asyncio.get_running_loop().create_future()
            await self._waiting
        return state

    def next(self) -> ReqState | None:
        """Returns the next state with news, or None if there is none. Raises ServerEnded."""
        if self.news:
            return self.news.popleft()
        if self.failure is not None:
            raise self.failure.again()
        return None

    def call_with_news(self, reader: Callable[[], None] | None) -> None:
        """Sets a function to call soon after news arrived; None to remove it."""
        self._reader = reader

    def _ring(self) -> None:
        if self._reader is not None:
            self._post.notify_soon(self._reader)
        elif self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)


class ReqState:
    """One answer that is being generated. Without `stream`, its only chunk is the whole answer."""

    __slots__ = (
        "_counters",
        "_hidden",
        "_ids",
        "_in_inbox",
        "_logprobs",
        "_stream",
        "_text",
        "_unread",
        "_vector",
        "_weight_versions",
        "drafts",
        "finish_reason",
        "hidden_size",
        "inbox",
        "index",
        "is_counted",
        "only_text",
        "priority",
        "prompt_ids",
        "rid",
        "sent",
        "tenant",
        "weight_version",
        "wire_rid",
        "wish",
    )

    def __init__(
        self,
        rid: str,
        wire_rid: str,
        index: int,
        inbox: Inbox,
        *,
        stream: bool,
        tenant: str = "",
        priority: int = 0,
        unread: Unread | None = None,
    ) -> None:
        """`unread` counts the bytes that the reader has not taken yet; None if they are not limited."""
        self.rid = rid
        self.tenant = tenant
        """Key of the share of open answers to which it counts."""
        self.priority = priority
        self.wire_rid = wire_rid
        """Its name between the processes, never used twice: what comes late for an old request meets no new one."""
        self.index = index
        self.sent = False
        """True if it was sent to the scheduler."""
        self.finish_reason: FinishReason | None = None
        self.is_counted = False
        """True if the metrics count its tokens as they come."""
        self.only_text = False
        """True if nothing but its text grows until it ends."""
        self.wish: LogprobRequest | None = None
        self.prompt_ids = b""
        self.hidden_size: int | None = None
        """Size of the hidden states that it asked for; None if it did not."""
        self.inbox = inbox
        """Belongs to the reader; the answers of one call share it."""
        self._stream = stream
        self._unread = unread
        self._in_inbox = False
        self._text: list[str] = []
        self._ids: list[bytes] = []
        self._logprobs: list[RowLogprobs] = []
        self._hidden: list[bytes] = []
        self._counters: RowCounters = (0, 0, 0, 0)
        self.drafts = b""
        """Draft counts of the last message."""
        self._vector: Floats | None = None
        self.weight_version: str | None = None
        """Name of the weights that computed the last tokens."""
        self._weight_versions: tuple[tuple[str, int], ...] = ()

    def add(self, text: str, ids: bytes, counters: RowCounters, finish_reason: FinishReason | None) -> None:
        """Takes the part of a message that is about this request."""
        self._text.append(text)
        self._ids.append(ids)
        self._counters = counters
        self.inbox.has_begun = True
        self.finish_reason = finish_reason
        if not self._in_inbox and (self._stream or finish_reason is not None):
            self._in_inbox = True
            self.inbox.put(self)

    def add_numbers(self, logprobs: RowLogprobs | None, vector: bytes | None = None, hidden: bytes = b"") -> None:
        """Takes the values that few requests ask for, before `add` takes the rest of the same message."""
        if vector is not None:
            self._vector = np.frombuffer(vector, dtype=np.float32)
        if hidden:
            self._hidden.append(hidden)
        if logprobs is not None:
            self._logprobs.append(logprobs)

    def is_neglected(self, grown: int) -> bool:
        """True if its reader has left too much unread, now that the unread part grew by that many bytes."""
        if self._unread is None or self.finish_reason is not None:
            return False
        self._unread.grow(grown)
        return self._unread.too_much

    def note_weights(self, version: str) -> None:
        """Notes that the next tokens of `add` were computed with the weights of that name, and not those before."""
        self.weight_version = version
        self._weight_versions += ((version, self._counters[1]),)

    def finish(self, reason: FinishReason) -> None:
        """Ends the request from the front's side."""
        self.finish_reason = reason
        self._notify()

    def cut_off(self, why: Abort) -> None:
        """Fails the request, and drops the part that its reader has not taken."""
        self._forget()
        self.finish(why)

    def fail(self, error: ServerEnded) -> None:
        """Fails the request with this error, because the engine has ended."""
        self.inbox.fail(error)

    def take(self) -> GenerationChunk:
        """Returns the new part since the last call. Raises Aborted for a request that the engine refused or aborted,
        InvalidRequest if it was refused because of a field, and Overloaded if it was displaced.
        """
        self._in_inbox = False
        if self.finish_reason is not None:
            _raise_refusal(self.finish_reason)
        texts, ids = self._text, self._ids
        chunk = GenerationChunk(
            self.index,
            self.rid,
            texts[0] if len(texts) == 1 else "".join(texts),
            ids[0] if len(ids) == 1 else b"".join(ids),
            self.finish_reason,
            *self._counters,
            drafts=self.drafts,
            logprobs=None if self.wish is None else join_logprobs(self._logprobs, self.wish),
            prompt_bytes=self.prompt_ids,
            vector=self._vector,
            weight_versions=self._weight_versions or UNCHANGED,
            hidden_states=None if self.hidden_size is None else _states(self._hidden, self.hidden_size),
        )
        self._forget()
        return chunk

    def take_text(self) -> tuple[str, bytes]:
        """Does what `take` does for an answer that has `only_text` and goes on. Returns text and tokens, as int32
        bytes.
        """
        self._in_inbox = False
        texts, ids = self._text, self._ids
        if len(texts) == 1:
            return texts.pop(), ids.pop()
        taken = "".join(texts), b"".join(ids)
        texts.clear()
        ids.clear()
        return taken

    def _forget(self) -> None:
        """Drops the new part, after it was taken or refused."""
        self._text.clear()
        self._ids.clear()
        if self._logprobs or self._hidden:
            self._logprobs.clear()
            self._hidden.clear()
            if self._unread is not None:
                self._unread.taken()

    def _notify(self) -> None:
        if not self._in_inbox and (self._stream or self.finish_reason is not None):
            self._in_inbox = True
            self.inbox.put(self)


def _raise_refusal(reason: FinishReason) -> None:
    """Raises the error of a request that was refused or aborted; does nothing for other reasons."""
    match reason:
        case Abort(message=message, status=outputs.FULL):
            raise Overloaded(message)
        case Abort(message=message, status=int(status), kind=outputs.RELEASED):
            raise MemoryReleased(message, status=status)
        case Abort(message=message, status=400, param=str(param)):
            raise InvalidRequest(message, param=param)
        case Abort(message=message, status=int(status), kind=kind, param=param):
            raise Aborted(message, status=status, kind=kind, param=param)


def _states(pieces: list[bytes], hidden_size: int) -> Floats:
    return np.frombuffer(b"".join(pieces), dtype=np.float32).reshape(-1, hidden_size)


def join_logprobs(rows: list[RowLogprobs], wish: LogprobRequest) -> LogprobChunk:
    """Returns the columns of several messages as arrays."""
    asked = unpack_ids(wish.token_ids)
    output = _columns(
        b"".join(row.output_vals for row in rows),
        b"".join(row.output_ids for row in rows),
        b"".join(row.output_top_vals for row in rows),
        b"".join(row.output_top_ids for row in rows),
        b"".join(row.output_token_ids_vals for row in rows),
        wish,
    )
    prompt = next((row for row in rows if row.input_vals), None)
    if prompt is None:
        return LogprobChunk(output, None, asked)
    columns = (prompt.input_vals, prompt.input_ids, prompt.input_top_vals, prompt.input_top_ids)
    return LogprobChunk(output, _columns(*columns, prompt.input_token_ids_vals, wish), asked)


def _columns(
    vals: bytes, ids: bytes, top_vals: bytes, top_ids: bytes, token_ids_vals: bytes, wish: LogprobRequest
) -> TokenLogprobs:
    chosen = np.frombuffer(vals, dtype=np.float32)
    count, asked = len(chosen), len(wish.token_ids) // ID_BYTES
    return TokenLogprobs(
        vals=chosen,
        ids=unpack_ids(ids),
        top_vals=np.frombuffer(top_vals, dtype=np.float32).reshape(count, wish.top_num),
        top_ids=unpack_ids(top_ids).reshape(count, wish.top_num),
        token_ids_vals=np.frombuffer(token_ids_vals, dtype=np.float32).reshape(count, asked),
    )


class Unread:
    """Counts the bytes that have arrived for one answer since its reader last took something.

    A reader over HTTP that is stuck holds as much as the connection may hold (`http_protocol.py`). Further output is
    kept too: text and tokens are small, but log-probabilities and hidden states can be kilobytes for each token.
    """

    __slots__ = ("_bytes", "_clock", "_since")

    def __init__(self, clock: Callable[[], float] = AWAKE.now) -> None:
        self._bytes = 0
        self._clock = clock
        self._since = 0.0

    def grow(self, size: int) -> None:
        """Counts `size` more bytes that wait for the reader."""
        if not self._bytes:
            self._since = self._clock()
        self._bytes += size

    def taken(self) -> None:
        """Notes that the reader took all bytes."""
        self._bytes = 0

    @property
    def too_much(self) -> bool:
        return self._bytes > UNREAD_BYTES and self._clock() - self._since > STUCK_S


def bytes_of(logprobs: RowLogprobs | None) -> int:
    """Returns the bytes of the output's columns. The prompt's columns are not counted: they come once, so they cannot
    pile up.
    """
    if logprobs is None:
        return 0
    columns = (logprobs.output_vals, logprobs.output_ids, logprobs.output_top_vals, logprobs.output_top_ids)
    return sum(map(len, columns)) + len(logprobs.output_token_ids_vals)
