"""OutputStreamer: sends the new tokens of all requests of a step in one BatchTokenIDOutput.

Each message names the weights that computed it (`WeightVersion`). If requests are traced, a `Timeline` notes when each
of them stood where; nothing is planned by these times.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from typing import Protocol

import numpy as np

from mysglang.srt.forward.worker_batch import Ints, Slots
from mysglang.srt.messages.channels import Sender
from mysglang.srt.messages.codec import ToDetokenizer
from mysglang.srt.messages.outputs import BatchTokenIDOutput, Counters, RequestTimes, RowLogprobs
from mysglang.srt.messages.packing import pack_ids
from mysglang.srt.messages.weights import FIRST_VERSION
from mysglang.srt.sampling.sampling_params import SamplingParams
from mysglang.srt.scheduling.batch import ScheduleBatch
from mysglang.srt.scheduling.request import NO_SLOT, Req
from mysglang.srt.scheduling.request_table import RequestTable

NO_INTS: Ints = np.zeros(0, dtype=np.int32)


class WeightVersion:
    """The name of the weights that are served. It changes when the weights do."""

    __slots__ = ("name",)

    def __init__(self, name: str = FIRST_VERSION) -> None:
        self.name = name


class Streamer(Protocol):
    """Sends new output. Called after each step with the slots that may have some."""

    to_detokenizer: Sender[ToDetokenizer]

    def send(self, running: Slots, ended: Sequence[Req]) -> None:
        """Sends the new tokens of the slots `running`, and of the requests that `ended` and have no slot any more."""
        ...

    def send_all(self, reqs: Collection[Req]) -> None:
        """Sends every token of these open requests that was not sent yet. Called before the weights get another
        name, so that these tokens are told with the old one.
        """
        ...


class SilentStreamer:
    """Sends no answers: the Streamer of a rank that follows. The first rank streams them."""

    def __init__(self, to_detokenizer: Sender[ToDetokenizer]) -> None:
        """`to_detokenizer`: nothing is sent there."""
        self.to_detokenizer = to_detokenizer

    def send(self, running: Slots, ended: Sequence[Req]) -> None:
        pass

    def send_all(self, reqs: Collection[Req]) -> None:
        pass


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
        """Sender of the messages. A recorder may take its place."""

    def send(self, running: Slots, ended: Sequence[Req]) -> None:
        self._tell(self._due(running), ended)

    def send_all(self, reqs: Collection[Req]) -> None:
        table = self._table
        slots = np.array([req.slot for req in reqs if req.slot != NO_SLOT], dtype=np.int64)
        waiting = [req for req in reqs if req.slot == NO_SLOT and req.sent < len(req.ids)]
        self._tell(slots[table.known[slots] > table.sent[slots]], waiting)
        for req in waiting:
            req.sent, req.reported = len(req.ids), True

    def _tell(self, due: Slots, others: Sequence[Req]) -> None:
        """Sends what is new of the slots `due`, and of requests without a slot: they ended, or wait for one again."""
        if not len(due) and not others:
            return
        table = self._table
        known = table.known[due]
        counts = known - table.sent[due]
        tails = [req.ids[req.sent :] for req in others]
        new = self._new(due, others)
        finished = {row: req.finish for row, req in enumerate(others, start=len(due)) if req.finish is not None}
        message = BatchTokenIDOutput(
            rids=table.rids[due].tolist() + [req.rid for req in others],
            token_ids=pack_ids(np.concatenate([self._running_tokens(due, counts), *tails])),
            token_counts=_column(counts, [len(tail) for tail in tails]),
            decode_flags=table.decode_flags[due].tobytes() + bytes([req.decode_flags for req in others]),
            counters=self._counters(due, others),
            weight_version=self._weight_version.name,
            finished=finished,
            logprobs=self._logprobs(due, others),
            vectors={
                row: req.vector.tobytes() for row, req in enumerate(others, start=len(due)) if req.vector is not None
            },
            hidden_states=self._hidden(due, others),
            times=self._timeline.of(others, first_row=len(due)),
            drafts=self._drafts(due, others) if table.tokens_per_step > 1 else {},
            stops={row: params.stop for row, params in new.items() if params.stop},
            stop_regexes={row: params.stop_regex for row, params in new.items() if params.stop_regex},
            min_new_tokens={
                row: params.min_new_tokens
                for row, params in new.items()
                if params.min_new_tokens and (params.stop or params.stop_regex)
            },
        )
        table.sent[due] = known
        table.due[due] = known + table.interval[due]
        self.to_detokenizer.send(message)

    def _due(self, slots: Slots) -> Slots:
        """Returns the slots with enough new tokens to send."""
        due: Slots = slots[self._table.known[slots] >= self._table.due[slots]]
        return due

    def _running_tokens(self, slots: Slots, counts: Ints) -> Ints:
        """Returns the unsent tokens of `slots`, one request after another."""
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
        """Returns the accepted drafts of requests that have finished a decode step, packed."""
        counts = [*self._table.drafted[due], *(req.drafted for req in ended)]
        return {row: pack_ids(found) for row, found in enumerate(counts) if found is not None and found.any()}

    def _hidden(self, due: Slots, ended: Sequence[Req]) -> dict[int, bytes]:
        rows = self._table.wants_hidden.rows(due).tolist()
        books = {row: self._table.req(int(due[row])).hidden for row in rows}
        books.update((row, req.hidden) for row, req in enumerate(ended, start=len(due)))
        return {row: book.take() for row, book in books.items() if book is not None}

    def _new(self, due: Slots, ended: Sequence[Req]) -> dict[int, SamplingParams]:
        """Returns the parameters of the requests that are sent for the first time."""
        rows = self._table.unreported.rows(due).tolist()
        new = {row: self._table.req(int(due[row])) for row in rows}
        new.update((row, req) for row, req in enumerate(ended, start=len(due)) if not req.reported)
        self._table.unreported.clear(due)
        return {row: req.sampling for row, req in new.items()}


def _column(running: Ints, ended: list[int]) -> bytes:
    """Returns an int32 column: the rows that run, then those that ended."""
    return pack_ids(running) + pack_ids(ended) if ended else pack_ids(running)


class Timeline(Protocol):
    """Records the times of applied steps and ended requests."""

    def applied(self, batch: ScheduleBatch) -> None:
        """Records times after the results of a step were written to the table."""
        ...

    def of(self, ended: Sequence[Req], *, first_row: int) -> dict[int, RequestTimes]:
        """Returns the times of requests that ended just now, by their row in a message; the first row is
        `first_row`.
        """
        ...


class NoTimeline:
    """A null object: requests are not traced."""

    def applied(self, batch: ScheduleBatch) -> None:
        pass

    def of(self, ended: Sequence[Req], *, first_row: int) -> dict[int, RequestTimes]:
        return {}


class RequestTimeline:
    """Records times from the rows of prompts, so that decode steps cost nothing."""

    def __init__(self, table: RequestTable, clock: Callable[[], float] = time.perf_counter) -> None:
        self._table = table
        self._clock = clock

    def applied(self, batch: ScheduleBatch) -> None:
        if not (prompts := batch.num_prompts):
            return
        now = self._clock()
        slots = batch.slots[:prompts]
        alive = self._table.life[slots] == batch.lives[:prompts]
        for slot in slots[np.flatnonzero(batch.yields[:prompts] & alive)].tolist():
            req = self._table.req(slot)
            if not req.first_token_at:
                req.first_token_at = now

    def of(self, ended: Sequence[Req], *, first_row: int) -> dict[int, RequestTimes]:
        now = self._clock()
        return {
            row: RequestTimes(req.arrived_at, req.started_at, req.first_token_at or self._answered(req, now), now)
            for row, req in enumerate(ended, start=first_row)
        }

    @staticmethod
    def _answered(req: Req, now: float) -> float:
        """Returns the time of the first token of a request that ended in the same step, before it was recorded; 0 if it
        has none.
        """
        return now if len(req.output_ids) or req.vector is not None else 0.0
