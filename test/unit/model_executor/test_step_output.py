"""Results of steps on the CPU: every step's tokens, however late they are read."""

import numpy as np
import torch

from mysglang.srt.layers.sampler import Sampled
from mysglang.srt.model_executor.padding import padding_decode
from mysglang.srt.model_executor.step_inputs import NOTHING_TO_STAGE
from mysglang.srt.model_executor.step_output import RETURNS, StepReturns
from mysglang.srt.platforms.cpu import CpuPlatform


def test_results_keep_their_tokens_though_memory_is_used_again() -> None:
    returns = StepReturns(CpuPlatform(), 4)
    results = []
    for step in range(3 * RETURNS):
        rows = step % 4 + 1
        sampled = Sampled(torch.arange(rows) + 10 * step)
        results.append(returns.queue(padding_decode(rows, 4), NOTHING_TO_STAGE, sampled, None))
    for step, result in enumerate(results):
        output = result.complete()
        assert output.tokens.tolist() == [10 * step + row for row in range(step % 4 + 1)]
        assert output.counts.tolist() == [1] * (step % 4 + 1)
        assert output.tokens.dtype == output.counts.dtype == np.int32


def test_a_step_without_tokens() -> None:
    returns = StepReturns(CpuPlatform(), 4)
    batch = padding_decode(2, 4)
    result = returns.queue(batch, NOTHING_TO_STAGE, Sampled(torch.zeros(0, dtype=torch.int64)), None)
    assert result.complete().tokens.tolist() == []
