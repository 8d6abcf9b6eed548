"""Req: what the scheduler knows of one request and rarely changes.

What a step needs of a running request (lengths, limits, flags) is in the RequestTable, as columns indexed by slot.
Req holds the rest: identity, parameters, stop rules, and the tokens of a request that has no slot.

A request ends by a stop string, a stop token, EOS or its length, judged in that order on tokens that are known. EOS and
length are judged for a whole step at once on columns, in `result_processor.py`. Only a request with stop rules of its
own has an active StopWatch, which looks at every token.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeAlias

import numpy as np

from mysglang.srt.forward.worker_batch import Floats, Ints
from mysglang.srt.mem_cache.kv_manager import KvManager
from mysglang.srt.mem_cache.tree_node import PrefixMatch
from mysglang.srt.messages.outputs import NO_STOP_TRIM, SKIP_SPECIAL_TOKENS, Abort, FinishReason, Stop
from mysglang.srt.messages.packing import unpack_ids, unpack_vectors
from mysglang.srt.messages.requests import ShareKey, TokenizedGenerateReqInput
from mysglang.srt.sampling.sampling_params import SamplingParams
from mysglang.srt.scheduling.books import HiddenBook, LogprobBook
from mysglang.srt.scheduling.grammar import Grammar, TokenRules, token_rules

NO_SLOT = -1
UrgentSign = Literal[-1, 0, 1]
"""A request's urgency is this times its priority; 0: requests have no priorities."""


@dataclass(slots=True, eq=False, kw_only=True)
class Req:
    """A request: one prompt, and the answer to it.

    `ids` are all tokens known when the request last stood in the waiting queue: the prompt, and after a retraction also
    what was generated. While it runs (`slot` >= 0), the RequestTable holds the tokens.
    """

    rid: str
    ids: Ints
    prompt_len: int
    sampling: SamplingParams
    max_new: int
    """Tokens after which it ends; always known here."""
    stream: bool
    extra_key: str
    stop_watch: StopWatch
    urgency: int = 0
    """The larger the sooner: its priority, or minus that where small ones go first."""
    routing_key: str = ""
    """The group that its client says it belongs to; empty: none."""
    tenant: str = ""
    """Its owner for shares and turns: what --fair-share-by names, else the name of its API key."""
    waits_since: int | None = None
    """When a policy that measures waiting first saw it, by the PromptClock."""
    logprobs: LogprobBook | None = None
    hidden: HiddenBook | None = None
    embeds: Floats | None = None
    """[prompt_len, hidden_size], in the place of the embeddings of its prompt's ids, which then say nothing."""
    grammar: Grammar | None = None
    """Restricts its tokens. Set when the role reports that it is ready; it has accepted every known output token."""
    grammar_after: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int32))
    """Tokens that end its thinking, after which the grammar begins; none: it begins at once."""
    rules: TokenRules | None = None
    """Which tokens it may never have, or not after certain others."""
    logit_processor: str | None = None
    """Name of what changes its logits."""
    thought_start: int | None = None
    """Token with which the answer may begin to think. None: the answer begins in a thought, if there is thinking."""

    second_text: int | None = None
    """Token with which the second text of a pair begins; None: it is one text."""
    tail_end: int | None = None
    """Leading tokens that earlier requests of its session computed, 0 if there were none: the page that they fill in
    part may be cached still. None: the request is of no session, and only whole pages of it are kept.
    """
    vector: Floats | None = None
    """Vector of the prompt from a model that does not generate."""

    fresh: int = field(init=False)
    """Estimated number of prompt tokens that must be computed; all of them before the cache was looked up."""
    slot: int = NO_SLOT
    arrived_at: float = field(default_factory=time.perf_counter)
    """Arrival time in seconds, only for reporting how long the request waited."""
    started_at: float = 0.0
    """When it got its first place; 0 if it has had none."""
    first_token_at: float = 0.0
    """Time when its prompt was computed; 0 if it is not, or if times are not recorded."""
    sent: int = 0
    """Tokens of `ids` that need not be sent any more, kept while the request has no slot."""
    cached_tokens: int = 0
    """Prompt tokens found in the prefix cache when it first ran."""
    retractions: int = 0
    drafted: Ints | None = None
    """Value of the request table's column while the request holds no slot; None: no drafts are tried."""
    doubted: bool = False
    """True if it was computed again because its cached prefix may have been wrong."""
    started: bool = False
    """True if it has run at least once."""
    reported: bool = False
    """True if the detokenizer knows it; kept while the request has no slot."""
    finish: FinishReason | None = None
    decode_flags: int = field(init=False)

    def __post_init__(self) -> None:
        params = self.sampling
        self.sent = self.prompt_len
        self.fresh = self.prompt_len
        self.decode_flags = SKIP_SPECIAL_TOKENS * params.skip_special_tokens | NO_STOP_TRIM * params.no_stop_trim

    @property
    def final_len(self) -> int:
        """Tokens at which the request ends by length, prompt included."""
        return self.prompt_len + self.max_new

    @property
    def match_limit(self) -> int:
        """How many leading tokens may come from the prefix cache.

        The last token is always computed, since its logits give the next one; a prompt position that wants a logprob
        needs the logits of the position before it, and a hidden state is not in the cache.
        """
        limit = len(self.ids) - 1
        if self.logprobs is not None and self.logprobs.prompt_start >= 0 and not self.logprobs.prompt_done:
            limit = min(limit, max(self.logprobs.prompt_start - 1, 0))
        if self.hidden is not None:
            limit = min(limit, self.hidden.have)
        return limit

    def cached_prefix(self, kv: KvManager) -> PrefixMatch:
        """Returns the longest prefix of the request that is in the cache."""
        return kv.match(self.ids, extra_key=self.extra_key, limit=self.match_limit, tail_end=self.tail_end or 0)

    @property
    def output_ids(self) -> Ints:
        """Generated tokens known while the request has no slot."""
        return self.ids[self.prompt_len :]


