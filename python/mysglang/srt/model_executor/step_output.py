"""From the device's answers to StepOutput: copies that are queued at launch, put together when the step is complete."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from mysglang.srt.forward.outputs import BatchResult, PositionLogprobs, StepOutput
from mysglang.srt.forward.worker_batch import ModelWorkerBatch
from mysglang.srt.layers.logprobs import Logprobs
from mysglang.srt.layers.sampler import Sampled
from mysglang.srt.model_executor.step_columns import LogprobLayout
from mysglang.srt.model_executor.step_inputs import StepInputs
from mysglang.srt.platforms.interface import Platform


@dataclass(frozen=True, slots=True)
class PendingLogprobs:
    """Log-probabilities on their way to the host."""

    values: Logprobs
    layout: LogprobLayout

    @classmethod
    def queue(cls, values: Logprobs | None, found: LogprobLayout | None) -> PendingLogprobs | None:
        if values is None or found is None:
            return None
        on_host = (to_host(t) for t in (values.chosen, values.top_vals, values.top_ids, values.pair_vals))
        return cls(Logprobs(*on_host), found)

    def arrived(self) -> PositionLogprobs:
        """To be called when the copies are done."""
        values = self.values
        wanted = np.arange(values.top_vals.shape[1]) < self.layout.top_num[:, None]
        return PositionLogprobs(
            chosen=values.chosen.numpy(),
            top_vals=values.top_vals.numpy()[wanted],
            top_ids=values.top_ids.numpy()[wanted],
            token_ids_vals=values.pair_vals.numpy(),
        )


def to_host(tensor: Tensor) -> Tensor:
    """Queue the copy. From CUDA it goes to pinned memory that the caching host allocator keeps until it is done."""
    return tensor.to("cpu", non_blocking=True)


def pending_result(
    platform: Platform, batch: ModelWorkerBatch, inputs: StepInputs, sampled: Sampled, prompt: Logprobs | None
) -> BatchResult:
    """Queue the copies of a step's answers. `prompt`: the log-probabilities of prompt tokens."""
    output_logprobs = PendingLogprobs.queue(sampled.logprobs, inputs.output_layout)
    prompt_logprobs = PendingLogprobs.queue(prompt, inputs.prompt_layout)
    tokens = to_host(sampled.tokens)
    done = platform.record_event()

    def finish() -> StepOutput:
        done.synchronize()
        return StepOutput(
            tokens=tokens.numpy().astype(np.int32),
            counts=batch.yields.astype(np.int32),
            output_logprobs=output_logprobs.arrived() if output_logprobs else None,
            prompt_logprobs=prompt_logprobs.arrived() if prompt_logprobs else None,
        )

    return BatchResult(finish)
