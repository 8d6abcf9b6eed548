"""TimedDevice: a worker that returns given tokens as late as a GPU would. It computes nothing, and sleeps instead.

                    launch n+1            mask of n+1
host     ──plan─────────┬───apply n, masks────┬──────plan──
device   ──forward n────┴──forward n+1────────┴─choose─────
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np
from idle_worker import IdleWorker

from mysglang.srt.forward.outputs import BatchResult, StepOutput
from mysglang.srt.forward.worker import SpaceShape, WorkerCapacity
from mysglang.srt.forward.worker_batch import Ints, ModelWorkerBatch, TokenMask

STEP_ROWS, STEP_MS = (1, 64, 256), (4.0, 7.0, 16.0)
"""A decode step of so many rows of an 8B model on an H200, about, in milliseconds (docs/performance.md)."""
PROMPT_MS = 95 / 4096
"""A token of a prompt."""
UPLOAD_BYTES_MS = 25e6
"""Bytes per millisecond of masks, over PCIe."""
MEMORY_BYTES_MS = 4e9
"""Bytes per millisecond of the device's own memory."""


class TimedDevice(IdleWorker):
    """A worker. Row r of slot s says `scripts[s]`, a token each step, from the step that ends its prompt on."""

    def __init__(
        self, scripts: Sequence[Sequence[int]], *, context: int, vocab_size: int, obedient: bool = False
    ) -> None:
        """`obedient`: where a mask forbids what the script says, something else is said."""
        self._obedient = obedient
        rows = len(scripts)
        spaces = (SpaceShape(rows * context + 1024, 1),)
        super().__init__(WorkerCapacity(spaces=spaces, num_slots=rows, max_context=context, vocab_size=vocab_size))
        self._scripts = np.zeros((rows, max(map(len, scripts))), dtype=np.int32)
        for row, script in enumerate(scripts):
            self._scripts[row, : len(script)] = script
        self._place: Ints = np.zeros(rows, dtype=np.int32)
        self._free_at = 0.0
        """When the device has done all that it was given, in seconds."""

    def forward_batch_generation(self, batch: ModelWorkerBatch) -> BatchResult:
        self._place[batch.slots[batch.seq_lens == batch.extend_lens]] = 0
        slots = batch.slots[batch.yields]
        tokens = self._scripts[slots, self._place[slots]]
        self._place[slots] += 1
        output = StepOutput(tokens=tokens, counts=batch.yields.astype(np.int32))
        done = self._free_at = max(time.perf_counter(), self._free_at) + _step_ms(batch) / 1e3
        if not batch.waits_for_mask:
            return BatchResult(_at(done, output))

        def choose(mask: TokenMask) -> BatchResult:
            places = np.searchsorted(np.flatnonzero(batch.yields), mask.rows)
            held = output.tokens[places]
            words = mask.bits[np.arange(len(held)), held >> 5]
            for row in np.flatnonzero((words >> (held & 31) & 1) == 0).tolist():
                assert self._obedient, "a valid document was refused"
                output.tokens[places[row]] = _first(mask.bits[row])
            upload = mask.bits.nbytes / UPLOAD_BYTES_MS / 1e3
            read_and_written = 2 * 4 * len(held) * self.capacity.vocab_size / MEMORY_BYTES_MS / 1e3
            self._free_at = max(done, time.perf_counter() + upload) + read_and_written
            return BatchResult(_at(self._free_at, output))

        return BatchResult.waiting(choose)


def _first(bits: Ints) -> int:
    """The first token that a row of a mask allows."""
    return int(np.unpackbits(bits.view(np.uint8), bitorder="little").argmax())


def _step_ms(batch: ModelWorkerBatch) -> float:
    decoding = batch.extend_lens == 1
    rows = int(np.count_nonzero(decoding))
    prompt_tokens = int(batch.extend_lens[~decoding].sum())
    return prompt_tokens * PROMPT_MS + (float(np.interp(rows, STEP_ROWS, STEP_MS)) if rows else 0.0)


def _at(when: float, output: StepOutput) -> Callable[[], StepOutput]:
    def wait() -> StepOutput:
        if (left := when - time.perf_counter()) > 0:
            time.sleep(left)
        return output

    return wait
