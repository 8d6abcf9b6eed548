"""Worker: what the scheduler knows of the GPU wing. A plain model, a speculative pair, or a test's late device."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from mysglang.srt.forward.outputs import BatchResult
from mysglang.srt.forward.page_space import SpaceShape, StateShape
from mysglang.srt.forward.worker_batch import ModelWorkerBatch


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerCapacity:
    """Capacity of the worker's memory, measured after the model was loaded."""

    spaces: tuple[SpaceShape, ...]
    """The page spaces of the model; the first is that of the rows."""
    states: StateShape | None = None
    """None: no layer of the model keeps a state."""
    num_slots: int
    """Requests that can hold a row at once (slots 0 … num_slots - 1; the row after them is for padding)."""
    max_context: int
    """Positions of one row: the longest request, output included."""
    vocab_size: int
    memory_usage: dict[str, float] = field(default_factory=dict)
    """GiB by purpose: weights, kvcache, graph, slots; states, where layers keep some for each request."""
    startup_times: dict[str, float] = field(default_factory=dict)
    """Seconds by phase of the start: load_weight, kv_cache_allocation, cuda_graph_prefill, cuda_graph_decode."""

    @property
    def num_pages(self) -> int:
        """Pages of the rows' space."""
        return self.spaces[0].num_pages

    @property
    def page_size(self) -> int:
        """Tokens of one of them."""
        return self.spaces[0].page_size

    @property
    def num_tokens(self) -> int:
        """Tokens that they hold."""
        return self.spaces[0].num_tokens

    @property
    def window_tokens(self) -> int:
        """Tokens that the spaces of layers with a window hold together."""
        return sum(shape.num_tokens for shape in self.spaces if shape.window is not None)


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
