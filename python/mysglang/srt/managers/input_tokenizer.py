"""InputTokenizer: prompts as text or ids -> what the scheduler accepts, everything checked that it relies on.

Tokenizing runs in the text pool, a large batch piece by piece. What is wrong with a piece is found before the scheduler
hears of it. Knows the engine's limits, and no socket.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from mysglang.srt.errors import ContextTooLong, InvalidRequest
from mysglang.srt.managers.caller import Caller
from mysglang.srt.managers.processor_choice import ProcessorChoice
from mysglang.srt.managers.prompt_vectors import packed_vectors
from mysglang.srt.managers.text_pool import TextPool
from mysglang.srt.managers.tokenize_job import PIECE_IDS, Job, Piece, Settled, packed_ids, packed_prompts, within
from mysglang.srt.managers.unfold import (
    MAX_KEY_LENGTH,
    Embeds,
    LogprobWish,
    Prompt,
    Unfolded,
    unfold,
    unfolding,
)
from mysglang.srt.messages.generate import GenerateReqInput, HiddenStatesWish
from mysglang.srt.messages.launch import SchedulerFacts
from mysglang.srt.messages.packing import ID_BYTES, pack_ids, unpack_ids
from mysglang.srt.messages.requests import LogprobRequest, TokenizedGenerateReqInput
from mysglang.srt.sampling.drawing import TOP_K_ALL
from mysglang.srt.sampling.sampling_params import SamplingParams
from mysglang.srt.utils.ids import new_id
from mysglang.srt.utils.tokenizer import IDS_PIECE, Tokenizer

MAX_PRIORITY = (1 << 31) - 1

SEED_BITS = 48
"""Bits of a drawn seed: few enough for a client that reads JSON numbers as doubles, with room for `n` copies."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontLimits:
    """Limits of the engine; known once a scheduler is ready."""

    context_len: int
    """Tokens of the longest request that the model allows, output included."""
    max_req_len: int
    """Largest number of tokens of a request in this engine, whose KV cache may be smaller than the context."""
    vocab_size: int
    max_running_requests: int
    """Requests that run at once; more wait."""
    priorities: bool = False
    """True if requests may have a priority."""
    is_embedding: bool = False
    """True if the model makes vectors of prompts, and no text."""
    eos_token_ids: tuple[int, ...] = ()
    hidden_states: bool = False
    """True if requests may ask for hidden states."""
    hidden_size: int = 0
    """Size of a hidden state, and of a token's embedding."""
    dtype: str = "float32"
    """The dtype that the model is computed in."""
    inputs_of_ids: bool = False
    """True if no prompt can be vectors alone, because layers need the ids of its tokens."""
    logit_processors: tuple[str, ...] = ()
    """Names of the logit processors that requests may use."""
    running_s: float | None = None
    """Seconds that a request may run; None: no limit. The scheduler knows that, but not what is one request of several
    rounds."""

    @classmethod
    def from_facts(cls, facts: SchedulerFacts) -> FrontLimits:
        return cls(
            context_len=facts.context_len,
            max_req_len=facts.max_req_input_len + (not facts.is_embedding),
            vocab_size=facts.vocab_size,
            max_running_requests=facts.max_running_requests,
            is_embedding=facts.is_embedding,
            priorities=facts.priorities,
            eos_token_ids=tuple(facts.eos_token_ids),
            hidden_states=facts.hidden_states,
            hidden_size=facts.hidden_size,
            dtype=facts.dtype,
            inputs_of_ids=facts.inputs_of_ids,
            logit_processors=tuple(facts.logit_processors),
            running_s=facts.req_running_timeout,
        )


LONGER = "is longer than the model's context length"


