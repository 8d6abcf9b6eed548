"""Name -> attention backend. A backend's module, and what it needs installed, is imported when it is chosen."""

from __future__ import annotations

import importlib
from collections.abc import Callable

from torch import Tensor

from mysglang.srt.errors import ConfigError
from mysglang.srt.forward.forward_batch import AttentionBackend
from mysglang.srt.mem_cache.kv_pool.base import KvPool

BACKENDS = {
    "flashinfer": "mysglang.srt.layers.attention.flashinfer_backend:FlashInferBackend",
    "torch_native": "mysglang.srt.layers.attention.torch_native_backend:TorchNativeBackend",
    "triton": "mysglang.srt.layers.attention.triton_backend:TritonBackend",
}


def create_attention_backend(name: str, pool: KvPool, page_table: Tensor) -> AttentionBackend:
    """The backend over the pool and the page table ([num_slots + 1, max_pages] int32, changed by others).

    Raises ConfigError for a name that is not known, or whose package is not installed.
    """
    if name not in BACKENDS:
        raise ConfigError(f"--attention-backend {name}: not known. Choose one of {', '.join(BACKENDS)}.")
    module, _, attribute = BACKENDS[name].partition(":")
    try:
        make: Callable[[KvPool, Tensor], AttentionBackend] = getattr(importlib.import_module(module), attribute)
    except ModuleNotFoundError as error:
        raise ConfigError(f"--attention-backend {name}: the package {error.name} is not installed here.") from error
    return make(pool, page_table)
