"""capture_all: steps of several sizes into graphs.

The largest comes first, so that the others fit into the memory that it took. Knows no step: what is run is handed in.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from tqdm import tqdm

from mysglang.srt.platforms.interface import GraphRecorder
from mysglang.srt.utils.hardware import GIB

logger = logging.getLogger(__name__)

SILENT_S = 2.0
"""Seconds below which no progress is shown."""

T = TypeVar("T")


def capture_all(
    sizes: Sequence[int], capture: Callable[[int, GraphRecorder], T], recorder: GraphRecorder, what: str
) -> dict[int, T]:
    """Call `capture` for every size. `what` names the sizes in progress messages. Raises CannotCapture."""
    began, before = time.perf_counter(), recorder.nbytes
    with torch.inference_mode():
        shown = tqdm(sorted(sizes, reverse=True), desc=f"Capturing {what}", delay=SILENT_S)
        by_size = {size: capture(size, recorder) for size in shown}
    seconds, nbytes = time.perf_counter() - began, recorder.nbytes - before
    logger.info("Captured %d %s in %.1f s, %.2f GiB", len(sizes), what, seconds, nbytes / GIB)
    return by_size
