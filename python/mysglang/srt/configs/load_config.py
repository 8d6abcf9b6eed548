"""LoadConfig: where weights come from and how they are read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

LoadFormat: TypeAlias = Literal["auto", "safetensors", "pt", "gguf", "sharded_state", "remote", "dummy"]
KvCacheDtype: TypeAlias = Literal["auto", "bf16", "bfloat16", "fp8_e4m3", "fp8_e5m2"]
Quantization: TypeAlias = Literal["int8wo"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadConfig:
    """How a model's weights are loaded."""

    load_format: LoadFormat = "auto"
    """auto: the files of the model's directory, in the first format that is there. sharded_state: files that
    `save_sharded_model` wrote, as each rank holds the model. remote: byte ranges of files behind a URL. dummy: random
    values.
    """
    quantization: Quantization | None = None
    """Quantization of the weights of linear layers; None: they are not quantized."""
    seed: int = 0
    """Seed of the dummy values."""
    num_threads: int = 4
    """Tensors that go to a device at the same time."""

    @property
    def reads_checkpoint(self) -> bool:
        """True if the weights come from files with a checkpoint's names, which can be read again by these names."""
        return reads_checkpoint(self.load_format)


def reads_checkpoint(load_format: LoadFormat) -> bool:
    """True if files of this format are local ones with a checkpoint's names."""
    return load_format not in ("dummy", "sharded_state", "remote")


def draft_format(load_format: LoadFormat) -> LoadFormat:
    """Returns the format of a draft beside a model of this format. Beside a sharded state and a model
    behind a URL, the draft is an ordinary checkpoint.
    """
    return "auto" if load_format in ("sharded_state", "remote") else load_format
