"""Beam search: the most likely whole answers, found by continuing several beginnings in parallel.

The engine has no code for it. In every round, each open beam is a request for one more token and the most likely tokens
at its place. The prefix cache finds the prompt and the tokens that beams share. Knows no sockets: the desk that
answers the rounds is a parameter.
"""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from itertools import chain
from typing import Protocol

import msgspec
import numpy as np

from mysglang.srt.errors import Aborted, InvalidRequest
from mysglang.srt.managers.caller import CALLER
from mysglang.srt.managers.generation import Call, CallDesk, Generation
from mysglang.srt.managers.input_tokenizer import FrontLimits, InputTokenizer
from mysglang.srt.managers.places import Newcomer
from mysglang.srt.managers.request_state import UNCHANGED, GenerationChunk, Inbox, LogprobChunk, Post, ReqState
from mysglang.srt.managers.unfold import MAX_TOP_LOGPROBS, Unfolded
from mysglang.srt.messages.generate import GenerateReqInput
from mysglang.srt.messages.outputs import Abort, FinishReason, Length, Stop, ran_too_long
from mysglang.srt.messages.packing import pack_ids, unpack_ids
from mysglang.srt.messages.requests import AbortReq, TokenizedGenerateReqInput
from mysglang.srt.sampling.sampling_params import FIELDS, SamplingParams
from mysglang.srt.utils.awake import AWAKE
from mysglang.srt.utils.words import counted

_IMPOSSIBLE = tuple(each.name for each in FIELDS if not each.facts.with_beams)
"""Parameters that need an answer of one request."""

_NOT_BESIDE = (
    "return_logprob",
    "return_hidden_states",
    "custom_logit_processor",
    "max_thinking_tokens",
    "input_embeds",
)
"""Fields that do so too."""


@dataclass(frozen=True, slots=True)
class Beam:
    """A partial or complete answer of a beam search."""

    ids: tuple[int, ...]
    logprob: float
    """Sum of its tokens' log-probabilities, in nats."""
    finish: FinishReason | None = None


@dataclass(slots=True)
class Search:
    """The beams of one prompt, as transformers' beam search keeps them (`early_stopping` false).

    Each step considers the best `wanted` continuations of all open beams. A continuation that ends, and is among the
    best `width`, is kept if it is also among the best `width` complete answers so far. The best `width` continuations
    that do not end become the open beams. The score of a complete answer is its log-probability divided by its length
    to the power of `length_penalty`. The search ends when there are `width` complete answers and no open beam, scored
    at its present length, is better than the worst of them.
    """

    width: int
    max_new: int
    min_new: int
    length_penalty: float
    stop_ids: frozenset[int]
    open: list[Beam] = field(default_factory=lambda: [Beam((), 0.0)])
    whole: list[Beam] = field(default_factory=list)

    @property
    def wanted(self) -> int:
        """Number of continuations that must be known for each beam, so that `width` of them do not end."""
        return max(2, 1 + len(self.stop_ids)) * self.width

    @property
    def done(self) -> bool:
        if not self.open:
            return True
        return len(self.whole) == self.width and self.score(self.open[0]) <= self.score(self.whole[-1])

    def advance(self, likeliest: Sequence[Sequence[tuple[int, float]]]) -> None:
        """Extends all beams by one token. likeliest: for each open beam, the `wanted` likeliest next tokens and their
        logprobs.
        """
        grown = [
            Beam((*beam.ids, token), beam.logprob + logprob)
            for beam, tokens in zip(self.open, likeliest, strict=True)
            for token, logprob in tokens
        ]
        grown = sorted(grown, key=lambda beam: -beam.logprob)[: self.wanted]
        ended = [(rank, beam, reason) for rank, beam in enumerate(grown) if (reason := self._end(beam)) is not None]
        for rank, beam, reason in ended:
            long_enough = isinstance(reason, Length) or len(beam.ids) > self.min_new
            if rank < self.width and long_enough:
                self.whole.append(Beam(beam.ids, beam.logprob, reason))
        over = {rank for rank, _, _ in ended}
        self.open = [beam for rank, beam in enumerate(grown) if rank not in over][: self.width]
        if not (self.open or self.whole):
            # Only tokens that end an answer are allowed. An answer that is too short is better than none.
            self.whole = [Beam(beam.ids, beam.logprob, reason) for _, beam, reason in ended]
        self.whole = sorted(self.whole, key=lambda beam: -self.score(beam))[: self.width]

    def best(self, count: int, aborted: Abort | None = None) -> list[Beam]:
        """Returns the `count` best answers, best first. For an `aborted` search, unfinished answers follow the finished
        ones. If there are fewer answers, for example because few tokens are allowed, the last one is repeated: a client
        gets as many as it asked for.
        """
        begun = sorted(self.open, key=lambda beam: -self.score(beam)) if aborted is not None else []
        found = [*self.whole, *(Beam(beam.ids, beam.logprob, aborted) for beam in begun)][:count]
        return found + found[-1:] * (count - len(found))

    def score(self, beam: Beam) -> float:
        """Returns the score by which beams are compared; the empty beam has none."""
        return beam.logprob / math.pow(max(len(beam.ids), 1), self.length_penalty)

    def _end(self, beam: Beam) -> FinishReason | None:
        if beam.ids[-1] in self.stop_ids:
            return Stop(beam.ids[-1])
        return Length(len(beam.ids)) if len(beam.ids) == self.max_new else None


