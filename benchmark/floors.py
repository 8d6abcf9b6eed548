"""The least time that one device can take for a workload, from its measured ceilings and the arithmetic of the model.

Every prompt token is computed once, and every decode step reads all weights and the keys and values of its requests
once; what several requests share is computed and read once for all. No gaps, no launches, and nothing overlaps.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mysglang.srt.configs.floors import Ceilings, StepWork

__all__ = ["Ceilings", "ModelSizes", "decode_step", "measured_ceilings", "offline", "prefill"]

BF16 = 2


def measured_ceilings() -> dict[str, Any]:
    """The ceilings that `ceilings.py` measures, in a process that ends before an engine takes the device's memory."""
    done = subprocess.run([sys.executable, Path(__file__).with_name("ceilings.py")], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"ceilings.py failed:\n{done.stderr}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@dataclass(frozen=True, slots=True)
class ModelSizes:
    """Sizes of a model that determine its floors."""

    layer_weights: int
    """Elements of all matrices of all layers."""
    head_weights: int
    """Weights of the last matrix, which only sampled tokens go through."""
    kv_bytes: int
    """Bytes of one token's KV cache in all layers."""
    query_width: int
    """heads * head_dim * layers: a query and a key cost four operations for each of them."""

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> ModelSizes:
        """Sizes from a config.json of a dense model."""
        hidden, layers, dim = config["hidden_size"], config["num_hidden_layers"], config["head_dim"]
        heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
        attention = hidden * dim * (2 * heads + 2 * kv_heads)
        return cls(
            layer_weights=layers * (attention + 3 * hidden * config["intermediate_size"]),
            head_weights=hidden * config["vocab_size"],
            kv_bytes=layers * 2 * kv_heads * dim * BF16,
            query_width=layers * heads * dim,
        )

    @property
    def weight_bytes(self) -> int:
        return BF16 * (self.layer_weights + self.head_weights)


def decode_step(sizes: ModelSizes, ceilings: Ceilings, rows: int, cached_tokens: int) -> float:
    """Seconds for one token of each of `rows` requests; `cached_tokens` are those of all of them, shared ones once."""
    operations = 2.0 * rows * sizes.weight_bytes / BF16
    return StepWork(sizes.weight_bytes, cached_tokens * sizes.kv_bytes, operations).seconds(ceilings)


def prefill(sizes: ModelSizes, ceilings: Ceilings, prompts: Sequence[int], shared: int = 0) -> float:
    """Seconds until the first token of each prompt. The first `shared` tokens are the same in all of them."""
    lengths = np.asarray(prompts, dtype=np.float64)
    tokens = shared + float(np.sum(lengths - shared))
    # A causal triangle for each prompt, without the one over the shared part but for once.
    pairs = float(np.sum(lengths**2 - shared**2)) / 2 + shared**2 / 2
    products = 2 * (tokens * sizes.layer_weights + len(lengths) * sizes.head_weights) / ceilings.gemm
    attention = 4 * pairs * sizes.query_width / ceilings.attention
    return max(products + attention, sizes.weight_bytes / ceilings.read)


def offline(
    sizes: ModelSizes, ceilings: Ceilings, prompts: Sequence[int], outputs: Sequence[int], shared: int = 0
) -> float:
    """Seconds for all requests, started together and all running at once: prefill, then decode steps."""
    lengths, wanted = np.asarray(prompts), np.asarray(outputs)
    seconds = prefill(sizes, ceilings, prompts, shared)
    for step in range(1, int(wanted.max(initial=1))):
        running = wanted > step
        cached = int(np.sum(lengths[running] - shared + step)) + shared
        seconds += decode_step(sizes, ceilings, int(running.sum()), cached)
    return seconds
