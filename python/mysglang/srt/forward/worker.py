"""Worker: what the scheduler knows of the GPU wing. A plain model, a speculative pair, or a test's late device."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from mysglang.srt.forward.outputs import BatchResult
from mysglang.srt.forward.worker_batch import ModelWorkerBatch


@dataclass(frozen=True, slots=True)
class WindowShape:
    """The pool of the layers with one window."""

    window: int
    """Keys that a query sees, itself included."""
    num_pages: int
    """Numbered as those of the KV cache are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerCapacity:
    """What the worker's memory was found to hold, after the model was loaded."""

    num_pages: int
    """Pages of the KV cache that may be allocated. They are numbered 1 … num_pages; page 0 is for padding. 0: the model
    keeps nothing of a prompt."""
    page_size: int
    """Tokens of a page."""
    num_slots: int
    """Requests that can hold a row at once (slots 0 … num_slots - 1; the row after them is for padding)."""
    max_context: int
    """Positions of one row: the longest request, output included."""
    vocab_size: int
    windows: tuple[WindowShape, ...] = ()
    """Pools of the layers with a window, where these have pages of their own."""
    memory_usage: dict[str, float] = field(default_factory=dict)
    """GiB by purpose: weights, kvcache, graph."""
    startup_times: dict[str, float] = field(default_factory=dict)
    """Seconds by phase of the start: load_weight, kv_cache_allocation, cuda_graph_prefill, cuda_graph_decode."""

    @property
    def num_tokens(self) -> int:
        """Tokens that the KV cache holds."""
        return self.num_pages * self.page_size

    @property
    def window_tokens(self) -> int:
        """Tokens that the pools of layers with a window hold together."""
        return sum(shape.num_pages for shape in self.windows) * self.page_size


class Worker(Protocol):
    """Runs steps in the order they are given. Steps may finish late; their effects on KV pages are in order.

    `tokens_per_step` bounds the tokens that a decode step may commit for one row; planning reserves as many.
    `late_lengths`: whether steps may begin where only the device knows, since the step before is not done.
    """

    tokens_per_step: int
    late_lengths: bool
    capacity: WorkerCapacity

    def forward_batch_generation(self, batch: ModelWorkerBatch) -> BatchResult:
        """Launch the step and return at once, if the device can work alone.

        The tokens of a step that `waits_for_mask` are chosen when `BatchResult.sample` is called, which comes before
        the next step is launched.
        """
        ...
