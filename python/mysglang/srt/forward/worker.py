"""Worker: what the scheduler knows of the GPU wing. A plain model, a speculative pair, or a test's late device.

A `SpaceShape` is one numbering of pages. Scheduler and worker agree on a list of them, in this order
(`WorkerCapacity.spaces`):

    spaces[0]     the rows' own: rows and the prefix cache number tokens by its pages; layers that see all keys
    spaces[1 …]   one for each window, ascending, whose layers keep only what a row may still see

Each has an allocator, a page table on the device and a null page 0, which padding, the tails of tables and holes point
at. A model without windows has the first alone; one whose layers all have windows has a first without any layer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from mysglang.srt.forward.outputs import BatchResult
from mysglang.srt.forward.worker_batch import ModelWorkerBatch


@dataclass(frozen=True, slots=True)
class SpaceShape:
    """The size of one page space."""

    num_pages: int
    """Pages that may be allocated. They are numbered 1 … num_pages; page 0 is for padding."""
    page_size: int
    """Tokens of a page, which are the span of an entry of its page table."""
    window: int | None = None
    """Keys that a query of its layers sees, itself included; None: all."""

    @property
    def num_tokens(self) -> int:
        """Tokens that all pages hold together."""
        return self.num_pages * self.page_size


@dataclass(frozen=True, slots=True)
class StateShape:
    """The number and spacing of states, in a model with layers that keep a state of a fixed size for each request.
    States are no pages: a request has one state, however long it is, and each checkpoint of the prefix cache is one.
    """

    num_states: int
    """Numbered 0 … num_states - 1; at least one for each request that runs."""
    interval: int
    """Checkpoints of prompts are made after a multiple of so many tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRates:
    """Costs of the steps of this model, from figures that were measured on such a device. Planning uses them to choose
    how many tokens a step has; they never decide what is computed. All ranks have the same.
    """

    token_s: float
    """Seconds for one token in the products with the weights."""
    weights_s: float
    """Seconds in which all weights are read."""
    step_s: float
    """Seconds that any step takes besides."""
    key_s: float
    """Seconds in which a decoding row reads the keys and values of one token."""
    queued_s: float
    """Seconds in which the host queues a step that is not captured."""
    decode_rows: int = 0
    """Rows of the largest captured decode step; 0: none is captured."""
    prompt_tokens: tuple[int, ...] = ()
    """New tokens of the captured steps with prompts, ascending."""
    mixed_steps: tuple[tuple[int, int], ...] = ()
    """(new tokens, room for decoding rows among them) of the captured steps of prompts beside decoding rows, ascending.
    A step of R rows is run by one with the smallest room that holds them.
    """


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
    rates: StepRates | None = None
    """None: the cost of steps is not known on this device, or for this model."""
    startup_times: dict[str, float] = field(default_factory=dict)
    """Seconds by phase of the start: load_weight, kv_cache_allocation, cuda_graph_prefill, cuda_graph_decode,
    cuda_graph_drafts."""

    @property
    def num_pages(self) -> int:
        """Pages of the rows' space."""
        return self.spaces[0].num_pages

    @property
    def page_size(self) -> int:
        """Tokens of one page."""
        return self.spaces[0].page_size

    @property
    def num_tokens(self) -> int:
        """Tokens that all pages of the rows' space hold."""
        return self.spaces[0].num_tokens

    @property
    def window_tokens(self) -> int:
        """Number of tokens that the spaces of all layers with a window hold together."""
        return sum(shape.num_tokens for shape in self.spaces if shape.window is not None)


class Worker(Protocol):
    """Runs steps in the order they are given. Steps may finish late; their effects on KV pages are in order.

    `tokens_per_step` bounds the tokens that a decode step may commit for one row; planning reserves as many.
    `late_lengths`: whether steps may begin where only the device knows, since the step before is not done.
    """

    tokens_per_step: int
    late_lengths: bool
    capacity: WorkerCapacity

    @property
    def programs(self) -> Mapping[str, str]:
        """Name of each way to run steps, the fastest first -> the steps that it takes at the moment, or why it is not
        used.
        """
        ...

    def forward_batch_generation(self, batch: ModelWorkerBatch) -> BatchResult:
        """Launch the step and return at once, if the device can work alone.

        The tokens of a step that `waits_for_mask` are chosen when `BatchResult.sample` is called, which comes before
        the next step is launched.
        """
        ...

    def catch_up(self, *, idle: bool) -> None:
        """Lets the worker use what has become ready since the start. Called between two steps. If nothing runs
        (`idle`), it may take seconds.
        """
        ...
