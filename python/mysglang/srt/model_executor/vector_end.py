"""The result of a step that makes vectors: copied at launch, read when the step is complete."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from mysglang.srt.forward.outputs import BatchResult, StepOutput
from mysglang.srt.forward.worker_batch import ModelWorkerBatch
from mysglang.srt.model_executor.step_output import to_host
from mysglang.srt.platforms.interface import Platform


def queue_vectors(batch: ModelWorkerBatch, vectors: Tensor | None, platform: Platform) -> BatchResult:
    """The result of the step that was queued last. vectors: [rows that yield, width] float32; None if none does."""
    counts = batch.yields.astype(np.int32)
    tokens = np.zeros(int(counts.sum()), dtype=np.int32)
    if vectors is None:
        return BatchResult(lambda: StepOutput(tokens=tokens, counts=counts))
    on_host = to_host(vectors)
    done = platform.record_event()

    def finish() -> StepOutput:
        done.synchronize()
        return StepOutput(tokens=tokens, counts=counts, vectors=on_host.numpy())

    return BatchResult(finish)
