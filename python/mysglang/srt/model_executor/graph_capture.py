"""Which decode batch sizes and numbers of prompt tokens are captured as graphs, and capturing them.

The largest comes first, so that the others fit into the memory that it took. Knows no step: what is run is handed in.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from tqdm import tqdm

from mysglang.srt.model_executor.runner_config import RunnerConfig
from mysglang.srt.platforms.interface import GraphRecorder, Platform
from mysglang.srt.utils.hardware import GIB

PROMPT_STEPS = ((16, 16), (32, 32), (64, 64), (128, 128), (1024, 256), (2048, 512))
"""Steps between captured sizes like `Platform.graph_steps`, in tokens. Products have tiles of 128 rows, so padding up
to these costs little.
"""
LEAST_PROMPT_TOKENS, MOST_PROMPT_TOKENS = 256, 8192
MIXED_ROOMS = (16, 64, 256)
"""Decoding rows for which there is room in captured steps with prompts."""
MOST_DECODING = MIXED_ROOMS[-1]
LEAST_MIXED_TOKENS, MOST_LIGHT_TOKENS = 128, 512
"""Tokens of the shortest such step, and of the longest beside few decoding rows."""


def graph_sizes(config: RunnerConfig, platform: Platform) -> tuple[int, ...]:
    """Returns the sizes of captured decode steps, ascending; empty if steps run without graphs. No size exceeds
    max_running_requests.
    """
    if why_no_graphs(config, platform):
        return ()
    if config.cuda_graph_bs is not None:
        return tuple(sorted(set(config.cuda_graph_bs)))
    largest = config.cuda_graph_max_bs or platform.default_graph_max_bs()
    if config.max_running_requests is not None:
        largest = min(largest, config.max_running_requests)
    return tuple(sorted({*stepped(platform.graph_steps, largest), largest}))


def why_no_graphs(config: RunnerConfig, platform: Platform) -> str:
    """Returns the reason why no step is captured, whatever the model; empty if steps are captured."""
    if config.disable_cuda_graph:
        return "--disable-cuda-graph was given"
    return "" if platform.has_graphs else "steps cannot be captured here"


def prompt_sizes(config: RunnerConfig, platform: Platform, max_context: int, layer_weights: int) -> tuple[int, ...]:
    """Returns the numbers of new tokens to capture, ascending; empty where such steps run without graphs.

    layer_weights: of one layer, about. A step of so many tokens that the device computes as long at a layer as the host
    takes to queue it needs no graph.
    """
    if config.disable_prefill_cuda_graph or why_no_graphs(config, platform):
        return ()
    largest = config.cuda_graph_max_bs_prefill
    if largest is None:
        largest = min(MOST_PROMPT_TOKENS, max(LEAST_PROMPT_TOKENS, platform.profile.layer_products // layer_weights))
    largest = min(largest, max_context)
    return tuple(sorted({*stepped(PROMPT_STEPS, largest), largest}))


def mixed_sizes(prompt_tokens: tuple[int, ...], most_decoding: int) -> tuple[tuple[int, int], ...]:
    """Returns (new tokens, space for decoding rows among them) of the steps of prompts beside decoding rows to capture,
    ascending.

    Prompts have at least half of a step, so that its products are worth their time. With few decoding rows, long steps
    would only keep these waiting.
    """
    rooms = sorted({min(room, most_decoding) for room in MIXED_ROOMS} - {0})
    return tuple(
        sorted(
            (tokens, room)
            for room in rooms
            for tokens in prompt_tokens
            if max(2 * room, LEAST_MIXED_TOKENS) <= tokens <= max(8 * room, MOST_LIGHT_TOKENS)
        )
    )


def stepped(steps: tuple[tuple[int, int], ...], largest: int) -> tuple[int, ...]:
    """Returns, from each beginning on, the multiples of its step up to the next beginning or to `largest`."""
    ends = [begin for begin, _ in steps[1:]] + [largest + 1]
    spans = (range(begin, min(end, largest + 1), step) for (begin, step), end in zip(steps, ends, strict=True))
    return tuple(size for span in spans for size in span)


logger = logging.getLogger(__name__)

SILENT_S = 2.0
"""Seconds below which no progress is shown."""

T = TypeVar("T")
Size = TypeVar("Size", int, tuple[int, int])


def capture_all(
    sizes: Sequence[Size], capture: Callable[[Size, GraphRecorder], T], recorder: GraphRecorder, what: str
) -> dict[Size, T]:
    """Call `capture` for every size. `what` names the sizes in progress messages. Raises CannotCapture."""
    began, before = time.perf_counter(), recorder.nbytes
    with torch.inference_mode():
        shown = tqdm(sorted(sizes, reverse=True), desc=f"Capturing {what}", delay=SILENT_S)
        by_size = {size: capture(size, recorder) for size in shown}
    seconds, nbytes = time.perf_counter() - began, recorder.nbytes - before
    logger.info("Captured %d %s in %.1f s, %.2f GiB.", len(sizes), what, seconds, nbytes / GIB)
    return by_size
