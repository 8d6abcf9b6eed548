"""capture_all: steps of several sizes into graphs.

The largest comes first, so that the others fit into the memory that it took. Knows no step: what is run is handed in.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
from tqdm import tqdm

from mysglang.srt.platforms.interface import GraphRecorder, Platform
from mysglang.srt.utils.hardware import GIB

logger = logging.getLogger(__name__)

SILENT_S = 2.0
"""What takes no longer shows no progress."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Captures(Generic[T]):
    """What was captured for each size, and the device memory that all of it took."""

    by_size: dict[int, T]
    nbytes: int


def capture_all(
    sizes: Sequence[int], capture: Callable[[int, GraphRecorder], T], platform: Platform, what: str
) -> Captures[T]:
    """Call `capture` for every size. `what` the sizes are is told to whoever waits for it. Raises CannotCapture."""
    began = time.perf_counter()
    with platform.recorder() as recorder, torch.inference_mode():
        shown = tqdm(sorted(sizes, reverse=True), desc=f"Capturing {what}", delay=SILENT_S)
        by_size = {size: capture(size, recorder) for size in shown}
        nbytes = recorder.nbytes
    logger.info("Captured %d %s in %.1f s, %.2f GiB", len(sizes), what, time.perf_counter() - began, nbytes / GIB)
    return Captures(by_size, nbytes)
