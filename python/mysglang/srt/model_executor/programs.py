"""Program: one way to run whole steps. Of an executor's ordered list, the first that covers a step runs it.

    whole-step kernel -> captured decode steps -> captured prompts -> eager

Whether a program covers a step depends on facts that all ranks share: the batch and what was settled at the start,
never a clock, a measurement or one rank's memory. The last program of a list covers every step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from mysglang.srt.forward.outputs import BatchResult
from mysglang.srt.forward.worker_batch import ModelWorkerBatch
from mysglang.srt.model_executor.kv_setup import ModelStores
from mysglang.srt.model_executor.model_memory import ModelMemory
from mysglang.srt.models.checkpoint_model import CheckpointModel
from mysglang.srt.platforms.slot_buffer import SlotBuffer

WHOLE_STEP = "whole_step_kernel"
CAPTURED_DECODE = "captured_decode"
CAPTURED_PROMPTS = "captured_prompts"
VERIFICATION = "verification"
EAGER = "eager"


class Program(Protocol):
    """One way to run steps of one model."""

    @property
    def name(self) -> str:
        """One of the constants above."""
        ...

    @property
    def takes(self) -> str:
        """The steps that the program was made for, in words: its line in `/server_info`."""
        ...

    def covers(self, batch: ModelWorkerBatch) -> bool:
        """Whether `run` can take this step."""
        ...

    def run(self, batch: ModelWorkerBatch) -> BatchResult:
        """Queue a step that is covered: table writes, forward pass, what is made of it, and the copies to the host."""
        ...


class DoesNotCover(Exception):
    """A program cannot be made for this model, device or launch. The message is the reason, a clause without a dot."""


@dataclass(slots=True)
class Captured:
    """The programs that know addresses, the fastest first, and why others are missing."""

    programs: list[Program] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    """Name of a program -> why it does not cover this model."""
    nbytes: int = 0
    """Device memory that the captures took."""

    @property
    def lines(self) -> Iterator[tuple[str, str]]:
        """Name of each program, and what it takes or why it is left out."""
        yield from ((program.name, program.takes) for program in self.programs)
        yield from ((name, f"not used: {reason}") for name, reason in self.left_out.items())


@dataclass(frozen=True, slots=True)
class Runnable:
    """A model with its memory, ready to run steps."""

    eager: Program
    warm_ups: Sequence[ModelWorkerBatch]
    """Steps of padding that compile what is compiled at first use."""
    special: Sequence[Program] = ()
    """Programs of steps that no other takes. They are asked first, and stay when captures go."""
    slot_buffers: Sequence[SlotBuffer] = ()
    """What is kept for slots between steps, beside the tables that all models share."""
    capture: Callable[[], Captured] = Captured
    """Makes the other programs: at the start, and again after weights or memory have moved."""


class ServedModel(Protocol):
    """A model whose weights are loaded, and that waits for its memory."""

    @property
    def model(self) -> CheckpointModel: ...

    @property
    def stores(self) -> ModelStores:
        """What its layers keep of every token."""
        ...

    @property
    def attention(self) -> str:
        """The name of its attention, for whoever asks the server."""
        ...

    def workspace(self, *, max_tokens: int, max_context: int) -> int:
        """Bytes that a step takes beside arguments and results, where that is much: in a step of so many new tokens
        and rows that long.
        """
        ...

    def ready(self, memory: ModelMemory) -> Runnable:
        """The model over its memory."""
        ...


Load = Callable[[], ServedModel]
"""Reads the weights. What cannot run here was refused when this was made."""
