"""RadixAttention: one attention layer as a model sees it. Where keys and values lie is the backend's affair."""

from __future__ import annotations

from torch import Tensor, nn

from mysglang.srt.forward.forward_batch import AttentionSpec, ForwardBatch


class RadixAttention(nn.Module):
    """Attention over the paged cache of the step's requests, shared prefixes included."""

    def __init__(self, spec: AttentionSpec) -> None:
        super().__init__()
        self.spec = spec

    def forward(self, q: Tensor, k: Tensor, v: Tensor, batch: ForwardBatch) -> Tensor:
        """Shapes as in `AttentionBackend.forward`; q, k and v may be slices of one wider projection."""
        return batch.attn_backend.forward(q, k, v, self.spec, batch)