class InputTokenizer:
    """Turns client requests into requests for the scheduler. Without a tokenizer it takes token ids only."""

    def __init__(
        self,
        tokenizer: Tokenizer | None,
        limits: FrontLimits,
        pool: TextPool,
        *,
        seed: int | None = None,
        keeps_keys_apart: bool = False,
        strict_max_tokens: bool = False,
    ) -> None:
        """`seed`: of the seeds drawn for requests that bring none; from the system if None. `keeps_keys_apart`: whether
        callers with different API keys find nothing of each other's in the prefix cache. `strict_max_tokens`: whether
        a max_new_tokens that does not fit behind its prompt is refused; else the answer ends where the context is full.
        """
        self._tokenizer = tokenizer
        self._limits = limits
        self._pool = pool
        self._seeds = random.Random(seed)
        self._keeps_keys_apart = keeps_keys_apart
        self._strict_max_tokens = strict_max_tokens
        self._processors = ProcessorChoice(limits.logit_processors, limits.vocab_size, tokenizer)

    async def unfold(self, obj: GenerateReqInput, max_answers: int) -> Unfolded:
        """Splits `obj` into prompts, in a thread if that is long work. Raises InvalidRequest."""
        return await self._pool.run_if_long(unfolding(obj), lambda: unfold(obj, self._limits.vocab_size, max_answers))

    async def tokenize(
        self, obj: GenerateReqInput, unfolded: Unfolded, rids: Sequence[str]
    ) -> list[TokenizedGenerateReqInput]:
        """Returns a request for each answer, in order, named by `rids`. Raises InvalidRequest."""
        job = self.job(obj, unfolded, rids)
        return [request for piece in job.pieces for request in await self.requests(job, piece)]

    def job(self, obj: GenerateReqInput, unfolded: Unfolded, rids: Sequence[str]) -> Job:
        """Returns the job for tokenizing piece by piece: the first requests of a large batch can be computed while
        others are tokenized.
        """
        return Job(obj, unfolded, rids, [self._seeds.getrandbits(SEED_BITS) for _ in unfolded.prompts])

    async def requests(self, job: Job, piece: Piece) -> list[TokenizedGenerateReqInput]:
        """Returns the requests of the job's next piece. Raises InvalidRequest."""
        if piece.first:
            # Each piece is sent before the next one is made, so that the scheduler can work on it.
            await asyncio.sleep(0)
        if job.obj.input_ids is not None and not job.beside and piece.size <= PIECE_IDS:
            # Ids are Python's work, which gains nothing from a thread and waits for its turn there.
            return self._build(job, piece)
        return await self._pool.run(piece.size + job.beside, lambda: self._build(job, piece))

    async def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Returns the ids of `text`. Raises InvalidRequest."""
        return await self._pool.run(len(text), lambda: self._encode([text], add_special_tokens)[0])

    async def starts(self, text: str) -> list[int]:
        """Returns the character with which each token of `text` begins (`Tokenizer.starts`). Raises InvalidRequest."""
        tokenizer = self._need_tokenizer("text")

        def work() -> list[int]:
            self._check_texts([text], tokenizer.longest_token)
            return tokenizer.starts(text)

        return await self._pool.run(len(text), work)

    async def encode_pairs(self, pairs: Sequence[tuple[str, str]]) -> list[tuple[list[int], int | None]]:
        """Returns the ids of two texts each, put together as the tokenizer does it, and where the second one begins.

        Raises InvalidRequest.
        """
        size = sum(len(first) + len(second) for first, second in pairs)
        return await self._pool.run(size, lambda: self._encode_pairs(pairs))

    async def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Returns the text of `ids`. Raises InvalidRequest for ids outside the vocabulary."""
        tokenizer = self._need_tokenizer("decoding", "input_ids")

        def work() -> str:
            self._checked([ids], "input_ids")
            decoder = tokenizer.incremental_decoder(skip_special_tokens=skip_special_tokens, at_start=True)
            starts = range(0, len(ids), IDS_PIECE)
            return "".join([decoder.feed(ids[start : start + IDS_PIECE]) for start in starts]) + decoder.finish()

        return await self._pool.run(len(ids), work)

    async def answer_text(self, ids: Sequence[int], params: SamplingParams) -> str:
        """Returns the text of an answer's ids, as the detokenizer would write it; empty without a tokenizer."""
        tokenizer = self._tokenizer
        if tokenizer is None:
            return ""

        def work() -> str:
            text = tokenizer.output_text(skip_special_tokens=params.skip_special_tokens)
            return text.feed(ids)[0] + text.finish()

        return await self._pool.run(len(ids), work)

    def _build(self, job: Job, piece: Piece) -> list[TokenizedGenerateReqInput]:
        """Builds the requests for a piece of a job's prompts."""
        obj, unfolded, caller = job.obj, job.unfolded, job.caller
        first, n = piece.first, unfolded.n
        prompts = unfolded.prompts[first : piece.end]
        packed = self._ids(obj, prompts)
        priority, routing_key = self.priority_of(obj), _routing_key(obj, caller)
        namespace, spare = self._namespace(unfolded, caller), 0 if obj.pool else 1
        requests: list[TokenizedGenerateReqInput] = []
        for number, (prompt, ids) in enumerate(zip(prompts, packed, strict=True), first):
            length = len(ids) // ID_BYTES
            settled = self._settled(job, prompt, self._max_new(prompt, length, spare=spare))
            params = self._processors.for_prompt(settled.processor, settled.params, ids)
            wish = _logprob_request(prompt.logprobs, length)
            seed = job.seeds[number] if params.sampling_seed is None else params.sampling_seed
            embeds = self._embeds(prompt.content)
            # No other request shares their pages, but the copies of a prompt, and this one if it is computed again.
            extra_key = f"input_embeds {new_id()}" if embeds else namespace
            for copy in range(n):
                requests.append(
                    TokenizedGenerateReqInput(
                        rid=job.rids[number * n + copy],
                        input_ids=ids,
                        input_embeds=embeds,
                        sampling_params=msgspec.structs.replace(params, sampling_seed=_nth_seed(seed, copy)),
                        bad_words=settled.bad_words,
                        logit_processor=settled.processor,
                        stream=obj.stream,
                        logprobs=wish,
                        hidden_states=self._hidden_states(prompt),
                        extra_key=extra_key,
                        priority=priority,
                        routing_key=routing_key,
                        api_key=caller.api_key,
                        grammar_after=settled.grammar_after,
                        thought_start=settled.thought_start,
                        second_text=None if obj.second_texts is None else obj.second_texts[number],
                        tail_end=obj.tail_end,
                        to_come=len(job.rids) - (number * n + copy) - 1,
                    )
                )
        return requests

    def _settled(self, job: Job, prompt: Prompt, max_new: int) -> Settled:
        """Returns the results that prompts with the same parameters share, computed once for each job."""
        key = (id(prompt.params), max_new, prompt.logit_processor)
        if (known := job.settled.get(key)) is not None:
            return known
        if prompt.params.is_plain and prompt.logit_processor is None and job.obj.max_thinking_tokens is None:
            # As most are: there is nothing to tokenize.
            plain = job.settled[key] = Settled(_one_answer(prompt.params, max_new), [], None, b"", None)
            return plain
        params = self._with_stop_tokens(_one_answer(prompt.params, max_new))
        grammar_after, thought_start = self._thinking(params, job.obj)
        if (bad_words := job.bad_words.get(id(prompt.params))) is None:
            bad_words = job.bad_words[id(prompt.params)] = self._bad_words(params.bad_words)
        processor, custom_params = self._processors.choose(prompt, params, job.obj)
        params = msgspec.structs.replace(params, bad_words=[], custom_params=custom_params)
        settled = job.settled[key] = Settled(params, bad_words, processor, grammar_after, thought_start)
        return settled

    def priority_of(self, obj: GenerateReqInput) -> int:
        """Returns the priority of a request. Raises InvalidRequest."""
        if obj.priority and not self._limits.priorities:
            message = "priority: this server takes requests as they come; start it with --enable-priority-scheduling."
            raise InvalidRequest(message, param="priority")
        if not -MAX_PRIORITY <= obj.priority <= MAX_PRIORITY:
            message = f"priority must be between {-MAX_PRIORITY} and {MAX_PRIORITY}, got {obj.priority}."
            raise InvalidRequest(message, param="priority")
        return obj.priority

    def _hidden_states(self, prompt: Prompt) -> HiddenStatesWish | None:
        if prompt.hidden_states is not None and not self._limits.hidden_states:
            message = "return_hidden_states: start the server with --enable-return-hidden-states."
            raise InvalidRequest(message, param="return_hidden_states")
        return prompt.hidden_states

    def _ids(self, obj: GenerateReqInput, prompts: Sequence[Prompt]) -> list[bytes]:
        """Returns the int32 bytes of each prompt, and checks that all ids are inside the vocabulary."""
        texts = [prompt.content for prompt in prompts if isinstance(prompt.content, str)]
        rows = [prompt.content for prompt in prompts if isinstance(prompt.content, list)]
        for row in rows:
            if len(row) > self._limits.context_len:
                # A prompt that cannot fit is refused before it is packed.
                raise self._too_long(str(len(row)), _field(prompts[0]))
        if not texts and not rows:
            return [bytes(ID_BYTES * len(prompt.content)) for prompt in prompts]
        if texts:
            tokenizer, last = self._need_tokenizer("text"), self._limits.vocab_size - 1
            rows = self._encode(texts, obj.add_special_tokens)
            packed = [packed_ids(ids) for ids in rows]
            # A tokenizer may know more tokens than the model has.
            if tokenizer.largest_id <= last or all(within(unpack_ids(ids), last) for ids in packed):
                return packed
        return self._checked(rows, _field(prompts[0]))

    def _embeds(self, content: str | list[int] | Embeds) -> bytes:
        """Returns the vectors of a prompt that consists of vectors instead of tokens. Raises InvalidRequest if they do
        not fit the model.
        """
        if not isinstance(content, Embeds):
            return b""
        if self._limits.inputs_of_ids:
            message = "input_embeds: the layers of this model have inputs made of token ids, and vectors have no ids."
            raise InvalidRequest(message, param="input_embeds")
        return packed_vectors(content.rows, self._limits.hidden_size, self._limits.dtype)

    def _encode(self, texts: Sequence[str], add_special_tokens: bool) -> list[list[int]]:
        tokenizer = self._need_tokenizer("text")
        self._check_texts(texts, tokenizer.longest_token)
        return tokenizer.encode_batch(texts, add_special_tokens=add_special_tokens)

    def _check_texts(self, texts: Sequence[str], longest_token: int) -> None:
        for text in texts:
            try:
                text.encode()
            except UnicodeEncodeError as error:
                message = f"text holds half a surrogate pair at character {error.start}."
                raise InvalidRequest(message, param="text") from None
            at_least = len(text) // longest_token
            if at_least > self._limits.context_len:
                # A text that cannot fit is refused before the seconds that tokenizing it would take.
                raise self._too_long(f"at least {at_least}")

    def _encode_pairs(self, pairs: Sequence[tuple[str, str]]) -> list[tuple[list[int], int | None]]:
        tokenizer = self._need_tokenizer("text")
        self._check_texts([text for pair in pairs for text in pair], tokenizer.longest_token)
        return tokenizer.encode_pairs(pairs)

    def _need_tokenizer(self, what: str, field: str = "") -> Tokenizer:
        """Returns the tokenizer; refuses the request if there is none. `what`: for what it is needed; `field`: the
        field that needs it, if it has another name.
        """
        if self._tokenizer is None:
            message = f"{what} needs a tokenizer, and this server runs without one (--skip-tokenizer-init)."
            raise InvalidRequest(message, param=field or what)
        return self._tokenizer

    def _checked(self, rows: Sequence[Sequence[int]], field: str) -> list[bytes]:
        """Packs each row of token ids into int32 bytes. Raises InvalidRequest, which names `field`, for an id that is
        outside the vocabulary.
        """
        last = self._limits.vocab_size - 1
        packed = packed_prompts(rows, last)
        if packed is not None:
            return packed
        for ids in rows:
            if not set(map(type, ids)) <= {int}:
                raise InvalidRequest(f"{field} must be integers.", param=field)
        wrong = next(token for ids in rows for token in ids if not 0 <= token <= last)
        raise InvalidRequest(f"{field}: token id {wrong} is out-of-vocabulary (0 to {last}).", param=field)

    def _namespace(self, unfolded: Unfolded, caller: Caller) -> str:
        """Returns the request's namespace in the prefix cache. The names of keys have equal lengths, so no extra_key
        can imitate another caller.
        """
        return f"{caller.api_key}/{unfolded.extra_key}" if self._keeps_keys_apart else unfolded.extra_key

    def _max_new(self, prompt: Prompt, length: int, *, spare: int) -> int:
        """Returns the largest number of new tokens of the prompt's answer, which fits behind a prompt of `length`
        tokens.

        `spare`: tokens that must be left for the answer.
        """
        limits, params = self._limits, prompt.params
        if length == 0:
            raise InvalidRequest("The prompt is empty: it must have at least one token.", param=_field(prompt))
        no_room = "leaves no room for an answer in"
        for limit, longer, full in (
            (limits.context_len, LONGER, f"{no_room} the model's context length"),
            (limits.max_req_len, "is longer than the KV cache can hold", f"{no_room} what the KV cache can hold"),
        ):
            if length + spare > limit:
                raise _no_fit(str(length), longer if length > limit else full, limit, _field(prompt))
        room = limits.max_req_len - length
        asked = room if params.max_new_tokens is None else params.max_new_tokens
        if asked > room and self._strict_max_tokens and not prompt.clip_max_new_tokens:
            in_context = length + asked > limits.context_len
            limit = limits.context_len if in_context else limits.max_req_len
            what = "the model's context length" if in_context else "what the KV cache can hold"
            raise ContextTooLong(
                f"max_new_tokens is too large: {asked}. The input ({length} tokens) and max_new_tokens ({asked}) "
                f"together exceed {what} ({limit} tokens).",
                param="max_new_tokens",
            )
        max_new = min(asked, room)
        if params.min_new_tokens > max_new:
            raise InvalidRequest(
                f"min_new_tokens ({params.min_new_tokens}) is more than the {max_new} tokens that fit.",
                param="min_new_tokens",
            )
        return max_new

    def _with_stop_tokens(self, params: SamplingParams) -> SamplingParams:
        """Returns the parameters, with stop strings that are special tokens changed to stop tokens: special tokens are
        skipped in the text, so the strings would not be found there.

        Ids that the model never chooses are left out: the engine looks up every one of them.
        """
        size = self._limits.vocab_size
        if not all(0 <= token < size for token in params.stop_token_ids):
            known_ids = [token for token in params.stop_token_ids if 0 <= token < size]
            params = msgspec.structs.replace(params, stop_token_ids=known_ids)
        if params.stop_regex:
            self._need_tokenizer("stop_regex")
        if not params.stop:
            return params
        tokenizer = self._need_tokenizer("stop")
        if not params.skip_special_tokens:
            return params
        special = [token for stop in params.stop if (token := tokenizer.id_of(stop)) in tokenizer.special_ids]
        known = [token for token in special if token is not None and token < size]
        return msgspec.structs.replace(params, stop_token_ids=[*params.stop_token_ids, *known])

    def _bad_words(self, words: Sequence[str]) -> list[bytes]:
        """Tokenizes each word by itself, and after a space. A word for which the model has no token cannot be
        generated.

        vLLM does the same, but leaves out the form after a space if it has more tokens than the other.
        """
        if not words:
            return []
        tokenizer = self._need_tokenizer("bad_words")
        texts = [before + word.lstrip() for word in words for before in ("", " ")]
        self._check_texts(texts, tokenizer.longest_token)
        written = tokenizer.encode_batch(texts, add_special_tokens=False)
        last = self._limits.vocab_size - 1
        return list(dict.fromkeys(pack_ids(ids) for ids in written if ids and max(ids) <= last))

    def _thinking(self, params: SamplingParams, obj: GenerateReqInput) -> tuple[bytes, int | None]:
        """Returns the tokens that end the thinking before the grammar begins, and the token that may begin it. Raises
        InvalidRequest for a grammar without a tokenizer.
        """
        if (spec := params.grammar) is None:
            return b"", None
        tokenizer = self._need_tokenizer(spec.kind)
        if obj.think_end is None:
            if obj.require_reasoning:
                message = "require_reasoning: this server does not know thoughts; start it with --reasoning-parser."
                raise InvalidRequest(message, param="require_reasoning")
            return b"", None
        end = pack_ids(tokenizer.encode(obj.think_end, add_special_tokens=False))
        if obj.think_start is None:
            return end, None
        start = tokenizer.encode(obj.think_start, add_special_tokens=False)
        # One of several tokens could be the beginning of something else.
        return (end, start[0]) if len(start) == 1 else (b"", None)

    def _too_long(self, tokens: str, field: str = "text") -> ContextTooLong:
        return _no_fit(tokens, LONGER, self._limits.context_len, field)


