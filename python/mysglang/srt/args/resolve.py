"""Fill every "auto" once. Pure functions, one for each group, run in the order of ArgGroups: each may read the groups
before its own, never those after. What only a loaded model can tell (tokens in the KV cache, requests that run at once)
stays open here; the scheduler process decides it and reports it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from mysglang.srt.args.groups import Groups
from mysglang.srt.args.kernels import KernelArgs
from mysglang.srt.args.memory import MemoryArgs
from mysglang.srt.args.model import ModelArgs
from mysglang.srt.args.parallel import ParallelArgs
from mysglang.srt.args.schedule import ScheduleArgs
from mysglang.srt.args.serving import ServingArgs
from mysglang.srt.utils.hardware import Hardware

EMBEDDED_MODEL = Path(__file__).parents[2] / "assets" / "tiny"
EMBEDDED_MODEL_NAME = "mysglang-tiny"


@dataclass(frozen=True, slots=True)
class _Tier:
    """Defaults of GPUs with less than `below` GiB. The numbers are SGLang's."""

    below: float
    chunked_prefill_size: int
    cuda_graph_max_bs: int


_TIERS = (
    _Tier(20, 2048, 8),
    _Tier(35, 4096, 48),
    _Tier(60, 4096, 32),
    _Tier(160, 8192, 256),
    _Tier(float("inf"), 16384, 512),
)
_CPU_CHUNK = 2048


def resolve(groups: Groups, hardware: Hardware, seed: int) -> Groups:
    """`groups` with its open choices made for `hardware`; `seed` is taken where the user gave none."""
    parallel = resolve_parallel(groups.parallel, hardware)
    model = resolve_model(groups.model, seed)
    schedule = resolve_schedule(groups.schedule, parallel, hardware)
    kernels = resolve_kernels(groups.kernels, schedule, parallel, hardware)
    memory = resolve_memory(groups.memory, kernels, schedule, parallel, hardware)
    serving = resolve_serving(groups.serving, groups.model)
    return replace(
        groups, parallel=parallel, model=model, schedule=schedule, kernels=kernels, memory=memory, serving=serving
    )


def resolve_parallel(args: ParallelArgs, hardware: Hardware) -> ParallelArgs:
    if args.device != "auto":
        return args
    return replace(args, device="cuda" if hardware.num_gpus else "cpu")


def resolve_model(args: ModelArgs, seed: int) -> ModelArgs:
    model_path = str(EMBEDDED_MODEL) if args.model_path is None else args.model_path
    return replace(
        args,
        model_path=model_path,
        tokenizer_path=model_path if args.tokenizer_path is None else args.tokenizer_path,
        random_seed=seed if args.random_seed is None else args.random_seed,
    )


def resolve_schedule(args: ScheduleArgs, parallel: ParallelArgs, hardware: Hardware) -> ScheduleArgs:
    if args.chunked_prefill_size is not None:
        return args
    chunk = _CPU_CHUNK if parallel.device == "cpu" else _tier(parallel, hardware).chunked_prefill_size
    return replace(args, chunked_prefill_size=chunk)


def resolve_kernels(args: KernelArgs, schedule: ScheduleArgs, parallel: ParallelArgs, hardware: Hardware) -> KernelArgs:
    if parallel.device == "cpu":
        if args.attention_backend == "auto":
            args = replace(args, attention_backend="torch_native")
        if args.sampling_backend == "auto":
            args = replace(args, sampling_backend="pytorch")
        return replace(args, disable_cuda_graph=True)
    if args.attention_backend == "auto":
        args = replace(args, attention_backend="flashinfer" if hardware.has_flashinfer else "triton")
    if args.sampling_backend == "auto":
        args = replace(args, sampling_backend="flashinfer" if hardware.has_flashinfer else "pytorch")
    return args if args.disable_cuda_graph else _resolve_graph_sizes(args, schedule, parallel, hardware)


def resolve_memory(
    args: MemoryArgs, kernels: KernelArgs, schedule: ScheduleArgs, parallel: ParallelArgs, hardware: Hardware
) -> MemoryArgs:
    """What a GPU keeps free: half a GiB, activations of a chunk, and the captured graphs; ten GiB on a big one."""
    if args.mem_fraction_static is not None or parallel.device == "cpu":
        return args
    total = _gpu_gib(parallel, hardware) * 1024
    reserved = 512 + 1.5 * max(schedule.chunked_prefill_size or 0, 2048) + parallel.tp_size / 8 * 1024
    if not kernels.disable_cuda_graph:
        reserved += 2 * (kernels.cuda_graph_max_bs or 0)
    if total > 60 * 1024:
        reserved = max(reserved, 10 * 1024)
    fraction = (total - reserved) / total if total else 0.0
    return replace(args, mem_fraction_static=round(min(max(fraction, 0.1), 0.95), 3))


def resolve_serving(args: ServingArgs, given: ModelArgs) -> ServingArgs:
    if args.served_model_name is not None:
        return args
    return replace(args, served_model_name=given.model_path or EMBEDDED_MODEL_NAME)


def graph_batch_sizes(max_bs: int) -> tuple[int, ...]:
    """Batch sizes to capture: dense where padding would cost much, wider apart above; `max_bs` itself is the last."""
    sizes = [1, 2, 4, 8, 12, *range(16, 257, 8), *range(272, 512, 16), *range(512, max_bs + 1, 32)]
    return (*[size for size in sizes if size < max_bs], max_bs)


def _resolve_graph_sizes(
    args: KernelArgs, schedule: ScheduleArgs, parallel: ParallelArgs, hardware: Hardware
) -> KernelArgs:
    if args.cuda_graph_bs:
        sizes = tuple(sorted(set(args.cuda_graph_bs)))
        return replace(args, cuda_graph_bs=sizes, cuda_graph_max_bs=sizes[-1])
    max_bs = args.cuda_graph_max_bs or _tier(parallel, hardware).cuda_graph_max_bs
    if schedule.max_running_requests is not None:
        max_bs = min(max_bs, schedule.max_running_requests)
    return replace(args, cuda_graph_max_bs=max_bs, cuda_graph_bs=graph_batch_sizes(max_bs))


def _tier(parallel: ParallelArgs, hardware: Hardware) -> _Tier:
    gib = _gpu_gib(parallel, hardware)
    return next(tier for tier in _TIERS if gib < tier.below)


def _gpu_gib(parallel: ParallelArgs, hardware: Hardware) -> float:
    """GiB of the smallest GPU that is used."""
    first = parallel.base_gpu_id
    return min(hardware.gpu_memory[first : first + parallel.tp_size], default=0.0)
