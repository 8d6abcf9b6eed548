"""One batch of equal requests, straight on a worker: no server, no scheduler, no text. Measures the step alone.

Prompts go in steps of at most `chunk` tokens, as the scheduler would send them; then every step decodes one token of
each request. Each is waited for, so that a latency is a whole step, host work included; or, on request, launched while
the one before still runs, as the server does.
"""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from mysglang.srt.forward.outputs import BatchResult
from mysglang.srt.forward.worker import Worker, WorkerCapacity
from mysglang.srt.forward.worker_batch import ON_DEVICE, ForwardMode, Ints, Longs, ModelWorkerBatch
from mysglang.srt.mem_cache.factory import prefix_cache
from mysglang.srt.mem_cache.kv_manager import KvManager
from mysglang.srt.mem_cache.window_space import row_tokens

NO_IDS: Ints = np.empty(0, dtype=np.int32)


@dataclass(frozen=True, slots=True)
class OneBatchResult:
    """Results for one batch. Latencies in seconds, rates in tokens a second."""

    batch_size: int
    input_len: int
    output_len: int
    prefill_latency: float
    decode_latencies: list[float]
    """Seconds of each decode step; empty if the output is one token, because prefill yields that one."""

    @property
    def prefill_throughput(self) -> float:
        return self.batch_size * self.input_len / self.prefill_latency

    @property
    def total_latency(self) -> float:
        return self.prefill_latency + sum(self.decode_latencies)

    @property
    def overall_throughput(self) -> float:
        """Tokens per second of input and output together."""
        return self.batch_size * (self.input_len + self.output_len) / self.total_latency

    @property
    def median_decode_latency(self) -> float | None:
        return statistics.median(self.decode_latencies) if self.decode_latencies else None

    def flat(self) -> dict[str, Any]:
        """Returns all figures under SGLang's JSON keys."""
        median = self.median_decode_latency
        decode = {} if median is None else {"median_decode_throughput": self.batch_size / median}
        return {
            "batch_size": self.batch_size,
            "input_len": self.input_len,
            "output_len": self.output_len,
            "prefill_latency": self.prefill_latency,
            "prefill_throughput": self.prefill_throughput,
            "median_decode_latency": median,
            **decode,
            "total_latency": self.total_latency,
            "overall_throughput": self.overall_throughput,
        }


