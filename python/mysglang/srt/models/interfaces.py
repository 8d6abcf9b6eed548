"""Protocols between the model executor and models. Each ability is a protocol of its own, and each feature asks for
one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, runtime_checkable

from torch import Tensor

from mysglang.srt.forward.forward_batch import AttentionSpec, ForwardBatch


class Decoder(Protocol):
    """Attends over what came before, in pages."""

    def forward(self, batch: ForwardBatch) -> Tensor:
        """[W, hidden_size] hidden states after the last norm, of the tokens that the batch wants."""
        ...


@runtime_checkable
class TakesWorkspace(Protocol):
    """A module that takes much memory between its products, given back when it is done."""

    workspace_per_token: int
    """Bytes."""


class CausalModel(Decoder, Protocol):
    """Predicts the next token of each position."""

    def compute_logits(self, hidden: Tensor) -> Tensor:
        """[N, hidden_size] -> [N, vocab_size], in the model's dtype."""
        ...

    def attention_specs(self) -> list[AttentionSpec]:
        """One for each attention layer of this rank, by layer: what the KV cache is made for."""
        ...

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Fill every parameter from a checkpoint's tensors. Raises ConfigError naming what does not fit."""
        ...
