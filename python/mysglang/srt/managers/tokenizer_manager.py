"""TokenizerManager: the life of requests on the front side, between the caller and the scheduler.

A request is opened (named, counted), tokenized, sent, and read chunk by chunk; however its reader ends, the scheduler
is told at once and nothing of it stays. Lives in one event loop; imports no torch. Does not know HTTP.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator, Callable, Collection, Iterable
from dataclasses import asdict, dataclass

import numpy as np

from mysglang.srt.errors import InvalidRequest, Overloaded, ServerEnded
from mysglang.srt.managers.beam_search import OpenSearch, Searches, beam_search, wants_beams
from mysglang.srt.managers.caller import CALLER
from mysglang.srt.managers.control_client import ControlClient
from mysglang.srt.managers.engine_signs import EngineSigns
from mysglang.srt.managers.fronts import Column, FrontHeld, Fronts
from mysglang.srt.managers.generation import Call, Generation
from mysglang.srt.managers.input_tokenizer import FrontLimits, InputTokenizer
from mysglang.srt.managers.places import DISPLACED, FirstComeFirstServed, Newcomer, Places, Precedence
from mysglang.srt.managers.request_state import (
    UNREAD,
    GenerationChunk,
    Inbox,
    Post,
    ReqState,
    RowCounters,
    Unread,
    bytes_of,
)
from mysglang.srt.managers.shares import MAX_LOGPROBS, LogprobRoom, OneForAll, QueueShares
from mysglang.srt.managers.unfold import Unfolded
from mysglang.srt.messages.channels import AsyncReceiver, Sender
from mysglang.srt.messages.codec import ToTokenizer
from mysglang.srt.messages.control import (
    Command,
    ControlReqOutput,
    DetokenizerBeat,
    DrainReq,
    EndReq,
    FlushCacheReqOutput,
    FreezeFrontGcReq,
    FrontBeat,
    FrontOrder,
    GetInternalStateReqOutput,
    HeartBeat,
    PeerAbortReq,
    RequestLogReq,
)
from mysglang.srt.messages.generate import GenerateReqInput
from mysglang.srt.messages.outputs import TIMED_OUT, Abort, BatchStrOutput, Counters, FinishReason, RequestTimes
from mysglang.srt.messages.packing import ID_BYTES, unpack_ids
from mysglang.srt.messages.requests import AbortReq, TokenizedGenerateReqInput, ToScheduler
from mysglang.srt.messages.wire_names import wire_rid
from mysglang.srt.utils.awake import AWAKE
from mysglang.srt.utils.fair_turns import Breather
from mysglang.srt.utils.shared_room import SharedRoom

NO_TEXT = (
    "The served model makes vectors or scores of prompts and generates no text; ask /v1/embeddings or /v1/classify."
)
MAX_PARAMS_BYTES = 1 << 29
"""Limit for the memory that the scheduler may need for the parameters of one front's open answers. Schemas, biases and
the like are copied for each answer, and one short request may ask for thousands.
"""
NO_VECTORS = "The served model generates text; to make vectors with it, serve it with --is-embedding."


@dataclass(slots=True)
class FrontCounters:
    """Counts of answers since the start: accepted = finished + aborted + timed out + open now."""

    accepted: int = 0
    """Sent to the scheduler."""
    finished: int = 0
    aborted: int = 0
    """Ended before their end: by the client, by the scheduler, or with the engine."""
    timed_out: int = 0
    """Ended by the clock: --req-waiting-timeout, --req-running-timeout."""
    refused: int = 0
    """Never sent: invalid, no room in the queue, or given up while still being tokenized."""


class TokenizerManager:
    """Accepts requests and returns the generated chunks. `handle_loop` must run while requests are served."""

    def __init__(
        self,
        input_tokenizer: InputTokenizer,
        limits: FrontLimits,
        to_scheduler: Sender[ToScheduler],
        from_workers: AsyncReceiver[ToTokenizer],
        *,
        max_queued_requests: int | None = None,
        fronts: Fronts | None = None,
        num_detokenizers: int = 1,
        shares: QueueShares | None = None,
        precedence: Precedence | None = None,
        num_keys: int = 1,
        num_ranks: int = 1,
    ) -> None:
        """`max_queued_requests`: how many may be open beyond those that run at once, at all `fronts` together; None for
        no limit. `fronts`: None for a server with one front. `shares`: None if tenants are not distinguished.
        `precedence`: None if open requests keep their places. `num_keys`: API keys that share the room for parameters.
        `num_ranks`: schedulers that compute together.
        """
        self.input_tokenizer = input_tokenizer
        self.limits = limits
        self.counters = FrontCounters()
        self.signs = EngineSigns()
        self.rid_to_state: dict[str, ReqState] = {}
        """Answers that are not complete, by the name they have between the processes."""
        self._named: dict[tuple[str, str], list[ReqState]] = {}
        """Answers by API key and the names that clients know: an answer's own, and its call's. Keys may use the same
        names, and learn nothing of each other's.
        """
        self._to_scheduler = to_scheduler
        self._from_workers = from_workers
        self._shares = OneForAll() if shares is None else shares
        self._fronts = Fronts() if fronts is None else fronts
        self.signs.ranks = dict.fromkeys(range(1, num_ranks), 0.0)
        self._control = ControlClient(
            to_scheduler, front=self._fronts.index, num_fronts=self._fronts.count, num_ranks=num_ranks
        )
        self._beats = [DetokenizerBeat()] * num_detokenizers
        self._beaten_at = [0.0] * num_detokenizers
        self.order_handlers: dict[type[FrontOrder], Callable[[FrontOrder], None]] = {}
        """Handlers of commands from other fronts."""
        queued = sys.maxsize if max_queued_requests is None else max_queued_requests
        most = limits.max_running_requests + queued
        first = FirstComeFirstServed() if precedence is None else precedence
        self._places = Places(self._fronts.board, most, self._shares, first)
        self._searches = Searches()
        self._params_room = SharedRoom(MAX_PARAMS_BYTES, num_keys)
        self._serial = 0
        self._post = Post()
        self._death: ServerEnded | None = None

    @property
    def open_requests(self) -> int:
        """Answers that are not complete, of all fronts."""
        return self._fronts.board.total(Column.OPEN_ANSWERS)

    def generate_request(self, obj: GenerateReqInput) -> AsyncGenerator[GenerationChunk, None]:
        """Yields the chunks of the answers: with `stream` every chunk as it arrives, otherwise one for each answer.

        Closing or cancelling the iterator aborts what is not complete. Raises InvalidRequest, Overloaded, Aborted (the
        scheduler refused or gave up) and ServerEnded, before the first chunk or between two.
        """
        if wants_beams(obj):
            return beam_search(obj, self, self.input_tokenizer, self.limits, self._places.most)
        return Generation(self, obj)

    def abort_request(self, rid: str = "", *, abort_all: bool = False) -> int:
        """Stop working for the answer or the call named `rid`, or for all; returns the number of stopped requests.

        An API key ends its own requests alone; the admin key, and callers in this process, end those of any key. What
        was generated so far is still delivered, with the finish reason abort. 0 if there is no such request here; other
        fronts look for it too.
        """
        scope = CALLER.get().scope
        self._fronts.notify(PeerAbortReq(rid=rid, abort_all=abort_all, scope=scope))
        return self._abort_here(rid, abort_all=abort_all, scope=scope)

    def _abort_here(self, rid: str, *, abort_all: bool, scope: str | None) -> int:
        searches = self._searches.abort(rid, abort_all=abort_all, scope=scope)
        told = [state for state in self._meant(rid, abort_all, scope) if state.finish_reason is None]
        for state in told:
            if state.sent:
                self._to_scheduler.send(AbortReq(rid=state.wire_rid))
            else:
                self._cut_off(state, Abort(AbortReq().message))
        self._publish()
        return len(told) or searches

    def _meant(self, rid: str, abort_all: bool, scope: str | None) -> Collection[ReqState]:
        """Returns the answers that an abort request refers to, each once. `scope` as in PeerAbortReq."""
        if scope is not None and not abort_all:
            return self._named.get((scope, rid), [])
        if scope is None and abort_all:
            return list(self.rid_to_state.values())
        found = [
            states
            for (owner, name), states in self._named.items()
            if scope in (None, owner) and (abort_all or name == rid)
        ]
        return {state.wire_rid: state for states in found for state in states}.values()

    def notify_fronts(self, order: FrontOrder) -> None:
        """Sends `order` to the other fronts of this server, which carry it out."""
        self._fronts.notify(order)

    def held(self) -> FrontHeld:
        """Returns the counts of objects that are held for requests now, by all fronts (except questions) and in the
        detokenizers. Names at other fronts are those of their last change.
        """
        self._publish()
        totals = {name: self._fronts.board.total(Column[name.upper()]) for name in asdict(self.counters)}
        return FrontHeld(
            open_requests=self.open_requests,
            names=self._fronts.board.total(Column.NAMES),
            questions=self._control.num_waiting,
            open_texts=self.signs.open_texts,
            open_texts_known_at=self.signs.last_detokenizer_beat,
            counters=totals,
        )

    async def flush_cache(self) -> FlushCacheReqOutput:
        """Empties the prefix cache, if nothing runs. Raises Aborted (503) if no reply comes, ServerEnded."""
        self._check_alive()
        return await self._control.flush_cache()

    async def get_internal_state(self) -> GetInternalStateReqOutput:
        """Returns the scheduler's internal state. Raises the errors of `ControlClient`."""
        self._check_alive()
        return await self._control.get_internal_state()

    async def command(self, make: Callable[[int], Command], *, patience_s: float | None = None) -> ControlReqOutput:
        """Sends the scheduler the command that `make` builds; returns the reply. Raises ControlClient's errors."""
        self._check_alive()
        return await self._control.command(make, patience_s=patience_s)

    def fail_all(self, error: ServerEnded) -> None:
        """Fails every open answer and every later request with this error, because the engine has ended."""
        self._death = error
        for state in self.rid_to_state.values():
            state.fail(error)
        self._control.fail_all(error)

    async def handle_loop(self) -> None:
        """Handles messages from the detokenizer and the scheduler, in an endless loop."""
        while True:
            for message in await self._from_workers.receive():
                self._handle(message)

    def _handle(self, message: ToTokenizer) -> None:
        match message:
            case BatchStrOutput():
                self._handle_batch_output(message)
            case HeartBeat(rank=rank) if rank:
                self.signs.ranks[rank] = AWAKE.now()
            case HeartBeat():
                self.signs.heartbeat = message
                self.signs.last_heartbeat = AWAKE.now()
            case DetokenizerBeat(detokenizer=index):
                self._beats[index], self._beaten_at[index] = message, AWAKE.now()
                self.signs.last_detokenizer_beat = min(self._beaten_at)
                self.signs.open_texts = sum(beat.open_texts for beat in self._beats)
            case FrontBeat(front=front):
                self.signs.fronts[front] = AWAKE.now()
            case PeerAbortReq(rid=rid, abort_all=abort_all, scope=scope):
                self._abort_here(rid, abort_all=abort_all, scope=scope)
            case DrainReq() | EndReq() | RequestLogReq() | FreezeFrontGcReq():
                self.order_handlers[type(message)](message)
            case reply:
                self._control.answer(reply)

    def open_search(self, obj: GenerateReqInput, unfolded: Unfolded, names: Collection[str], beams: int) -> OpenSearch:
        """Registers a beam search, which aborts find by these names, and gives it a place for each beam. Raises
        InvalidRequest, Overloaded, ServerEnded.
        """
        self._check_alive()
        self._check_names(CALLER.get().api_key, names)
        newcomer = self._newcomer(obj, unfolded)
        self._take_room(beams, newcomer)
        return self._searches.open(names, newcomer, beams)

    def close_search(self, search: OpenSearch) -> None:
        """Forgets the search, and frees its places."""
        self._searches.close(search)
        self._publish()

    async def open_call(self, obj: GenerateReqInput, search: OpenSearch | None = None) -> Call:
        """Gives the answers ids, by which they can be aborted. `search`: whose places they take; None: they need places
        of their own. Raises InvalidRequest, Overloaded, ServerEnded.
        """
        self._check_alive()
        if obj.pool != self.limits.is_embedding:
            raise InvalidRequest(NO_VECTORS if obj.pool else NO_TEXT)
        unfolded = await self.input_tokenizer.unfold(obj, self._places.most)
        self._check_alive()
        caller = CALLER.get()
        owner = caller.api_key
        names = {unfolded.name, *unfolded.rids}
        self._check_names(owner, names, search)
        count = len(unfolded.rids)
        if caller.remote and unfolded.held_bytes:  # a caller in this process uses its own memory
            self._check_params_room(owner, unfolded)
        newcomer = self._newcomer(obj, unfolded)
        if search is None:
            self._take_room(count, newcomer)
        if (elsewhere := self._fronts.names.note(owner, names)) is not None:
            self._publish()
            raise _in_use(elsewhere)
        self._serial += 1
        inbox = Inbox(self._post)
        bounded = obj.stream and caller.remote
        states = []
        for index, rid in enumerate(unfolded.rids):
            # The serial number distinguishes two requests to which a client gives the same name, one after the other.
            wire = wire_rid(rid, self._serial, self._fronts.index)
            unread = Unread() if bounded else None
            state = ReqState(
                rid, wire, index, inbox, stream=obj.stream, tenant=newcomer.tenant, priority=obj.priority, unread=unread
            )
            states.append(state)
            state.is_counted = self._fronts.metrics.opened(wire)
            self.rid_to_state[wire] = state
            self._named[owner, rid] = [state]
        self._named[owner, unfolded.name] = states
        if search is not None:
            search.states = states
        self._fronts.board.write(Column.NAMES, len(self._named))
        self._params_room.take(owner, unfolded.held_bytes)
        return Call(unfolded, inbox, states, count, owner, names)

    def _check_names(self, owner: str, names: Collection[str], search: OpenSearch | None = None) -> None:
        """Raises InvalidRequest if one of these names belongs to an open request; `search` has its own."""
        taken = [name for name in names if (owner, name) in self._named]
        if search is None:
            taken += self._searches.taken(owner, names)
        if taken:
            raise _in_use(min(taken))

    def _check_params_room(self, owner: str, unfolded: Unfolded) -> None:
        """Raises InvalidRequest or Overloaded if the parameters of so many answers take too much memory."""
        size, most = unfolded.held_bytes, MAX_PARAMS_BYTES // 2
        if size > most:
            message = f"sampling_params take {size} bytes, copied for {len(unfolded.rids)} answers; at most {most}."
            raise InvalidRequest(message, param="sampling_params")
        if not self._params_room.has_room(owner, size):
            self.counters.refused += len(unfolded.rids)
            raise Overloaded("The parameters of open requests take too much memory.")

    async def send_call(self, obj: GenerateReqInput, call: Call) -> None:
        """Tokenize the call's prompts, and hand a request for each answer to the scheduler: of a large batch the first
        while others are still to be tokenized. Raises InvalidRequest; what was sent by then is for `close_call` to end.
        """
        states, breather = iter(call.states), Breather()
        # A reader in this process keeps its own memory.
        room = LogprobRoom(call.unfolded, MAX_LOGPROBS if CALLER.get().remote else sys.maxsize)
        job = self.input_tokenizer.job(obj, call.unfolded, [state.wire_rid for state in call.states])
        for piece in job.pieces:
            for request in await self.input_tokenizer.requests(job, piece):
                # A thousand biases take a moment to write.
                if breather.due:
                    await breather.rest()
                state = next(states)
                self._send_one_request(state, room.fit(request, state.index))

    def _send_one_request(self, state: ReqState, request: TokenizedGenerateReqInput) -> None:
        """Sends a request to the scheduler, unless it was aborted before."""
        if state.finish_reason is not None:
            return
        state.wish = request.logprobs
        state.only_text = request.logprobs is None and request.hidden_states is None
        state.prompt_ids = request.input_ids
        state.hidden_size = None if request.hidden_states is None else self.limits.hidden_size
        state.sent = True
        self.counters.accepted += 1
        self._fronts.metrics.sent(state.wire_rid, request)
        self._to_scheduler.send(request)

    def close_call(self, call: Call) -> None:
        """Forget the call, and tell the scheduler to stop what is not complete."""
        for state in call.states:
            del self._named[call.owner, state.rid]
            self._fronts.metrics.ended(state.wire_rid, None)
            if self.rid_to_state.pop(state.wire_rid, None) is None:
                continue
            if not state.sent:
                self.counters.refused += 1
                continue
            self.counters.aborted += 1
            if self._death is None:
                self._to_scheduler.send(AbortReq(rid=state.wire_rid))
        self._params_room.give(call.owner, call.unfolded.held_bytes)
        self._named.pop((call.owner, call.unfolded.name), None)
        self._fronts.names.forget(call.owner, call.names)
        self._publish()

    def _publish(self) -> None:
        """Writes this front's counts to the board, which all fronts read."""
        board, counters = self._fronts.board, self.counters
        board.write(Column.OPEN_ANSWERS, len(self._taking_places()))
        board.write_all(
            Column.ACCEPTED,
            counters.accepted,
            counters.finished,
            counters.aborted,
            counters.timed_out,
            counters.refused,
            len(self._named),
        )

    def _newcomer(self, obj: GenerateReqInput, unfolded: Unfolded) -> Newcomer:
        return Newcomer(self.input_tokenizer.priority_of(obj), self._shares.tenant(obj, unfolded))

    def _taking_places(self) -> Collection[ReqState]:
        """Returns the open answers, and the places that searches keep while they need fewer."""
        kept = self._searches.kept(self.rid_to_state)
        return [*self.rid_to_state.values(), *kept] if kept else self.rid_to_state.values()

    def _take_room(self, count: int, newcomer: Newcomer) -> None:
        """Raises Overloaded if there is no room for so many answers, and no others give up their places."""
        for state in self._places.displaced(count, newcomer, self._taking_places()):
            self._cut_off(state, DISPLACED)
        try:
            self._places.take(count, newcomer, self._taking_places())
        except Overloaded:
            self.counters.refused += count
            self._publish()
            raise

    def _handle_batch_output(self, output: BatchStrOutput) -> None:
        """Passes each row to the state of its request. Rows of requests that are gone are dropped."""
        state_of, grew, finished = self.rid_to_state.get, self._fronts.metrics.grew, output.finished
        token_ids, drafts, weights = output.token_ids, output.drafts, output.weight_version
        has_numbers = bool(output.logprobs or output.vectors or output.hidden_states)
        ends = (np.cumsum(unpack_ids(output.token_counts), dtype=np.int64) * ID_BYTES).tolist()
        rows, start = zip(output.rids, output.texts, ends, _rows(output.counters), strict=True), 0
        for row, (rid, text, end, counters) in enumerate(rows):
            state = state_of(rid)
            if state is not None:
                if state.is_counted:
                    grew(rid, *counters[:3])
                finish_reason = finished.get(row)
                if finish_reason is not None:
                    self._complete(state, finish_reason, output.times.get(row))
                if state.weight_version != weights:
                    state.note_weights(weights)
                if drafts:
                    state.drafts = drafts.get(row, b"")
                grown = _add_numbers(state, output, row) if has_numbers else 0
                state.add(text, token_ids[start:end], counters, finish_reason)
                if grown and state.is_neglected(grown):
                    self._cut_off(state, UNREAD)
                    self._publish()
            start = end
        if finished:
            self._publish()

    def _cut_off(self, state: ReqState, why: Abort) -> None:
        """Ends an answer, wherever it is, and drops the part that its reader has not taken."""
        if state.sent:
            self._to_scheduler.send(AbortReq(rid=state.wire_rid))
            self._complete(state, why)
        else:
            del self.rid_to_state[state.wire_rid]
            self.counters.refused += 1
        state.cut_off(why)

    def _complete(self, state: ReqState, reason: FinishReason, times: RequestTimes | None = None) -> None:
        del self.rid_to_state[state.wire_rid]
        self._fronts.metrics.ended(state.wire_rid, reason, times)
        if isinstance(reason, Abort) and reason.kind == TIMED_OUT:
            self.counters.timed_out += 1
        elif isinstance(reason, Abort):
            self.counters.aborted += 1
        else:
            self.counters.finished += 1

    def _check_alive(self) -> None:
        if self._death is not None:
            raise self._death.again()


def _in_use(name: str) -> InvalidRequest:
    return InvalidRequest(f"Duplicate request ID: rid {name!r} is in use by an open request.", param="rid")


def _add_numbers(state: ReqState, output: BatchStrOutput, row: int) -> int:
    """Adds a row's log-probabilities, vector and hidden states to its request's state. Returns how many bytes of these
    wait for the reader.
    """
    logprobs, hidden = output.logprobs.get(row), output.hidden_states.get(row, b"")
    state.add_numbers(logprobs, output.vectors.get(row), hidden)
    return len(hidden) + bytes_of(logprobs)


def _rows(counters: Counters) -> Iterable[RowCounters]:
    """Yields the counters row by row."""
    columns = (counters.prompt_tokens, counters.completion_tokens, counters.cached_tokens, counters.retractions)
    return zip(*(unpack_ids(column).tolist() for column in columns), strict=True)
