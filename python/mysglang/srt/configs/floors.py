"""Lower bound for the time of a decode step: the bytes that it reads and the products that it computes.

A decode step reads all weights that its rows use, and the keys and values of its requests, once. No gaps, no launches,
and nothing overlaps. States that linear attention keeps are read and written. Worked out from a
config.json, before anything is loaded; `benchmark/` holds measurements beside the same floors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mysglang.srt.configs.checkpoint_sizes import DTYPE_BYTES, num_parameters
from mysglang.srt.configs.choices import KvCacheDtype
from mysglang.srt.configs.kv_cache_scheme import kv_cache_dtype_of
from mysglang.srt.configs.model_config import ModelConfig

TERA = 1e12


@dataclass(frozen=True, slots=True)
class Ceilings:
    """Highest rates of a device, as `benchmark/ceilings.py` measures them."""

    read: float
    """Bytes a second."""
    gemm: float
    """Floating point operations a second in a large bf16 product."""
    attention: float
    """Operations per second of causal attention over long prompts."""

    @classmethod
    def of(cls, measured: Mapping[str, Any]) -> Ceilings:
        """Builds the ceilings from the JSON object that `benchmark/ceilings.py` prints."""
        return cls(
            float(measured["read_tb_s"]) * TERA,
            float(measured["gemm_bf16_tflop_s"]) * TERA,
            float(measured["attention_bf16_tflop_s"]) * TERA,
        )


H200 = Ceilings(read=4.60 * TERA, gemm=803 * TERA, attention=520 * TERA)
"""Measured on one NVIDIA H200, 2026-11-20 (docs/performance.md)."""


@dataclass(frozen=True, slots=True)
class StepWork:
    """Bytes and operations of one decode step."""

    weight_bytes: float
    kv_bytes: float
    operations: float
    """Operations of the products with the weights, over all rows."""

    def seconds(self, ceilings: Ceilings) -> float:
        """Returns the floor: weights are read or multiplied with, whichever takes longer, then keys and values are
        read.
        """
        return max(self.weight_bytes / ceilings.read, self.operations / ceilings.gemm) + self.kv_bytes / ceilings.read


@dataclass(frozen=True, slots=True)
class Weights:
    """Matrices that have the same size in all layers."""

    copies: int
    """How many there are."""
    used: int
    """How many of them one token is multiplied with; fewer than `copies` are experts, and more are weights that several
    layers use.
    """
    elements: int
    """Weight elements of one copy, over all layers."""

    def read_by(self, rows: int) -> float:
        """Returns how many elements a step of `rows` tokens reads, on average, if each token is routed to random
        experts.
        """
        unread = max(0.0, 1 - self.used / self.copies) ** rows
        return self.elements * self.copies * (1 - unread)


@dataclass(frozen=True, slots=True)
class ModelSizes:
    """Sizes of a decoder that determine its memory and speed."""

    parameters: int
    """Number of parameters of all large matrices, including the embedding."""
    layers: tuple[Weights, ...]
    head: int
    """Elements of the matrix that makes logits."""
    kv_bytes: Mapping[int | None, int]
    """Window of layers (None: they see all tokens) -> bytes of keys and values of one token in all these layers."""
    read_bytes: Mapping[int | None, int]
    """Tokens that a query reads at most (None: all) -> bytes that all layers read of each: some layers read what
    another one keeps, and some read few of the tokens that they keep.
    """
    dtype_bytes: int
    state_bytes: int = 0
    """Bytes of the state that layers keep for each request, whatever its length."""

    @classmethod
    def of(cls, config: ModelConfig, kv_cache_dtype: KvCacheDtype = "auto") -> ModelSizes:
        """Computes the sizes of a decoder in its dtype.

        Raises ConfigError if its config.json asks for a KV cache that is not supported.
        """
        plan = config.plan
        dtype_bytes = DTYPE_BYTES.get(config.dtype, 2)
        elements: dict[tuple[int, int], int] = {}
        kv_bytes: dict[int | None, int] = {}
        kept_as = kv_cache_dtype_of(config.hf) or config.dtype if kv_cache_dtype == "auto" else kv_cache_dtype
        kept_bytes = 1 if kept_as.startswith("fp8") else DTYPE_BYTES.get(kept_as, 2)
        read_bytes: dict[int | None, int] = {}
        for matrix in plan.matrices(config.hidden_size):
            kind = (matrix.copies, matrix.used)
            elements[kind] = elements.get(kind, 0) + matrix.parameters
        for attention in plan.attentions:
            window = attention.window if (attention.window or config.context_len) < config.context_len else None
            kv_bytes[window] = kv_bytes.get(window, 0) + attention.kept_size * kept_bytes
            for most, size in attention.reads.items():
                seen = most if (most or config.context_len) < config.context_len else None
                read_bytes[seen] = read_bytes.get(seen, 0) + size * kept_bytes
        return cls(
            parameters=num_parameters(config),
            layers=tuple(Weights(copies, used, count) for (copies, used), count in elements.items()),
            head=config.hidden_size * config.vocab_size,
            kv_bytes=kv_bytes,
            read_bytes=read_bytes,
            dtype_bytes=dtype_bytes,
            state_bytes=sum(each.state_bytes(dtype_bytes) for each in plan.states),
        )

    @property
    def weight_bytes(self) -> int:
        """Memory of the weights."""
        return self.parameters * self.dtype_bytes

    @property
    def active_parameters(self) -> int:
        """Number of weights that one token is multiplied with."""
        return sum(weights.used * weights.elements for weights in self.layers) + self.head

    def kv_token_bytes(self, windows_share: float = 1.0) -> float:
        """Returns the bytes of one token in the KV cache, if layers with a window keep `windows_share` of the
        tokens.
        """
        return sum(size * (1.0 if window is None else windows_share) for window, size in self.kv_bytes.items())

    def decode_step(self, rows: int, context: int) -> StepWork:
        """Returns the work of a decode step: one token for each of `rows` requests that have `context` tokens each."""
        read = sum(weights.read_by(rows) for weights in self.layers) + self.head
        keys = sum(size * min(context, window or context) for window, size in self.read_bytes.items())
        # A state is read and written.
        kept = rows * (keys + 2 * self.state_bytes)
        return StepWork(read * self.dtype_bytes, kept, 2.0 * rows * self.active_parameters)
