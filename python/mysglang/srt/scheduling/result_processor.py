"""ResultProcessor: applies the tokens of a step to its requests, and ends those that are finished.

A row's result counts only if its slot still lives the life that the step was planned for: finishing, aborting and
retracting all end a life, so results that come too late need no other check.

`Distrust` acts on results that are not finite numbers. Keys and values of prompts are in the prefix cache before they
are computed, so other requests may have read them by now, and later ones would go on finding them. What a finite
result vouches for is kept; what nothing vouches for goes out of the cache. Requests that share such pages are judged by
results of their own, and a request that only found them is computed once more without them.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace

from mysglang.srt.forward.outputs import NO_TOKEN, StepOutput
from mysglang.srt.forward.worker_batch import Bools, Floats, HiddenColumns, Ints, LogprobColumns, Slots
from mysglang.srt.mem_cache.kv_manager import KvManager
from mysglang.srt.messages.outputs import Abort, FinishReason, Length, Stop
from mysglang.srt.scheduling.batch import Asked, ScheduleBatch
from mysglang.srt.scheduling.books import by_row, hidden_by_row
from mysglang.srt.scheduling.decode_planner import Growth
from mysglang.srt.scheduling.grammar import Grammar
from mysglang.srt.scheduling.lane import Lanes
from mysglang.srt.scheduling.request import Req
from mysglang.srt.scheduling.request_table import RequestTable
from mysglang.srt.scheduling.residency import Residency, Retraction
from mysglang.srt.utils.words import counted

logger = logging.getLogger(__name__)
NOT_FINITE = Abort(
    "The model's output, or what a logit processor made of it, is not a finite number.",
    status=500,
    kind="InternalServerError",
)
GRAMMAR_FAILED = Abort(
    "No token that the model has continues the answer as its grammar demands.", status=500, kind="InternalServerError"
)
GRAMMAR_TOO_SLOW = Abort(
    "The grammar is too ambiguous: to choose a token by it takes so long that other requests would wait.",
    status=400,
    kind="BadRequestError",
)
NOTHING_ALLOWED = Abort(
    "No token is left that bad_words, allowed_token_ids, min_new_tokens, the logit processor and the grammar all allow "
    "here.",
    status=400,
    kind="BadRequestError",
)


class ResultProcessor:
    """Applies results to the request table and ends requests."""

    def __init__(
        self,
        table: RequestTable,
        growth: Growth,
        residency: Residency,
        distrust: Distrust,
        eos_token_ids: tuple[int, ...],
    ) -> None:
        self._table = table
        self._growth = growth
        self._residency = residency
        self._distrust = distrust
        self._eos = eos_token_ids

    def apply(self, batch: ScheduleBatch, output: StepOutput, asked: Asked) -> list[Req]:
        """Applies a step's result. Returns the requests that ended, whose slots are already free."""
        alive = self._table.life[batch.slots] == batch.lives
        self._growth.settle(batch, output.counts, alive)
        if asked.logprobs is not None:
            self._take_logprobs(batch, output, asked.logprobs, alive)
        if asked.hidden is not None and output.hidden is not None:
            self._take_hidden(batch, output.hidden, asked.hidden, alive)
        if output.vectors is not None:
            return self._take_vectors(batch, output.vectors, alive)
        if everyone_has_one(output.counts, len(output.tokens)) and np.count_nonzero(alive) == len(alive):
            return self._end_all(self._accept(batch.slots, output.tokens))
        ended: list[Req] = []
        firsts = np.cumsum(output.counts) - output.counts
        # One turn without speculation; as many as the longest accepted run with speculation.
        for depth in range(int(output.counts.max(initial=0))):
            rows = np.flatnonzero((output.counts > depth) & alive)
            if len(rows):
                finished = self._accept(batch.slots[rows], output.tokens[firsts[rows] + depth])
                ended.extend(self._end_all(finished))
                alive = self._table.life[batch.slots] == batch.lives
        return ended

    def end(self, slot: int, reason: FinishReason) -> Req:
        """Ends the request in `slot`."""
        req = self._residency.leave(slot)
        req.finish = reason
        return req

    def _end_all(self, finished: list[tuple[int, FinishReason]]) -> list[Req]:
        """Ends these requests. Those whose result is not finite come last: by then all finite results are known."""
        broken = [slot for slot, reason in finished if reason is NOT_FINITE]
        ended = [self.end(slot, reason) for slot, reason in finished if reason is not NOT_FINITE]
        return ended + self._distrust.end(broken) if broken else ended

    def _accept(self, slots: Slots, tokens: Ints) -> list[tuple[int, FinishReason]]:
        """Adds one token to each of `slots`. Returns those that end by it, and why. A negative token: there is none."""
        table = self._table
        if np.minimum.reduce(tokens, initial=0) < 0:
            there = tokens >= 0
            missing = zip(slots[~there].tolist(), tokens[~there].tolist(), strict=True)
            ended = [(slot, self._all_forbidden(slot) if token == NO_TOKEN else NOT_FINITE) for slot, token in missing]
            return ended + self._accept(slots[there], tokens[there])
        known = table.known[slots]
        after = known + 1
        left = table.final_len[slots] - after
        fewest = np.minimum.reduce(left, initial=1)
        if fewest < 0:
            # max_new_tokens 0: the prompt was only to be computed, and what was sampled is dropped.
            open_ended = left >= 0
            done = [(slot, Length(0)) for slot in slots[~open_ended].tolist()]
            return [*done, *self._accept(slots[open_ended], tokens[open_ended])]
        table.put_tokens(slots, known, tokens)
        table.known[slots] = after
        reasons: dict[int, FinishReason] = {}
        for index in (left == 0).nonzero()[0].tolist() if fewest == 0 else ():
            reasons[index] = Length(int(after[index] - table.prompt_len[slots[index]]))
        for index in self._at_eos(slots, tokens, after):
            reasons[index] = Stop(int(tokens[index]))
        for index in table.watched.rows(slots).tolist():
            slot, token = int(slots[index]), int(tokens[index])
            generated = int(after[index] - table.prompt_len[slot])
            if (stop := table.req(slot).stop_watch.check(token, generated)) is not None:
                reasons[index] = stop
        for index in table.constrained.rows(slots).tolist():
            slot, token = int(slots[index]), int(tokens[index])
            if (end := self._follow(slot, token)) is not None:
                reasons[index] = end
        return [(int(slots[index]), reason) for index, reason in reasons.items()]

    def _take_vectors(self, batch: ScheduleBatch, vectors: Floats, alive: Bools) -> list[Req]:
        """Gives the rows that yield their vectors, by which they end. vectors: [rows that yield, width]."""
        ended: list[Req] = []
        broken: list[int] = []
        for row, vector in zip(batch.yields.nonzero()[0].tolist(), vectors, strict=True):
            if alive[row] and not np.isfinite(vector).all():
                broken.append(int(batch.slots[row]))
            elif alive[row]:
                req = self.end(int(batch.slots[row]), Length(0))
                req.vector = vector
                ended.append(req)
        return ended + self._distrust.end(broken) if broken else ended

    def _follow(self, slot: int, token: int) -> FinishReason | None:
        """Passes the token to the grammar of `slot`. Returns why the request ends by that, or None."""
        req = self._table.req(slot)
        if req.rules is not None and not req.rules.allow(token, self._table.output_ids(slot)[:-1]):
            return NOTHING_ALLOWED
        grammar = req.grammar
        if grammar is None:
            return None
        if not grammar.accept(token):
            return self._grammar_failed(req, grammar)
        return Stop(token) if grammar.finished else None

    def _all_forbidden(self, slot: int) -> FinishReason:
        """Returns why the request in `slot` ends, for which every token is forbidden."""
        req = self._table.req(slot)
        if self._table.known[slot] >= self._table.final_len[slot]:
            # max_new_tokens 0: the prompt was only to be computed.
            return Length(0)
        if req.grammar is not None and (req.grammar.too_slow or (req.rules is None and req.logit_processor is None)):
            return self._grammar_failed(req, req.grammar)
        return NOTHING_ALLOWED

    @staticmethod
    def _grammar_failed(req: Req, grammar: Grammar) -> FinishReason:
        """Returns why a request ends whose grammar does not go on."""
        spec = req.sampling.grammar
        if grammar.too_slow and spec is not None:
            return replace(GRAMMAR_TOO_SLOW, param=spec.kind)
        return GRAMMAR_FAILED

    def _at_eos(self, slots: Slots, tokens: Ints, known: Ints) -> list[int]:
        """Returns the indices of rows whose token is an EOS that ends them."""
        rows = [row for eos in self._eos for row in (tokens == eos).nonzero()[0].tolist()]
        table = self._table
        return [row for row in rows if table.obeys_eos[slots[row]] and known[row] >= table.min_len[slots[row]]]

    def _take_hidden(self, batch: ScheduleBatch, states: Floats, asked: HiddenColumns, alive: Bools) -> None:
        """Gives each open row its hidden states. Called before the tokens are applied, which may close the row."""
        for row, piece in hidden_by_row(states, asked, alive):
            book = self._table.req(int(batch.slots[row])).hidden
            if book is not None:
                book.add(int(batch.starts[row] + batch.lens[row]) - len(piece), piece)

    def _take_logprobs(self, batch: ScheduleBatch, output: StepOutput, asked: LogprobColumns, alive: Bools) -> None:
        """Gives each open row its log-probabilities. Called before the tokens are applied, which may close the row."""
        table = self._table
        sound = alive & finite_rows(output)
        if output.prompt_logprobs is not None:
            targets = np.split(asked.prompt_targets, np.cumsum(asked.prompt_counts)[:-1])
            for row, piece in by_row(output.prompt_logprobs, asked.prompt_counts, asked):
                book = table.req(int(batch.slots[row])).logprobs if alive[row] else None
                if book is not None:
                    book.add_prompt(targets[row], piece)
        if output.output_logprobs is not None:
            counts = np.where(asked.rows, output.counts, 0)
            firsts = np.cumsum(output.counts) - output.counts
            for row, piece in by_row(output.output_logprobs, counts, asked):
                slot = int(batch.slots[row])
                # Tokens that are dropped have none: what is no number, and what is sampled after max_new_tokens 0.
                kept = sound[row] and table.known[slot] < table.final_len[slot]
                book = table.req(slot).logprobs if kept else None
                if book is not None:
                    book.add_output(output.tokens[firsts[row] : firsts[row] + counts[row]], piece)
        for row in np.flatnonzero(asked.rows & sound & batch.yields).tolist():
            book = table.req(int(batch.slots[row])).logprobs
            if book is not None:
                book.prompt_done = True