class OneBatch:
    """Runs batches on one worker, one after another, each on an empty KV cache."""

    def __init__(self, worker: Worker, chunk: int) -> None:
        """`chunk`: the largest number of tokens in a prefill step."""
        self._worker = worker
        self.chunk = chunk

    def why_not(self, batch_size: int, input_len: int, output_len: int) -> str | None:
        """Returns why the worker cannot hold such a batch, or None if it can."""
        capacity, length = self._worker.capacity, input_len + output_len
        if batch_size > capacity.num_slots:
            return f"{batch_size} requests are more than the {capacity.num_slots} that can run at once"
        if length > capacity.max_context:
            return f"{length} tokens are more than a request of {capacity.max_context} may hold"
        pages = batch_size * -(-length // capacity.page_size)
        if pages > capacity.num_pages:
            return f"{batch_size} x {length} tokens are more than the KV cache of {capacity.num_tokens} holds"
        for shape in capacity.spaces:
            if shape.window is None:
                continue
            kept = min(length, row_tokens(shape.window, capacity.page_size))
            if batch_size * kept + min(self.chunk, batch_size * input_len) > shape.num_tokens:
                return f"{batch_size} x {kept} tokens and a chunk are more than the pool of window {shape.window} holds"
        return None

    def rows(self, batch_size: int, input_len: int, *, seed: int) -> Rows:
        """Makes rows with random prompts, of which nothing has been computed yet."""
        vocab_size = self._worker.capacity.vocab_size
        ids = np.random.default_rng(seed).integers(0, vocab_size, (batch_size, input_len), dtype=np.int32)
        return Rows(self._worker, ids)

    def run(
        self, batch_size: int, input_len: int, output_len: int, *, seed: int, overlap: bool = False
    ) -> OneBatchResult:
        """Measures random prompts of `input_len` tokens, answered greedily with `output_len` tokens.

        With `overlap` the latency of a decode step is the time between its end and that of the step before.
        """
        assert not self.why_not(batch_size, input_len, output_len)
        rows = self.rows(batch_size, input_len, seed=seed)
        start = time.perf_counter()
        self.prefill(rows)
        prefill_latency = time.perf_counter() - start
        decode_latencies = self.decode(rows, output_len - 1, overlap=overlap)
        return OneBatchResult(batch_size, input_len, output_len, prefill_latency, decode_latencies)

    def prefill(self, rows: Rows) -> None:
        """Compute the prompts, and wait for the first token of each."""
        result = None
        for batch in rows.prefill(self.chunk):
            result = self._worker.forward_batch_generation(batch)
        assert result is not None
        result.complete()

    def decode(self, rows: Rows, steps: int, *, overlap: bool) -> list[float]:
        """Runs that many decode steps, and returns the seconds of each."""
        latencies = []
        in_flight: deque[BatchResult] = deque()
        last = time.perf_counter()
        for launched in range(1, steps + 1):
            in_flight.append(self._worker.forward_batch_generation(rows.decode()))
            while len(in_flight) > (overlap and launched < steps):
                in_flight.popleft().complete()
                now = time.perf_counter()
                latencies.append(now - last)
                last = now
        return latencies


class Rows:
    """The requests of one batch: their present lengths, and the places of their keys and values."""

    def __init__(self, worker: Worker, ids: Ints) -> None:
        capacity = worker.capacity
        self._ids = ids
        self._kv = make_kv(capacity)
        self._slots: Longs = np.array([self._open() for _ in ids], dtype=np.int64)
        self._lens: Ints = np.zeros(len(ids), dtype=np.int32)

    def prefill(self, chunk: int) -> Iterator[ModelWorkerBatch]:
        """Yields the steps that compute all prompts, row after row."""
        whole = self._ids.shape[1]
        first = 0
        while first < len(self._slots):
            lens: Ints = np.minimum(whole - self._lens[first:], chunk)
            lens = lens[np.cumsum(lens) - lens < chunk]  # the rows of this step; the last one may have to stop early
            lens[-1] -= max(0, int(lens.sum()) - chunk)
            rows = slice(first, first + len(lens))
            starts = self._lens[rows].copy()
            ids = [
                self._ids[first + at, start : start + count]
                for at, (start, count) in enumerate(zip(starts, lens, strict=True))
            ]
            yields = starts + lens == whole
            yield self._step(rows, np.concatenate(ids), lens, yields, ForwardMode.EXTEND)
            for slot, held in zip(self._slots[rows].tolist(), self._lens[rows].tolist(), strict=True):
                self._kv.extend(slot, held)  # what windows have passed is free now that the step was launched
            first += int(yields.sum())

    def decode(self) -> ModelWorkerBatch:
        """Plans a step that computes one more token of each row. Only the device knows the newest tokens, which are its
        input.
        """
        count = len(self._slots)
        ids: Ints = np.full(count, ON_DEVICE, dtype=np.int32)
        ones: Ints = np.ones(count, dtype=np.int32)
        return self._step(slice(count), ids, ones, np.ones(count, dtype=np.bool_), ForwardMode.DECODE)

    def cut(self, length: int) -> None:
        """Forgets all tokens behind the first `length` of each row. No step may be in flight."""
        self._lens[:] = length
        self._kv.trim_rows(self._slots, self._lens)

    def _step(
        self,
        rows: slice,
        ids: Ints,
        lens: Ints,
        yields: np.ndarray[Any, np.dtype[np.bool_]],
        mode: ForwardMode,
    ) -> ModelWorkerBatch:
        slots, starts = self._slots[rows], self._lens[rows].copy()
        self._lens[rows] += lens
        seq_lens = self._lens[rows].copy()
        fits = self._kv.extend_rows(slots, seq_lens)
        assert fits, "the batch was measured before"
        return ModelWorkerBatch(
            mode=mode,
            input_ids=ids,
            slots=slots,
            seq_lens=seq_lens,
            extend_lens=lens,
            out_cache_locs=self._kv.in_spaces(self._kv.locations(slots, starts, lens)),
            yields=yields,
            table_writes=self._kv.take_writes(),
            states=self._kv.take_states(slots, starts),
        )

    def _open(self) -> int:
        return self._kv.open(self._kv.match(NO_IDS, extra_key="", limit=0))


def make_kv(capacity: WorkerCapacity) -> KvManager:
    """Returns the KV cache for one batch whose requests share no prefix."""
    cache = prefix_cache("chunk")
    return KvManager(capacity.spaces, capacity.num_slots, capacity.max_context, cache, states=capacity.states)
