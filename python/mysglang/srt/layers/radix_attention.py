"""RadixAttention: one attention layer as a model sees it. Where keys and values lie is the pool's affair."""

from __future__ import annotations

from torch import Tensor, nn

from mysglang.srt.forward.forward_batch import AttentionSpec, ForwardBatch, Rotation


class RadixAttention(nn.Module):
    """Attention over the paged cache of the step's requests, shared prefixes included."""

    def __init__(self, spec: AttentionSpec) -> None:
        super().__init__()
        self.spec = spec

    def forward(self, q: Tensor, k: Tensor, v: Tensor, batch: ForwardBatch, rotation: Rotation | None = None) -> Tensor:
        """Stores k and v, and attends: q, k and v of all tokens, as `KvStore` says -> [W, num_heads * head_dim] of the
        wanted tokens.

        With a rotation, q and k come unrotated and are rotated in place.
        """
        backend = batch.attn_backend
        if rotation is None:
            self.store(k, v, batch)
        else:
            layer, loc = self.spec.layer_id, batch.loc_for(self.spec)
            backend.kv_pool.store_rotated(layer, loc, q, k, v, batch.positions, rotation)
        return self._attend(q, k, v, batch)

    def forward_stored(self, q: Tensor, batch: ForwardBatch) -> Tensor:
        """Attends over what an earlier layer has stored in this step and before: q as in `forward`, turned already."""
        nothing = q[:0]
        return self._attend(q, nothing, nothing, batch)

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, batch: ForwardBatch) -> Tensor:
        backend = batch.attn_backend
        if batch.tail is None or batch.tail.step is None:
            return batch.wanted(backend.forward(q, k, v, self.spec, batch))
        return backend.forward(batch.wanted(q), k, v, self.spec, batch.tail.step)

    def store(self, k: Tensor, v: Tensor, batch: ForwardBatch) -> None:
        """Writes keys and values of the step into the KV cache, as given: it does not rotate them."""
        batch.attn_backend.kv_pool.store(self.spec.layer_id, batch.loc_for(self.spec), k, v)


def attention_specs(model: nn.Module) -> list[AttentionSpec]:
    """Returns the spec of each attention layer of a model, in the order of its modules. Layers that attend over the
    same stored keys have the same `layer_id`.
    """
    return [module.spec for module in model.modules() if isinstance(module, RadixAttention)]
