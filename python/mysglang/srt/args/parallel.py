"""Options that divide the model among devices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from mysglang.srt.args.field import arg

Device = Literal["auto", "cpu", "cuda"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelArgs:
    """The device, or devices, that compute."""

    device: Device = arg("auto", help="The device that computes. auto: cuda if there is an NVIDIA GPU, else cpu.")
    base_gpu_id: int = arg(
        0,
        at_least=0,
        help="Number of the GPU to use, as CUDA_VISIBLE_DEVICES numbers them. Use it on a machine with several GPUs.",
    )
    gpu_id_step: int = arg(
        1,
        at_least=0,
        help=(
            "Step from the GPU number of one rank to that of the next. 0: all ranks share the GPU --base-gpu-id, which "
            "is for tests, not for speed."
        ),
    )
    tp_size: int = arg(
        1,
        at_least=1,
        aliases=("tp", "tensor_parallel_size"),
        help="Number of processes (ranks) that share every layer, each on a GPU of its own or on its part of the CPU.",
    )
    pp_size: int = arg(
        1,
        at_least=1,
        aliases=("pp", "pipeline_parallel_size"),
        help="Stages that divide the layers among them, one after another, each of --tp-size ranks.",
    )

    @property
    def gpus(self) -> list[int]:
        """The GPU of each rank, if they compute on GPUs; those of the first stage come first."""
        return [self.base_gpu_id + self.gpu_id_step * number for number in range(self.num_ranks)]

    @property
    def ranks_per_gpu(self) -> int:
        """Number of ranks that share the memory of a GPU."""
        return self.num_ranks if self.gpu_id_step == 0 else 1

    @property
    def num_ranks(self) -> int:
        """Number of processes that compute."""
        return self.tp_size * self.pp_size
