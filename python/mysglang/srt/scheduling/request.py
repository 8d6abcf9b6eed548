"""Req: what the scheduler knows of one request and rarely changes.

What a step needs of a running request (lengths, limits, flags) stands in the RequestTable, as columns indexed by slot.
Req holds the rest: identity, parameters, stop rules, and the tokens of a request that has no slot.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import numpy as np

from mysglang.srt.forward.worker_batch import Floats, Ints
from mysglang.srt.mem_cache.kv_manager import KvManager
from mysglang.srt.mem_cache.prefix_match import PrefixMatch
from mysglang.srt.messages.outputs import NO_STOP_TRIM, SKIP_SPECIAL_TOKENS, FinishReason
from mysglang.srt.sampling.sampling_params import SamplingParams
from mysglang.srt.scheduling.finish import StopWatch
from mysglang.srt.scheduling.grammar import Grammar
from mysglang.srt.scheduling.hidden_states import HiddenBook
from mysglang.srt.scheduling.logprobs import LogprobBook
from mysglang.srt.scheduling.token_rules import TokenRules

NO_SLOT = -1


@dataclass(slots=True, eq=False, kw_only=True)
class Req:
    """One prompt on its way to one answer.

    `ids` are all tokens known when the request last stood in the waiting queue: the prompt, and after a retraction
    also what was generated. While it runs (`slot` >= 0), the RequestTable holds the tokens.
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
    """What restricts its tokens, from when its role says that it is ready. Has accepted every known output token."""
    grammar_after: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int32))
    """Tokens that end its thinking, after which the grammar begins; none: it begins at once."""
    rules: TokenRules | None = None
    """Which tokens it may never have, or not after certain others."""
    logit_processor: str | None = None
    """Name of what changes its logits."""
    thought_start: int | None = None
    """Token with which the answer may begin to think; None: it begins in a thought, if there is thinking at all."""

    second_text: int | None = None
    """Token with which the second text of a pair begins; None: it is one text."""
    tail_end: int | None = None
    """Leading tokens that earlier requests of its session computed, 0 if there were none: the page that they fill in
    part may be cached still. None: the request is of no session, and only whole pages of it are kept.
    """
    vector: Floats | None = None
    """What a model that does not generate made of the prompt."""

    fresh: int = field(init=False)
    """About how many tokens of its prompt must be computed: all, if nobody looked."""
    slot: int = NO_SLOT
    arrived_at: float = field(default_factory=time.perf_counter)
    """Seconds, to be told how long it waited; nothing is planned by it."""
    started_at: float = 0.0
    """When it got its first place; 0 if it has had none."""
    first_token_at: float = 0.0
    """When its prompt was computed; 0 if it is not, or if nobody notes it."""
    sent: int = 0
    """Tokens of `ids` that need not be sent any more, kept while the request has no slot."""
    cached_tokens: int = 0
    """Prompt tokens found in the prefix cache when it first ran."""
    retractions: int = 0
    drafted: Ints | None = None
    """As in the request table, while it holds no slot; None: no drafts are tried."""
    doubted: bool = False
    """Whether it was computed once more since what it found in the cache may not have been sound."""
    started: bool = False
    """Whether it ever ran."""
    heard_of: bool = False
    """Whether the detokenizer knows it; kept while the request has no slot."""
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
        """The longest prefix of it that is in the cache."""
        return kv.match(self.ids, extra_key=self.extra_key, limit=self.match_limit, tail_end=self.tail_end or 0)

    @property
    def output_ids(self) -> Ints:
        """Generated tokens known while the request has no slot."""
        return self.ids[self.prompt_len :]
