"""WholePromptBackend: attention in both directions over the prompts of a step, for layers of decoders.

Prompts come whole, so that all keys that a query sees are in the step. Nothing is stored, and no page is read. Prompts
of similar length attend together, as those of encoders do (`layers/encoder_attention.py`).
"""

from __future__ import annotations

from typing import NoReturn

import torch
from torch import Tensor

from mysglang.srt.forward.forward_batch import (
    AttentionMetadata,
    AttentionSpec,
    ForwardBatch,
    Rotation,
)
from mysglang.srt.kernels.norm import rms_norm
from mysglang.srt.kernels.op import head_view
from mysglang.srt.kernels.rotary import rope
from mysglang.srt.layers.encoder_attention import PromptGroups, PromptLayout, attend
from mysglang.srt.platforms.upload import Uploader


class NothingStored:
    """The store of layers whose keys and values no later step reads (a `KvStore`)."""

    def space_of(self, layer_id: int) -> int:
        return 0

    def store(self, layer_id: int, loc: Tensor, k: Tensor, v: Tensor) -> None:
        """Does nothing: the step attends over k and v themselves."""

    def store_rotated(
        self, layer_id: int, loc: Tensor, q: Tensor, k: Tensor, v: Tensor, positions: Tensor, rotation: Rotation
    ) -> None:
        """Norms and rotates q and k in place."""
        dim = rotation.cos_sin.shape[-1]
        views = head_view(q, dim), head_view(k, dim)
        parts = list(views)
        if rotation.norms is not None:
            *weights, eps = rotation.norms
            parts = [rms_norm(part.contiguous(), weight, eps) for part, weight in zip(parts, weights, strict=True)]
        heads = torch.cat(parts, dim=1)
        rope(heads[:, :-1], heads[:, -1], positions, rotation.cos_sin, False)
        queries = views[0].shape[1]
        views[0].copy_(heads[:, :queries])
        views[1].copy_(heads[:, queries:])

    def store_index(self, layer_id: int, loc: Tensor, keys: Tensor) -> NoReturn:
        raise AssertionError("no layer with attention in both directions chooses its keys")


class WholePromptBackend:
    """Attention in both directions over whole prompts (an `AttentionBackend`)."""

    def __init__(self, uploader: Uploader) -> None:
        self.kv_pool = NothingStored()
        self._uploader = uploader

    def plan(self, batch: ForwardBatch) -> AttentionMetadata:
        """Groups the prompts of the step, and uploads where their tokens are."""
        host = batch.host
        assert bool((host.seq_lens == host.extend_lens).all()), "prompts come whole"
        layout = PromptLayout.of(host.extend_lens.tolist())
        up = self._uploader.upload({"tokens": layout.tokens, "real": layout.real, "places": layout.places})
        return PromptGroups(layout.groups, up["tokens"], up["real"], up["places"])

    def forward(self, q: Tensor, k: Tensor, v: Tensor, spec: AttentionSpec, batch: ForwardBatch) -> Tensor:
        groups = batch.attn_metadata
        assert isinstance(groups, PromptGroups) and spec.bidirectional and not spec.logit_cap and spec.sinks is None
        return attend(
            q,
            k,
            v,
            groups,
            spec.num_heads,
            num_kv_heads=spec.num_kv_heads,
            scale=spec.scale,
            window=spec.window,
        )