class SearchDesk(CallDesk, Protocol):
    """The part of the TokenizerManager that answers searches."""

    def open_search(self, obj: GenerateReqInput, unfolded: Unfolded, names: Collection[str], beams: int) -> OpenSearch:
        """Registers a search under these names, with a place for each beam. Raises InvalidRequest, Overloaded,
        ServerEnded.
        """
        ...

    def close_search(self, search: OpenSearch) -> None:
        """Forgets the search, and frees its places."""
        ...

    async def open_call(self, obj: GenerateReqInput, search: OpenSearch | None = None) -> Call:
        """Does what CallDesk's does; the answers take the places of `search`."""
        ...


@dataclass(slots=True, eq=False)
class OpenSearch:
    """One beam search as its front knows it, from its beginning to its end."""

    owner: str
    """The API key that asks."""
    names: Collection[str]
    """Names that the client knows: those of the request, and of its answers."""
    places: Sequence[ReqState]
    """A place in the queue for each beam. The search keeps them between its rounds, or newcomers would end it."""
    states: Sequence[ReqState] = ()
    """The answers of its newest round."""
    aborted: Abort | None = None
    """Why no more rounds begin."""


class Searches:
    """The beam searches of one front.

    Between two rounds, and before the first one, the engine has no request of a search. So an abort finds it here, and
    its names and its places in the queue are kept here.
    """

    def __init__(self) -> None:
        self._open: list[OpenSearch] = []

    def open(self, names: Collection[str], newcomer: Newcomer, beams: int) -> OpenSearch:
        """Registers a search of the present caller under these names."""
        inbox = Inbox(Post())
        inbox.has_begun = True  # so that no other request takes a place from it
        tenant, priority = newcomer.tenant, newcomer.priority
        places = [ReqState("", "", i, inbox, stream=False, tenant=tenant, priority=priority) for i in range(beams)]
        search = OpenSearch(CALLER.get().api_key, names, places)
        self._open.append(search)
        return search

    def close(self, search: OpenSearch) -> None:
        """Forgets the search."""
        self._open.remove(search)

    def taken(self, owner: str, names: Collection[str]) -> list[str]:
        """Returns those of `names` that searches of this API key have."""
        return [name for search in self._open if search.owner == owner for name in names if name in search.names]

    def kept(self, opened: Mapping[str, ReqState]) -> list[ReqState]:
        """Returns the places of all searches, except those that their answers take among `opened`, by wire name."""
        kept: list[ReqState] = []
        for search in self._open:
            kept += search.places[sum(state.wire_rid in opened for state in search.states) :]
        return kept

    def abort(self, rid: str, *, abort_all: bool, scope: str | None) -> int:
        """Marks the search with this name, or all, so that no more rounds begin. Returns how many there are. `scope`:
        the API key whose searches are meant; None: any key's.
        """
        meant = [each for each in self._open if scope in (None, each.owner) and (abort_all or rid in each.names)]
        for search in meant:
            search.aborted = Abort(AbortReq().message)
        return len(meant)


@dataclass(frozen=True, slots=True)
class _Rounds:
    """A CallDesk for the rounds of one search."""

    desk: SearchDesk
    search: OpenSearch

    async def open_call(self, obj: GenerateReqInput) -> Call:
        return await self.desk.open_call(obj, self.search)

    async def send_call(self, obj: GenerateReqInput, call: Call) -> None:
        await self.desk.send_call(obj, call)

    def close_call(self, call: Call) -> None:
        self.desk.close_call(call)


def wants_beams(obj: GenerateReqInput) -> bool:
    """True if any prompt of the request asks for beam search."""
    params = obj.sampling_params
    if isinstance(params, list):
        return any(one.beam_width is not None for one in params)
    return params.beam_width is not None


