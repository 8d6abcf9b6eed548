"""Drawing and log-probabilities on CUDA, each row whatever the others are.

Torch's softmax reduces a row with one block of threads, in an order that depends on how the row's beginning is aligned;
its search for the highest leaves it open which of equals it takes. Drawing has two kernels, with filters and without.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from mysglang.srt.kernels.cuda import sampling
from mysglang.srt.kernels.sampling import Filters

ALIGNED = 8
"""Values, so that every row begins at the same alignment."""


def draw_tokens(
    logits: Tensor,
    uniforms: Tensor,
    temperature: Tensor,
    filters: Filters,
) -> Tensor:
    """As `kernels.sampling.draw_tokens`; always by the kernel with filters."""
    if filters.top_k is None:
        all_tokens = torch.iinfo(torch.int32).max
        top_k = torch.full((len(logits),), all_tokens, dtype=torch.int32, device=logits.device)
        filters = filters._replace(top_k=top_k)
    return sampling.draw_tokens(logits, uniforms, temperature, filters)


def log_probabilities(logits: Tensor) -> Tensor:
    """As `kernels.logprobs.log_probabilities`."""
    vocab = logits.shape[1]
    padded = F.pad(logits.float(), (0, -vocab % ALIGNED), value=float("-inf")).clone()
    return padded.log_softmax(dim=-1)[:, :vocab]


def most_likely(logprobs: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """As `kernels.logprobs.most_likely`; of equals the lower id, however many are wanted."""
    if count == 0:
        return logprobs[:, :0], torch.empty(len(logprobs), 0, dtype=torch.int64, device=logprobs.device)
    ranked = logprobs.sort(dim=-1, descending=True, stable=True)
    return ranked.values[:, :count], ranked.indices[:, :count]