def finite_rows(output: StepOutput) -> Bools:
    """Returns which rows had only finite results, [R]."""
    rows = np.repeat(np.arange(len(output.counts)), output.counts)
    finite: Bools = np.bincount(rows[output.tokens < 0], minlength=len(output.counts)) == 0
    return finite


def everyone_has_one(counts: Ints, total: int) -> bool:
    """True if each row has exactly one of `total` tokens."""
    return len(counts) == total and np.count_nonzero(counts) == total


class Distrust:
    """Ends rows whose result is not finite, and takes the pages that they read out of the cache."""

    def __init__(
        self, table: RequestTable, kv: KvManager, lanes: Lanes, residency: Residency, retraction: Retraction
    ) -> None:
        self._table = table
        self._lanes = lanes
        self._kv = kv
        self._residency = residency
        self._retraction = retraction

    def end(self, broken: Sequence[int]) -> list[Req]:
        """Handles the rows in these slots, which had results that are not finite. All other rows of the step were fine,
        and their tokens are applied.

        Returns the requests that end by it; the others wait to be computed again.
        """
        table, decoding = self._table, self._lanes.slots
        # A prompt that has had a finite result was sound, even if the row is broken now: confirm its pages first.
        for slot in decoding[table.known[decoding] > table.opened_len[decoding]].tolist():
            self._kv.confirm(slot)
        misled = [slot for slot in broken if self._kv.condemn(slot) and table.opened_cached[slot] > 0]
        ended = []
        for slot in broken:
            req = self._residency.drop(slot)
            if slot in misled and not req.doubted:
                req.doubted = True
                self._retraction.put_back(req)
            else:
                req.finish = NOT_FINITE
                ended.append(req)
        logger.error(
            "%s had logits that are NaN or infinite. %s with an error; the others run again.",
            counted(len(broken), "request"),
            counted(len(ended), "of them ends", "of them end"),
        )
        return ended
