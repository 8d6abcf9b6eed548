"""page_identity: what the bytes of a stored page depend on beside its tokens, stated by the worker that computes them.

Two workers with the same identity may read each other's pages. The facts come from what the worker runs with: the
resolved model, how its weights were loaded, and the tensors of its pool. No flag is read.
"""

from __future__ import annotations

import json
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

from mysglang.srt.configs.load_config import LoadConfig
from mysglang.srt.configs.model_config import ModelConfig
from mysglang.srt.mem_cache.kv_pool.base import KvPool
from mysglang.srt.model_executor.runner_config import RunnerConfig
from mysglang.srt.utils.checkpoint_files import find_weights

LAYOUT_VERSION = 2
"""Version of the bytes of a page as `HostPages.read` returns them."""
SAMPLES, SAMPLE_BYTES = 16, 4096
"""Pieces of each file that are compared, and their length."""


def page_identity(model: ModelConfig, load: LoadConfig, config: RunnerConfig, pool: KvPool) -> str:
    """Returns a hash of weights, quantization, rope, lengths, the layout of a page, the rank and the kind of
    kernels.
    """
    ranks = config.ranks
    facts = {
        "layout": [LAYOUT_VERSION, *page_layout(pool)],
        "load": [load.load_format, load.format.seed_used(load.seed)],
        "weights": checkpoint_files(model.path),
        "quantization": load.quantization,
        "config": model.hf,
        # Rope, norms, windows and all other facts of the layers, as they were understood.
        "plan": repr(model.decoder),
        "code": model.served_as.model,
        # Some ropes are scaled by the longest request.
        "context_len": model.context_len,
        "dtype": model.dtype,
        "states": config.mamba_ssm_dtype or "float32",
        # Which kernels compute, as far as it is asked that their results be the same.
        "kernels": config.numerics,
        # Which heads, and which layers.
        "ranks": [[place.rank, place.size] for place in (ranks.tp, ranks.attention_tp, ranks.pp)],
    }
    return sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()


def page_layout(pool: KvPool) -> list[object]:
    """Returns shape, dtype and device of a page in each tensor of each layer, in the order in which bytes are in a
    block, and the scales of the layer's numbers.
    """
    return [
        [*tensor.shape[1:], str(tensor.dtype), tensor.device.type, *pool.scales(layer_id)]
        for layer_id in pool.layer_ids
        for tensor in pool.pages(layer_id)
    ]


def checkpoint_files(path: str) -> list[object]:
    """Returns name, size, time and a digest of samples of each file, so that a checkpoint that is written again counts
    as a different one. The time alone does not tell: images and archives may give all files the same.
    """
    files = sorted(Path(path).glob("*")) if Path(path).is_dir() else find_weights(Path(path)).paths
    found = [(file, file.stat()) for file in files if file.is_file()]
    return [[file.name, stat.st_size, stat.st_mtime_ns, _sampled(file, stat.st_size)] for file, stat in found]


def _sampled(path: Path, size: int) -> str:
    """Returns a hash of pieces of the file at equal distances, since all of a large checkpoint would take minutes to
    read. A file that may not be read holds no weights of this model.
    """
    digest = sha256()
    last = max(size - SAMPLE_BYTES, 0)
    with suppress(PermissionError), path.open("rb") as file:
        for index in range(SAMPLES):
            file.seek(last * index // (SAMPLES - 1))
            digest.update(file.read(SAMPLE_BYTES))
    return digest.hexdigest()
