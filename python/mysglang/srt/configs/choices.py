"""Names that options take, for flags and configs alike. Importing this costs nothing."""

from __future__ import annotations

from typing import Literal, TypeAlias

LoadFormat: TypeAlias = Literal["auto", "safetensors", "pt", "gguf", "sharded_state", "remote", "dummy"]
"""Values of `--load-format`; what each does is in `configs/load_format.py`."""

KvCacheDtype: TypeAlias = Literal["auto", "bf16", "bfloat16", "fp8_e4m3", "fp8_e5m2"]
"""Values of `--kv-cache-dtype`."""

MambaSsmDtype: TypeAlias = Literal["float32", "bfloat16"]
"""Values of `--mamba-ssm-dtype`."""

Quantization: TypeAlias = Literal["int8wo"]
"""Values of `--quantization`."""