def _no_fit(tokens: str, what: str, limit: int, field: str) -> ContextTooLong:
    """`what`: what the input is or does, before the limit in tokens."""
    return ContextTooLong(f"The input ({tokens} tokens) {what} ({limit} tokens).", param=field)


def _field(prompt: Prompt) -> str:
    match prompt.content:
        case str():
            return "text"
        case Embeds():
            return "input_embeds"
    return "input_ids"


def _one_answer(params: SamplingParams, max_new: int) -> SamplingParams:
    """Returns the parameters of each of `n` answers of that length."""
    top_k = TOP_K_ALL if params.top_k == -1 else params.top_k
    return msgspec.structs.replace(params, n=1, max_new_tokens=max_new, top_k=top_k)


def _logprob_request(wish: LogprobWish | None, length: int) -> LogprobRequest | None:
    if wish is None:
        return None
    if wish.start > length:
        raise InvalidRequest(
            f"logprob_start_len ({wish.start}) is behind the end of the prompt ({length} tokens).",
            param="logprob_start_len",
        )
    start = -1 if wish.start == length else wish.start
    return LogprobRequest(prompt_start=start, top_num=wish.top_num, token_ids=pack_ids(wish.token_ids))


def _nth_seed(seed: int, copy: int) -> int:
    """Returns the seed of copy i of a prompt, seed + i modulo 2^64, so that the copies differ and can be repeated."""
    wrapped = (seed + copy) & ((1 << 64) - 1)
    return wrapped - (1 << 64) if wrapped >> 63 else wrapped


def _routing_key(obj: GenerateReqInput, caller: Caller) -> str:
    key = caller.routing_key_of(obj.routing_key)
    if len(key) > MAX_KEY_LENGTH:
        raise InvalidRequest(f"routing_key must have at most {MAX_KEY_LENGTH} characters.", param="routing_key")
    return key
