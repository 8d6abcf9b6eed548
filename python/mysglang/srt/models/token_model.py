"""TokenModel: the interface of every model that predicts tokens, of our own layers or of others."""

from __future__ import annotations

from abc import abstractmethod

from torch import Tensor

from mysglang.srt.forward.forward_batch import AttentionSpec, ForwardBatch, StateSpec
from mysglang.srt.models.checkpoint_model import CheckpointModel


class TokenModel(CheckpointModel):
    """Attends over pages, and makes logits of hidden states."""

    @abstractmethod
    def forward(self, batch: ForwardBatch) -> Tensor:
        """[W, hidden_size] hidden states after the last norm, of the tokens that the batch wants."""

    @abstractmethod
    def compute_logits(self, hidden: Tensor) -> Tensor:
        """[N, hidden_size] -> [N, vocab_size]."""

    @abstractmethod
    def attention_specs(self) -> list[AttentionSpec]:
        """One for each attention layer of this rank, by layer: what the KV cache is made for."""

    @abstractmethod
    def state_specs(self) -> list[StateSpec]:
        """One for each layer of this rank that keeps a state for each request, by layer."""

    @abstractmethod
    def workspace(self, max_tokens: int) -> int:
        """Bytes that a step of so many tokens takes inside its layers, where that is much."""
