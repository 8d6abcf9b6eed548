"""Where the model runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from mysglang.srt.args.field import arg

Device = Literal["auto", "cpu", "cuda"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelArgs:
    """On which devices, and how many."""

    device: Device = arg("auto", help="auto takes cuda if there is an NVIDIA GPU, else cpu.")
    base_gpu_id: int = arg(0, at_least=0, help="The GPU of the first rank.")
    tp_size: int = arg(
        1,
        at_least=1,
        aliases=("tp", "tensor_parallel_size"),
        help="Devices that share every layer (only 1 in this version).",
    )