class StopText(Protocol):
    """Text of one request as it grows, watched for stop strings (utils/text.py: StoppableText)."""

    def feed(self, ids: Sequence[int]) -> tuple[str, str | None]:
        """Adds tokens. Returns the text that is safe to show, and the stop string that was found, if any."""
        ...


class NoStopText:
    """A request without stop strings."""

    def feed(self, ids: Sequence[int]) -> tuple[str, str | None]:
        return "", None


class StopWatch:
    """Checks a request's own reasons to stop: its stop strings and its stop token ids."""

    __slots__ = ("_ids", "_min_new", "_text", "active")

    def __init__(self, *, token_ids: Sequence[int], text: StopText | None, min_new: int) -> None:
        self._ids = frozenset(token_ids)
        self._text: StopText = text or NoStopText()
        self._min_new = min_new
        self.active = bool(token_ids) or text is not None
        """True if `check` can find anything."""

    def check(self, token: int, generated: int) -> Stop | None:
        """Checks whether `token`, the request's `generated`-th, ends the answer. Every token must be passed once, in
        order.
        """
        _, matched = self._text.feed((token,))
        if matched is not None:
            return Stop(matched)
        if token in self._ids and generated >= self._min_new:
            return Stop(token)
        return None


MakeStopText: TypeAlias = Callable[[SamplingParams], StopText]
"""Makes what watches a request's text for its stop strings; called only for requests that have some."""


class ReqMaker:
    """Makes a Req from a message. A request that the scheduler cannot serve is refused here, so that planning never
    meets it.
    """

    def __init__(
        self,
        max_req_len: int,
        vocab_size: int,
        make_stop_text: MakeStopText,
        *,
        urgent_sign: UrgentSign,
        share_by: ShareKey,
    ) -> None:
        """`max_req_len`: most tokens of a request, output included. `share_by`: the field that names its client."""
        self._max_req_len = max_req_len
        self._vocab_size = vocab_size
        self._make_stop_text = make_stop_text
        self._urgent_sign = urgent_sign
        self._share_by = share_by

    def __call__(self, message: TokenizedGenerateReqInput) -> Req:
        params = message.sampling_params
        ids = unpack_ids(message.input_ids)
        room = self._max_req_len - len(ids)
        max_new = room if params.max_new_tokens is None else params.max_new_tokens
        req = Req(
            rid=message.rid,
            ids=ids,
            prompt_len=len(ids),
            sampling=params,
            max_new=max_new,
            stream=message.stream,
            extra_key=message.extra_key,
            urgency=self._urgent_sign * message.priority,
            routing_key=message.routing_key,
            tenant=getattr(message, self._share_by),
            stop_watch=StopWatch(
                token_ids=params.stop_token_ids,
                text=self._make_stop_text(params) if params.stop or params.stop_regex else None,
                min_new=params.min_new_tokens,
            ),
            logprobs=LogprobBook(message.logprobs) if message.logprobs is not None else None,
            hidden=None
            if message.hidden_states is None
            else HiddenBook(0 if message.hidden_states == "all" else len(ids) - 1),
            embeds=unpack_vectors(message.input_embeds, len(ids)) if message.input_embeds else None,
            rules=token_rules(params.allowed_token_ids, map(unpack_ids, message.bad_words), self._vocab_size),
            logit_processor=message.logit_processor,
            grammar_after=unpack_ids(message.grammar_after),
            thought_start=message.thought_start,
            second_text=message.second_text,
            tail_end=message.tail_end,
        )
        if not len(ids) or max_new > room:
            text = f"A prompt of {len(ids)} tokens and max_new_tokens {max_new} exceed the {self._max_req_len} tokens"
            param = "max_new_tokens" if 0 < len(ids) < self._max_req_len else "text"
            req.finish = Abort(f"{text} that a request may hold.", 400, "BadRequestError", param)
        return req
