"""capture_all: steps of several sizes into CUDA graphs that share one pool of memory.

The largest comes first, so that the others fit into what it took; then what a replay leaves is good until the next one.
Knows no step: what is run is handed in.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
from tqdm import tqdm

from mysglang.srt.platforms.interface import Platform
from mysglang.srt.utils.hardware import GIB

logger = logging.getLogger(__name__)

T = TypeVar("T")
R = TypeVar("R")


class Recorder:
    """Puts steps into graphs whose memory comes from one pool."""

    def __init__(self) -> None:
        self._pool: Any = torch.cuda.graph_pool_handle()

    def record(self, step: Callable[[], R]) -> tuple[torch.cuda.CUDAGraph, R]:
        """The graph of a step, and the tensors in which each replay of it leaves what the step returns.

        The step runs as it is first, so that kernels are compiled and plans made.
        """
        step()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        # Not through torch.cuda.graph, which collects garbage and empties caches before every capture.
        graph.capture_begin(pool=self._pool)
        try:
            left = step()
        finally:
            graph.capture_end()
        return graph, left


@dataclass(frozen=True, slots=True)
class Captures(Generic[T]):
    """What was captured for each size, and the device memory that all of it took."""

    by_size: dict[int, T]
    nbytes: int


def capture_all(
    sizes: Sequence[int], capture: Callable[[int, Recorder], T], platform: Platform, what: str
) -> Captures[T]:
    """Call `capture` for every size. `what` the sizes are is told to whoever waits for it."""
    began, before = time.perf_counter(), platform.memory().free
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    recorder = Recorder()
    with torch.cuda.stream(stream), torch.inference_mode():
        by_size = {
            size: capture(size, recorder) for size in tqdm(sorted(sizes, reverse=True), desc=f"Capturing {what}")
        }
    torch.cuda.current_stream().wait_stream(stream)
    nbytes = before - platform.memory().free
    logger.info("Captured %d %s in %.1f s, %.2f GiB", len(sizes), what, time.perf_counter() - began, nbytes / GIB)
    return Captures(by_size, nbytes)
