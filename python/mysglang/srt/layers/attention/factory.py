"""Name -> attention backend. A backend's module, and what it needs installed, is imported when it is chosen."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from mysglang.srt.errors import ConfigError
from mysglang.srt.forward.forward_batch import AttentionBackend, AttentionSpec
from mysglang.srt.mem_cache.kv_pool.base import KvPool

BACKENDS = {
    "flashinfer": "mysglang.srt.layers.attention.flashinfer_backend:FlashInferBackend",
    "torch_native": "mysglang.srt.layers.attention.torch_native_backend:TorchNativeBackend",
    "triton": "mysglang.srt.layers.attention.triton_backend:TritonBackend",
}


FLASHINFER_DTYPES = (torch.bfloat16, torch.float16)
FLASHINFER_DIMS = (64, 128, 256)


def choose_backend(
    asked: str | None, available: Sequence[str], specs: Sequence[AttentionSpec], dtype: torch.dtype
) -> str:
    """The backend that was asked for, or the first of the platform's that takes these layers.

    Raises ConfigError if what was asked for does not run on this platform, or not with this model.
    """
    if asked in (None, "auto"):
        return next(name for name in available if not why_not(name, specs, dtype))
    assert asked is not None
    if asked not in available:
        raise ConfigError(f"--attention-backend {asked} does not run here. Choose one of {', '.join(available)}.")
    if reason := why_not(asked, specs, dtype):
        raise ConfigError(f"--attention-backend {asked}: {reason}. Choose another, or none.")
    return asked


def why_not(name: str, specs: Sequence[AttentionSpec], dtype: torch.dtype) -> str:
    """Why the backend cannot run such layers; empty if it can."""
    if name == "flashinfer":
        if importlib.util.find_spec("flashinfer") is None:
            return "the package flashinfer is not installed here"
        if dtype not in FLASHINFER_DTYPES:
            return f"it does not compute in {dtype}"
        if any(spec.head_dim not in FLASHINFER_DIMS for spec in specs):
            return f"it takes heads of {', '.join(map(str, FLASHINFER_DIMS))} dimensions only"
    if name == "triton" and importlib.util.find_spec("triton") is None:
        return "the package triton is not installed here"
    return ""


def create_attention_backend(name: str, pool: KvPool, page_table: Tensor) -> AttentionBackend:
    """The chosen backend over the pool and the page table ([num_slots + 1, max_pages] int32, changed by others)."""
    module, _, attribute = BACKENDS[name].partition(":")
    make: Callable[[KvPool, Tensor], AttentionBackend] = getattr(importlib.import_module(module), attribute)
    return make(pool, page_table)
