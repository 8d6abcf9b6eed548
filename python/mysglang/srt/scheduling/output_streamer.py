"""OutputStreamer: what is new in each request -> one BatchTokenIDOutput for the step."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mysglang.srt.forward.worker_batch import Ints
from mysglang.srt.messages.channels import Sender
from mysglang.srt.messages.codec import ToDetokenizer
from mysglang.srt.messages.outputs import BatchTokenIDOutput, Counters, FinishReason, RowLogprobs
from mysglang.srt.scheduling.request import Req
from mysglang.srt.scheduling.request_table import RequestTable

NO_INTS: Ints = np.zeros(0, dtype=np.int32)


class OutputStreamer:
    """Sends tokens to the detokenizer when a request ended or enough of them piled up."""

    def __init__(self, table: RequestTable, to_detokenizer: Sender[ToDetokenizer]) -> None:
        self._table = table
        self._to_detokenizer = to_detokenizer

    def send(self, running: Ints, ended: Sequence[Req]) -> None:
        """Tell what is new in the slots `running` and in the requests that `ended` and have no slot any more."""
        due = self._due(running)
        reqs = [self._table.req(slot) for slot in due.tolist()]
        if not reqs and not ended:
            return
        table = self._table
        counts = table.known[due] - table.sent[due]
        pieces = [self._running_tokens(due, counts), *(req.ids[req.sent :] for req in ended)]
        all_counts = np.concatenate([counts, [len(piece) for piece in pieces[1:]]]).astype(np.int32)
        table.sent[due] = table.known[due]
        everyone = [*reqs, *ended]
        finished: dict[int, FinishReason] = {}
        for row, req in enumerate(ended, start=len(reqs)):
            assert req.finish is not None
            finished[row] = req.finish
        self._to_detokenizer.send(
            BatchTokenIDOutput(
                rids=[req.rid for req in everyone],
                token_ids=np.concatenate(pieces).astype(np.int32, copy=False).tobytes(),
                token_counts=all_counts.tobytes(),
                decode_flags=bytes([req.decode_flags for req in everyone]),
                counters=self._counters(due, everyone, ended),
                finished=finished,
                logprobs=self._logprobs(everyone),
                stops=self._stops(everyone),
            )
        )

    def _due(self, slots: Ints) -> Ints:
        """The slots whose unsent tokens reached their interval; a stream's first token goes at once."""
        table = self._table
        unsent = table.known[slots] - table.sent[slots]
        first = table.streams[slots] & (table.sent[slots] == table.prompt_len[slots])
        due: Ints = slots[(unsent > 0) & (first | (unsent >= table.interval[slots]))]
        return due

    def _running_tokens(self, slots: Ints, counts: Ints) -> Ints:
        """The unsent tokens of `slots`, one request after another."""
        table = self._table
        if not len(slots):
            return NO_INTS
        if int(counts.max()) == 1:
            newest: Ints = table.tokens[slots, table.known[slots] - 1]
            return newest
        spans = zip(slots.tolist(), table.sent[slots].tolist(), table.known[slots].tolist(), strict=True)
        return np.concatenate([table.tokens[slot, sent:known] for slot, sent, known in spans])

    def _counters(self, due: Ints, everyone: Sequence[Req], ended: Sequence[Req]) -> Counters:
        table = self._table
        prompt = np.concatenate([table.prompt_len[due], [req.prompt_len for req in ended]])
        known = np.concatenate([table.known[due], [len(req.ids) for req in ended]])
        cached = np.asarray([req.cached_tokens for req in everyone])
        retractions = np.asarray([req.retractions for req in everyone])
        columns = (prompt, known - prompt, cached, retractions)
        return Counters(*(column.astype(np.int32).tobytes() for column in columns))

    def _logprobs(self, everyone: Sequence[Req]) -> dict[int, RowLogprobs]:
        return {row: req.logprobs.take() for row, req in enumerate(everyone) if req.logprobs is not None}

    def _stops(self, everyone: Sequence[Req]) -> dict[int, list[str]]:
        stops: dict[int, list[str]] = {}
        for row, req in enumerate(everyone):
            if not req.opened:
                req.opened = True
                if req.sampling.stop:
                    stops[row] = req.sampling.stop
        return stops
