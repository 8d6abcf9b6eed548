"""RequestTable: the running requests as columns indexed by slot.

Planning, building, applying results and streaming work on index arrays over these columns; a Python loop over the
batch is the exception. A slot's row is valid from `open` to `close`; its tokens stay readable until the slot is
opened again, so a result can still be streamed after the request gave its memory back.

       tokens[slot]   p p p p p p o o o o . . .        p = prompt, o = generated
       prompt_len ----------------^       ^
       known -----------------------------'            tokens whose value the host knows
       low, high                                       KV entries written by the steps planned so far: surely, at most

A row that decodes has low >= known - 1. Where each step gives each row one token, low and high are one column, and the
token after them is known as soon as its step is done (`decode_planner.py`).

What only few requests have (stop rules, a grammar, log-probabilities) is a `Trait`: a column that counts its rows, so
that a step in which no request has it asks nothing.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from mysglang.srt.forward.worker_batch import Bools, Ints, Longs, Slots
from mysglang.srt.scheduling.request import NO_SLOT, Req

NON_STREAM_INTERVAL = 50
"""Tokens after which the output of a request that does not stream is passed on."""
NO_ROWS: Slots = np.zeros(0, dtype=np.int64)


class RequestTable:
    """The running requests as numpy columns: `num_slots` rows, each with room for `max_context` tokens."""

    def __init__(self, num_slots: int, max_context: int, *, stream_interval: int = 1, tokens_per_step: int = 1) -> None:
        """`stream_interval`: number of tokens between two chunks of a streamed answer, unless the request sets it.
        `tokens_per_step`: largest number of tokens of a decoding row in a step.
        """
        self.num_slots = num_slots
        self.tokens_per_step = tokens_per_step
        self.stream_interval = stream_interval
        self.tokens: Ints = np.zeros((num_slots, max_context + 1), dtype=np.int32)
        self._flat_tokens: Ints = self.tokens.reshape(-1)
        self.reqs: list[Req | None] = [None] * num_slots
        self.rids: npt.NDArray[np.object_] = np.full(num_slots, "", dtype=np.object_)
        self.life: Longs = np.zeros(num_slots, dtype=np.int64)
        """Counts the ends of the slot's requests: a late result is applied only to the life that it was made for."""
        self.known: Ints = np.zeros(num_slots, dtype=np.int32)
        self.high: Ints = np.zeros(num_slots, dtype=np.int32)
        self.low: Ints = self.high if tokens_per_step == 1 else np.zeros(num_slots, dtype=np.int32)
        self.widest: Ints = np.ones(num_slots, dtype=np.int32)
        """Tokens that the row may get in one step."""
        self.widest_forced: Ints = np.ones(num_slots, dtype=np.int32)
        """Like `widest`, for rows whose grammar forces tokens; 1 unless the row has a grammar."""
        self.opened_len: Ints = np.zeros(num_slots, dtype=np.int32)
        """Known tokens when the slot was opened. A row with more known tokens has had a finite result since then."""
        self.opened_cached: Ints = np.zeros(num_slots, dtype=np.int32)
        """Tokens that were found in the cache then."""
        self.prompt_len: Ints = np.zeros(num_slots, dtype=np.int32)
        self.final_len: Ints = np.zeros(num_slots, dtype=np.int32)
        self.min_len: Ints = np.zeros(num_slots, dtype=np.int32)
        """Tokens, prompt included, below which EOS does not end the request."""
        self.sent: Ints = np.zeros(num_slots, dtype=np.int32)
        self.interval: Ints = np.ones(num_slots, dtype=np.int32)
        """Tokens between two pieces of the answer that are passed on."""
        self.due: Ints = np.zeros(num_slots, dtype=np.int32)
        """Known tokens at which the next piece is passed on; a stream's first token goes at once."""
        self.obeys_eos: Bools = np.zeros(num_slots, dtype=np.bool_)
        self.watched = Trait(num_slots)
        """True if the row has stop rules of its own."""
        self.wants_logprobs = Trait(num_slots)
        self.wants_hidden = Trait(num_slots)
        self.embedded = Trait(num_slots)
        """True if the row has a prompt of vectors."""
        self.constrained = Trait(num_slots)
        """True if the row has a grammar, rules or a logit processor, so that its tokens are chosen last."""
        self.unreported = Trait(num_slots)
        """The detokenizer has heard nothing of it yet."""
        self.streamed = Trait(num_slots)
        """True if the client reads the answer while it grows."""
        self._traits = (
            self.watched,
            self.wants_logprobs,
            self.wants_hidden,
            self.embedded,
            self.constrained,
            self.unreported,
            self.streamed,
        )
        self.decode_flags: npt.NDArray[np.uint8] = np.zeros(num_slots, dtype=np.uint8)
        self.second_text: Ints = np.zeros(num_slots, dtype=np.int32)
        """Token with which the second text of a pair begins; after the prompt where there is none."""
        self.cached_tokens: Ints = np.zeros(num_slots, dtype=np.int32)
        self.retractions: Ints = np.zeros(num_slots, dtype=np.int32)
        self.drafted: Ints = np.zeros((num_slots, 1 + tokens_per_step), dtype=np.int32)
        """[num_slots, 1 + W] drafts that were tried; then decode steps by the tokens that they gave, 1 … W."""

    def open(self, req: Req, slot: int, *, cached: int) -> None:
        """Fills the row of `req`. `cached`: number of its tokens that are in the KV cache."""
        params = req.sampling
        self.reqs[slot] = req
        self.rids[slot] = req.rid
        req.slot = slot
        self.tokens[slot, : len(req.ids)] = req.ids
        self.known[slot] = len(req.ids)
        self.low[slot] = self.high[slot] = cached
        self.opened_len[slot] = len(req.ids)
        self.opened_cached[slot] = cached
        self.prompt_len[slot] = req.prompt_len
        self.final_len[slot] = req.final_len
        self.min_len[slot] = req.prompt_len + params.min_new_tokens
        self.sent[slot] = req.sent
        between = params.stream_interval or self.stream_interval
        self.interval[slot] = between if req.stream else NON_STREAM_INTERVAL
        first = req.stream and req.sent == req.prompt_len
        self.due[slot] = req.sent + (1 if first else self.interval[slot])
        self.obeys_eos[slot] = not params.ignore_eos
        self.watched[slot] = req.stop_watch.active
        self.wants_logprobs[slot] = req.logprobs is not None
        self.wants_hidden[slot] = req.hidden is not None
        self.embedded[slot] = req.embeds is not None
        chosen_last = (req.grammar, req.rules, req.logit_processor)
        self.constrained[slot] = any(part is not None for part in chosen_last)
        self.unreported[slot] = not req.reported
        self.streamed[slot] = req.stream
        self.decode_flags[slot] = req.decode_flags
        self.second_text[slot] = req.prompt_len if req.second_text is None else req.second_text
        self.cached_tokens[slot] = req.cached_tokens
        self.retractions[slot] = req.retractions
        self.drafted[slot] = 0 if req.drafted is None else req.drafted

    def limit_width(self, slot: int, most: int | None) -> None:
        """Sets how many tokens the row may gain in one step. `most`: the largest number that its sampling features can
        choose at once; None: no limit by them.

        A row whose log-probabilities or hidden states are wanted gains one token. So does a row
        with masks, except for tokens that its grammar forces.
        """
        req, width = self.req(slot), min(most or self.tokens_per_step, self.tokens_per_step)
        told = self.wants_logprobs[slot] or self.wants_hidden[slot]
        self.widest[slot] = 1 if told or self.constrained[slot] else width
        ruled = req.rules is not None or req.logit_processor is not None
        self.widest_forced[slot] = 1 if told or ruled or req.grammar is None else width

    def close(self, slot: int) -> Req:
        """Closes the row. The request keeps its known tokens, and the number of those that it has sent."""
        req = self.req(slot)
        req.ids = self.tokens[slot, : self.known[slot]].copy()
        req.sent = int(self.sent[slot])
        if self.tokens_per_step > 1:
            req.drafted = self.drafted[slot].copy()
        req.reported = not self.unreported[slot]
        req.slot = NO_SLOT
        self.reqs[slot] = None
        for trait in self._traits:
            trait[slot] = False
        self.life[slot] += 1
        return req

    def req(self, slot: int) -> Req:
        """Returns the request in `slot`, which must be open."""
        req = self.reqs[slot]
        assert req is not None, f"slot {slot} is closed"
        return req

    def has_ids(self, slot: int) -> bool:
        """True if the slot's prompt is token ids, not vectors."""
        return not self.embedded[slot]

    def is_constrained(self, slots: Slots) -> Bools:
        """Returns whether masks restrict the tokens of each row, [R]."""
        return self.constrained.of(slots)

    def waits_for_mask(self, slots: Slots, yields: Bools) -> bool:
        """True if a mask must be made for any of these rows that yields a token."""
        return self.constrained.count > 0 and bool(yields[self.constrained.rows(slots)].any())

    def output_ids(self, slot: int) -> Ints:
        """Returns the known tokens that were generated. A view: copy to keep."""
        return self.tokens[slot, self.prompt_len[slot] : self.known[slot]]

    def ids_with_kv(self, slot: int) -> Ints:
        """Returns the known tokens whose KV entries are written, or are being written. A view: copy to keep."""
        return self.tokens[slot, : min(self.known[slot], self.low[slot])]

    def take_tokens(self, slots: Slots, positions: Ints) -> Ints:
        """Returns one token of each row, [R]."""
        tokens: Ints = self._flat_tokens[slots * self.tokens.shape[1] + positions]
        return tokens

    def put_tokens(self, slots: Slots, positions: Ints, tokens: Ints) -> None:
        """Writes one token of each row; the slots are distinct."""
        self._flat_tokens[slots * self.tokens.shape[1] + positions] = tokens

    def will_know(self, slots: Slots) -> Ints:
        """Returns the number of tokens that will be known, at least, once every planned step of these decoding rows is
        done.
        """
        expected: Ints = self.low[slots] + 1
        return expected


class Trait:
    """Which open slots have a property that few requests have, and how many do. A step without such slots skips the
    work.
    """

    __slots__ = ("_has", "count")

    def __init__(self, num_slots: int) -> None:
        self._has: Bools = np.zeros(num_slots, dtype=np.bool_)
        self.count = 0

    def __getitem__(self, slot: int) -> bool:
        return bool(self._has[slot])

    def __setitem__(self, slot: int, has: bool) -> None:
        if has or self.count:  # most traits are set for no slot
            self.count += int(has) - int(self._has[slot])
            self._has[slot] = has

    def of(self, slots: Slots) -> Bools:
        """Returns True for each of these slots whose request has this property, [R]."""
        has: Bools = self._has[slots]
        return has

    def rows(self, slots: Slots) -> Slots:
        """Returns the indices into `slots` of the requests that have this property, ascending."""
        return self._has[slots].nonzero()[0] if self.count else NO_ROWS

    def clear(self, slots: Slots) -> None:
        """Removes the property from these slots, which are distinct."""
        if self.count:
            self.count -= int(np.count_nonzero(self._has[slots]))
            self._has[slots] = False
