"""PlainAttention: attention of a few short sequences in float32, written out. The truth in the check of a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from mysglang.srt.forward.forward_batch import AttentionSpec
from mysglang.srt.models.transformers_backend.interface import Rotate
from mysglang.srt.models.transformers_backend.probe import CausalMask


@dataclass(slots=True)
class PlainAttention:
    """Attends over keys and values of sequences that it keeps, of which each pass brings some tokens."""

    specs: Sequence[AttentionSpec]
    """Specs of the calls of one pass, in order."""
    runs: Sequence[tuple[int, int]] = ()
    """Runs of the next pass: (sequence, number of its next tokens), one after another."""
    _kept: dict[tuple[int, int], tuple[Tensor, Tensor]] = field(default_factory=dict)
    _calls: int = 0

    def mask(self, sees: Callable[..., Tensor], width: int | None) -> object:
        return CausalMask(width)

    def turn(self, theirs: Rotate, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        return theirs(q, k, cos, sin)

    def embedded(self, x: Tensor) -> Tensor:
        return x

    def attend(
        self, module: nn.Module, q: Tensor, k: Tensor, v: Tensor, mask: object, arguments: Mapping[str, Any]
    ) -> Tensor:
        call = self._calls % len(self.specs)
        self._calls += 1
        spec, start, parts = self.specs[call], 0, []
        for sequence, length in self.runs:
            tokens = slice(start, start + length)
            keys, values = k[0, :, tokens], v[0, :, tokens]
            if (before := self._kept.get((call, sequence))) is not None:
                keys, values = torch.cat([before[0], keys], 1), torch.cat([before[1], values], 1)
            self._kept[call, sequence] = keys, values
            parts.append(_attended(q[0, :, tokens], keys, values, spec))
            start += length
        return torch.cat(parts).to(q.dtype)[None]


def _attended(q: Tensor, keys: Tensor, values: Tensor, spec: AttentionSpec) -> Tensor:
    """Attends. q: [heads, t, dim], of the last t tokens that have keys -> [t, heads, value_dim] float32."""
    group = spec.num_heads // spec.num_kv_heads
    keys, values = keys.float().repeat_interleave(group, 0), values.float().repeat_interleave(group, 0)
    scores = q.float() @ keys.transpose(1, 2) * spec.scale
    if spec.logit_cap:
        scores = spec.logit_cap * torch.tanh(scores / spec.logit_cap)
    length = keys.shape[1]
    at = torch.arange(length, device=q.device)
    query = at[-q.shape[1] :, None]
    hidden = (at > query) | (at <= query - (spec.window or length))
    scores = scores.masked_fill(hidden, -torch.inf)
    if spec.sinks is not None:
        sinks = spec.sinks.float().view(-1, 1, 1).expand(-1, len(q[0]), 1)
        scores = torch.cat([scores, sinks], -1)
    out = scores.softmax(-1)[..., :length] @ values
    return out.transpose(0, 1)
