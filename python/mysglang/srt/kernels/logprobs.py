"""Log-probabilities of whole rows of logits, and the most likely tokens of a row."""

from __future__ import annotations

from torch import Tensor

from mysglang.srt.kernels.op import Op


def _log_probabilities(logits: Tensor) -> Tensor:
    """[N, vocab] of any dtype -> float32 [N, vocab]."""
    return logits.float().log_softmax(dim=-1)


def _most_likely(logprobs: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """[N, count] values, the highest first, and their ids, int64. Of equals, any come first, and any are left out."""
    top = logprobs.topk(count, dim=-1)
    return top.values, top.indices


log_probabilities = Op(
    "log_probabilities",
    reference=_log_probabilities,
    invariant={
        "cpu": "mysglang.srt.kernels.cpu.invariant:log_probabilities",
        "cuda": "mysglang.srt.kernels.cuda.invariant_logprobs:log_probabilities",
    },
)
most_likely = Op(
    "most_likely",
    reference=_most_likely,
    invariant={
        "cpu": "mysglang.srt.kernels.cpu.invariant:most_likely",
        "cuda": "mysglang.srt.kernels.cuda.invariant_logprobs:most_likely",
    },
)
