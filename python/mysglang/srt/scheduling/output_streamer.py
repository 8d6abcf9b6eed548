"""OutputStreamer: what is new in each request -> one BatchTokenIDOutput for the step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from mysglang.srt.forward.worker_batch import Ints, Slots
from mysglang.srt.messages.channels import Sender
from mysglang.srt.messages.codec import ToDetokenizer, pack_ids
from mysglang.srt.messages.outputs import BatchTokenIDOutput, Counters, FinishReason, RowLogprobs
from mysglang.srt.sampling.sampling_params import SamplingParams
from mysglang.srt.scheduling.request import Req
from mysglang.srt.scheduling.request_table import RequestTable
from mysglang.srt.scheduling.timeline import Timeline
from mysglang.srt.scheduling.weight_version import WeightVersion

NO_INTS: Ints = np.zeros(0, dtype=np.int32)


class Streamer(Protocol):
    """Told after each step what may be new."""

    to_detokenizer: Sender[ToDetokenizer]

    def send(self, running: Slots, ended: Sequence[Req]) -> None:
        """Tell what is new in the slots `running` and in the requests that `ended` and have no slot any more."""
        ...


class OutputStreamer:
    """Sends tokens to the detokenizer when a request ended or enough of them piled up."""

    def __init__(
        self,
        table: RequestTable,
        to_detokenizer: Sender[ToDetokenizer],
        weight_version: WeightVersion,
        timeline: Timeline,
    ) -> None:
        self._table = table
        self._timeline = timeline
        self._weight_version = weight_version
        self.to_detokenizer = to_detokenizer
        """Where the messages go. A recorder may stand in its place."""

    def send(self, running: Slots, ended: Sequence[Req]) -> None:
        due = self._due(running)
        if not len(due) and not ended:
            return
        table = self._table
        known = table.known[due]
        counts = known - table.sent[due]
        tails = [req.ids[req.sent :] for req in ended]
        new = self._new(due, ended)
        finished: dict[int, FinishReason] = {}
        for row, req in enumerate(ended, start=len(due)):
            assert req.finish is not None
            finished[row] = req.finish
        message = BatchTokenIDOutput(
            rids=table.rids[due].tolist() + [req.rid for req in ended],
            token_ids=pack_ids(np.concatenate([self._running_tokens(due, counts), *tails])),
            token_counts=_column(counts, [len(tail) for tail in tails]),
            decode_flags=table.decode_flags[due].tobytes() + bytes([req.decode_flags for req in ended]),
            counters=self._counters(due, ended),
            weight_version=self._weight_version.name,
            finished=finished,
            logprobs=self._logprobs(due, ended),
            vectors={
                row: req.vector.tobytes() for row, req in enumerate(ended, start=len(due)) if req.vector is not None
            },
            hidden_states=self._hidden(due, ended),
            times=self._timeline.of(ended, first_row=len(due)),
            drafts=self._drafts(due, ended) if table.tokens_per_step > 1 else {},
            stops={row: params.stop for row, params in new.items() if params.stop},
            stop_regexes={row: params.stop_regex for row, params in new.items() if params.stop_regex},
        )
        table.sent[due] = known
        table.due[due] = known + table.interval[due]
        self.to_detokenizer.send(message)

    def _due(self, slots: Slots) -> Slots:
        """The slots with enough that is new."""
        due: Slots = slots[self._table.known[slots] >= self._table.due[slots]]
        return due

    def _running_tokens(self, slots: Slots, counts: Ints) -> Ints:
        """The unsent tokens of `slots`, one request after another."""
        table = self._table
        if not len(slots):
            return NO_INTS
        if int(counts.max()) == 1:
            return table.take_tokens(slots, table.known[slots] - 1)
        spans = zip(slots.tolist(), table.sent[slots].tolist(), table.known[slots].tolist(), strict=True)
        return np.concatenate([table.tokens[slot, sent:known] for slot, sent, known in spans])

    def _counters(self, due: Slots, ended: Sequence[Req]) -> Counters:
        table = self._table
        prompt = table.prompt_len[due]
        return Counters(
            prompt_tokens=_column(prompt, [req.prompt_len for req in ended]),
            completion_tokens=_column(table.known[due] - prompt, [len(req.output_ids) for req in ended]),
            cached_tokens=_column(table.cached_tokens[due], [req.cached_tokens for req in ended]),
            retractions=_column(table.retractions[due], [req.retractions for req in ended]),
        )

    def _logprobs(self, due: Slots, ended: Sequence[Req]) -> dict[int, RowLogprobs]:
        rows = self._table.wants_logprobs.rows(due).tolist()
        books = {row: self._table.req(int(due[row])).logprobs for row in rows}
        books.update((row, req.logprobs) for row, req in enumerate(ended, start=len(due)))
        return {row: book.take() for row, book in books.items() if book is not None}

    def _drafts(self, due: Slots, ended: Sequence[Req]) -> dict[int, bytes]:
        """What became of the drafts of requests that have a decode step behind them."""
        counts = [*self._table.drafted[due], *(req.drafted for req in ended)]
        return {row: pack_ids(found) for row, found in enumerate(counts) if found is not None and found.any()}

    def _hidden(self, due: Slots, ended: Sequence[Req]) -> dict[int, bytes]:
        rows = self._table.wants_hidden.rows(due).tolist()
        books = {row: self._table.req(int(due[row])).hidden for row in rows}
        books.update((row, req.hidden) for row, req in enumerate(ended, start=len(due)))
        return {row: book.take() for row, book in books.items() if book is not None}

    def _new(self, due: Slots, ended: Sequence[Req]) -> dict[int, SamplingParams]:
        """The parameters of the requests that are told of for the first time."""
        rows = self._table.unheard.rows(due).tolist()
        new = {row: self._table.req(int(due[row])) for row in rows}
        new.update((row, req) for row, req in enumerate(ended, start=len(due)) if not req.heard_of)
        self._table.unheard.clear(due)
        return {row: req.sampling for row, req in new.items()}


def _column(running: Ints, ended: list[int]) -> bytes:
    """An int32 column: the rows that run, then those that ended."""
    return pack_ids(running) + pack_ids(ended) if ended else pack_ids(running)
