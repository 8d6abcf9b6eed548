"""Which decode batch sizes are captured as CUDA graphs."""

from __future__ import annotations

from mysglang.srt.model_executor.runner_config import RunnerConfig
from mysglang.srt.platforms.interface import Platform

# (from this batch size on, one graph every so many rows)
STEPS = ((1, 1), (2, 2), (4, 4), (16, 8), (272, 16), (512, 32))


def graph_sizes(config: RunnerConfig, platform: Platform) -> tuple[int, ...]:
    """Ascending; empty where steps run without graphs. No size exceeds max_running_requests."""
    if config.disable_cuda_graph or not platform.has_graphs:
        return ()
    if config.cuda_graph_bs is not None:
        return tuple(sorted(set(config.cuda_graph_bs)))
    largest = config.cuda_graph_max_bs or platform.default_graph_max_bs()
    if config.max_running_requests is not None:
        largest = min(largest, config.max_running_requests)
    return usual_sizes(largest)


def usual_sizes(largest: int) -> tuple[int, ...]:
    """1, 2, 4, 8, 12, then every 8th, 16th and 32nd; and `largest` itself."""
    ends = [begin for begin, _ in STEPS[1:]] + [largest + 1]
    sizes = {size for (begin, step), end in zip(STEPS, ends, strict=True) for size in range(begin, end, step)}
    return tuple(sorted({size for size in sizes if size < largest} | {largest}))