async def beam_search(
    obj: GenerateReqInput, desk: SearchDesk, coder: InputTokenizer, limits: FrontLimits, max_answers: int
) -> AsyncGenerator[GenerationChunk, None]:
    """Yields the best `n` answers of each prompt, each in one chunk, when all are found.

    `desk` answers the rounds. Raises what it raises, and InvalidRequest.
    """
    alone, count = _alone(obj), _first(obj.sampling_params).n
    unfolded = await coder.unfold(alone, max_answers)
    beams = sum(_checked_width(prompt.params, count) for prompt in unfolded.prompts)
    if beams > max_answers:
        message = (
            f"beam_width: {beams} beams are more than the {counted(max_answers, 'request')} that this server holds."
        )
        raise InvalidRequest(message, param="beam_width")
    rids = [[rid] if count == 1 else [f"{rid}_{rank}" for rank in range(count)] for rid in unfolded.rids]
    names = {unfolded.name, *unfolded.rids, *chain.from_iterable(rids)}
    opened = desk.open_search(obj, unfolded, names, beams)
    try:
        requests = await coder.tokenize(alone, unfolded, unfolded.rids)
        tasks = [_Task(request, _search(request.sampling_params, limits)) for request in requests]
        running = _RunningTime(limits.running_s)
        while opened.aborted is None and (going := [task for task in tasks if not task.search.done]):
            running.check()
            generation = Generation(_Rounds(desk, opened), _round(obj, unfolded.name, going))
            ended = await _advance(going, generation)
            running.begin()
            opened.aborted = ended or opened.aborted
        for i, task in enumerate(tasks):
            for rank, beam in enumerate(task.search.best(count, opened.aborted)):
                yield await task.chunk(beam, i * count + rank, rids[i][rank], coder)
    finally:
        desk.close_search(opened)


class _RunningTime:
    """The time for which a search has run. The scheduler's clock for a request begins again with each round."""

    def __init__(self, limit_s: float | None) -> None:
        """`limit_s`: seconds that a request may run; None: no limit."""
        self._limit_s = math.inf if limit_s is None else limit_s
        self._begun = math.inf

    def begin(self) -> None:
        """Starts the clock, unless it runs already. Waiting for the first round does not count."""
        self._begun = min(self._begun, AWAKE.now())

    def check(self) -> None:
        """Raises Aborted if the time is over."""
        if AWAKE.now() - self._begun >= self._limit_s:
            why = ran_too_long(self._limit_s)
            raise Aborted(why.message, status=why.status, kind=why.kind)


@dataclass(slots=True)
class _Task:
    """One prompt with its beam search."""

    request: TokenizedGenerateReqInput
    search: Search
    cached_tokens: int | None = None
    """Cached tokens of the prompt, in the first round."""
    versions: tuple[tuple[str, int], ...] = ()
    """Versions of the weights, each with the number of tokens that beams had before it. They may change between two
    rounds.
    """

    def learn(self, found: Sequence[GenerationChunk]) -> None:
        """Takes the answers of a round, one for each open beam."""
        if self.cached_tokens is None:
            self.cached_tokens = found[0].cached_tokens
        version, _ = found[-1].weight_versions[-1]
        if not self.versions or self.versions[-1][0] != version:
            self.versions += ((version, len(self.search.open[0].ids)),)
        self.search.advance([_likeliest(chunk.logprobs, self.search.wanted) for chunk in found])

    async def chunk(self, beam: Beam, index: int, rid: str, coder: InputTokenizer) -> GenerationChunk:
        """Returns a beam as the answer that the client receives."""
        prompt, params = unpack_ids(self.request.input_ids), self.request.sampling_params
        return GenerationChunk(
            index=index,
            rid=rid,
            text=await coder.answer_text(_shown(beam, params), params),
            token_bytes=pack_ids(list(beam.ids)),
            finish_reason=beam.finish,
            prompt_tokens=len(prompt),
            completion_tokens=len(beam.ids),
            cached_tokens=self.cached_tokens or 0,
            retractions=0,
            prompt_bytes=self.request.input_ids,
            weight_versions=self._versions_of(beam),
            sequence_score=self.search.score(beam),
        )

    def _versions_of(self, beam: Beam) -> tuple[tuple[str, int], ...]:
        """Returns the versions that computed tokens of this beam."""
        return tuple(pair for pair in self.versions if pair[1] < len(beam.ids)) or UNCHANGED


async def _advance(going: Sequence[_Task], generation: Generation) -> Abort | None:
    """Runs one round of these searches. Returns the reason if it was aborted."""
    found: dict[int, GenerationChunk] = {}
    async with aclosing(generation) as chunks:
        async for chunk in chunks:
            if isinstance(chunk.finish_reason, Abort):
                return chunk.finish_reason
            found[chunk.index] = chunk
    row = 0
    for task in going:
        mine = [found[row + number] for number in range(len(task.search.open))]
        row += len(mine)
        task.learn(mine)
    return None


def _first(params: SamplingParams | list[SamplingParams]) -> SamplingParams:
    return params[0] if isinstance(params, list) else params


def _alone(obj: GenerateReqInput) -> GenerateReqInput:
    """Returns the request, changed to one answer for each prompt."""
    for name in _NOT_BESIDE:
        if (asked := getattr(obj, name)) is not None and asked is not False:
            raise InvalidRequest(f"{name}: not together with beam search.", param=name)
    params = obj.sampling_params
    if isinstance(params, list):
        if any(one.beam_width is None for one in params) or len({one.n for one in params}) > 1:
            raise InvalidRequest("beam_width: all prompts of a batch search for as many answers.", param="beam_width")
        params = [msgspec.structs.replace(one, n=1) for one in params]
    else:
        params = msgspec.structs.replace(params, n=1)
    return msgspec.structs.replace(obj, sampling_params=params, stream=False)


def _checked_width(params: SamplingParams, count: int) -> int:
    """Returns the number of beams. Raises InvalidRequest for parameters that do not fit beam search. `params`:
    verified, `count`: answers that are wanted.
    """
    assert params.beam_width is not None, "all prompts search"
    if not 1 <= count <= params.beam_width:
        raise InvalidRequest(f"n must be between 1 and beam_width ({params.beam_width}), got {count}.", param="n")
    usual = SamplingParams()
    for name in _IMPOSSIBLE:
        if getattr(params, name) != getattr(usual, name):
            raise InvalidRequest(f"{name}: not together with beam search.", param=name)
    return params.beam_width


def _search(params: SamplingParams, limits: FrontLimits) -> Search:
    assert params.beam_width is not None and params.max_new_tokens is not None, "settled"
    eos = () if params.ignore_eos else limits.eos_token_ids
    search = Search(
        width=params.beam_width,
        max_new=params.max_new_tokens,
        min_new=params.min_new_tokens,
        length_penalty=params.length_penalty,
        stop_ids=frozenset((*eos, *params.stop_token_ids)),
    )
    if search.max_new == 0:
        search.whole, search.open = [Beam((), 0.0, Length(0))], []
    most = min(MAX_TOP_LOGPROBS, limits.vocab_size)
    if search.wanted > most:
        raise InvalidRequest(
            f"beam_width {search.width} needs the {search.wanted} likeliest tokens of each beam, since "
            f"{len(search.stop_ids)} may end the answer; at most {most} can be reported.",
            param="beam_width",
        )
    return search


def _round(obj: GenerateReqInput, name: str, going: Sequence[_Task]) -> GenerateReqInput:
    """Builds a request for one more token of each open beam, with the id of the client's request."""
    prompts: list[int | list[int]] = []
    params: list[SamplingParams] = []
    wanted: list[int] = []
    for task in going:
        given, prompt = task.request.sampling_params, unpack_ids(task.request.input_ids).tolist()
        one = SamplingParams(
            max_new_tokens=1,
            temperature=0.0,
            ignore_eos=True,
            logit_bias=given.logit_bias,
            allowed_token_ids=given.allowed_token_ids,
        )
        for beam in task.search.open:
            prompts.append([*prompt, *beam.ids])
            params.append(one)
            wanted.append(task.search.wanted)
    return GenerateReqInput(
        input_ids=prompts,
        sampling_params=params,
        rid=name,
        return_logprob=True,
        top_logprobs_num=wanted,
        extra_key=obj.extra_key,
        cache_salt=obj.cache_salt,
        priority=obj.priority,
        routing_key=obj.routing_key,
    )


def _likeliest(found: LogprobChunk | None, count: int) -> list[tuple[int, float]]:
    assert found is not None, "asked for"
    ids, values = found.output.top_ids[0, :count].tolist(), found.output.top_vals[0, :count].tolist()
    return [(token, value) for token, value in zip(ids, values, strict=True) if value > -np.inf]


def _shown(beam: Beam, params: SamplingParams) -> Sequence[int]:
    """Returns the ids of a beam that become text: all but a stop token that the client does not want."""
    return beam.ids[:-1] if isinstance(beam.finish, Stop) and not params.no_stop_trim else beam.ids
