"""Program: one way to run whole steps. The first program of an executor's ordered list that covers a step runs it.

    whole-step kernel -> captured decode steps -> captured prompts -> eager

The decision depends on facts that all ranks share: the batch and what was settled at the start,
never a clock, a measurement or one rank's memory. The last program of a list covers every step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor

from mysglang.srt.forward.forward_batch import TokenPlaces
from mysglang.srt.forward.outputs import BatchResult
from mysglang.srt.forward.worker_batch import ModelWorkerBatch
from mysglang.srt.layers.attention.graph import GraphColumns
from mysglang.srt.model_executor.kv_setup import ModelStores
from mysglang.srt.model_executor.late_rows import DraftStep
from mysglang.srt.model_executor.model_memory import ModelMemory
from mysglang.srt.models.checkpoint_model import CheckpointModel
from mysglang.srt.platforms.slot_buffer import SlotBuffer

WHOLE_STEP = "whole_step_kernel"
COMPILED_DECODE = "compiled_decode"
CAPTURED_DECODE = "captured_decode"
CAPTURED_PROMPTS = "captured_prompts"
CAPTURED_MIXED = "captured_mixed"
CAPTURED_VERIFICATION = "captured_verification"
VERIFICATION = "verification"
EAGER = "eager"


class Program(Protocol):
    """One way to run steps of one model."""

    @property
    def name(self) -> str:
        """The program's name, one of the constants above."""
        ...

    @property
    def takes(self) -> str:
        """A description of the steps that the program was made for, which /server_info shows."""
        ...

    def covers(self, batch: ModelWorkerBatch) -> bool:
        """True if `run` can execute this step."""
        ...

    def run(self, batch: ModelWorkerBatch) -> BatchResult:
        """Queues a step that `covers` accepted: table writes, forward pass, sampling, and the copies to the host."""
        ...


@dataclass(frozen=True, slots=True)
class RoomyStep:
    """A captured step that tries drafts: R rows, each with space for `width` tokens."""

    host: ModelWorkerBatch
    """A step of this shape, of padding."""
    rows: int
    width: int
    slots: Tensor
    """[R] int64"""
    extend_lens: Tensor
    """[R] int32 tokens of each row."""
    known: Tensor
    """[R] int64; negative in rows whose drafts the host does not propose."""
    views: Mapping[str, Tensor]
    """All columns of the step on the device."""


class Drafter(Protocol):
    """The part of drafting that runs on the device.

    NGRAM        all drafts come from the host with the batch      HostDrafts
    STANDALONE   a second model proposes what the host does not    DraftChain (draft_model.py)
    """

    @property
    def slot_buffers(self) -> Sequence[SlotBuffer]:
        """The program's own tensors with a row for each slot."""
        ...

    def propose(self, step: DraftStep) -> Tensor:
        """Returns the draft at each token of the step, [T] int64; NO_DRAFT_HERE where there is none.

        `step.drafts` are those that the host proposes. The page table already has the step's pages.
        """
        ...

    def captures(self, batch: ModelWorkerBatch) -> bool:
        """True if the drafts of this step are the same in a captured step."""
        ...

    @property
    def columns(self) -> Sequence[GraphColumns]:
        """Columns that its own attention adds to the upload of captured steps."""
        ...

    def propose_captured(self, step: RoomyStep, at: TokenPlaces, drafts: Tensor) -> Tensor:
        """Does what `propose` does in a captured step: only queues work on tensors of the device. drafts: [R * width]
        drafts of the host.
        """
        ...

    def beside(self, program: Program) -> Program:
        """Returns the program with the drafter's work added to each of its steps."""
        ...


class HostDrafts:
    """The Drafter of a worker whose drafts all come from the host."""

    slot_buffers: Sequence[SlotBuffer] = ()
    columns: Sequence[GraphColumns] = ()

    def propose(self, step: DraftStep) -> Tensor:
        return step.drafts

    def captures(self, batch: ModelWorkerBatch) -> bool:
        return True

    def propose_captured(self, step: RoomyStep, at: TokenPlaces, drafts: Tensor) -> Tensor:
        return drafts

    def beside(self, program: Program) -> Program:
        return program


class DoesNotCover(Exception):
    """A program cannot be made for this model, device or launch. The message is the reason, a clause without a dot."""


@dataclass(slots=True)
class Captured:
    """The programs that know addresses, the fastest first, and why others are missing."""

    programs: list[Program] = field(default_factory=list)
    first: list[Program] = field(default_factory=list)
    """Programs that are tried before all others, since those would not see what is special about a step."""
    left_out: dict[str, str] = field(default_factory=dict)
    """Name of a program -> why it does not cover this model."""
    waits: bool = False
    """True if programs are missing because their kernels are still being compiled."""
    nbytes: int = 0
    """Device memory that the captures took."""
    decode_rows: int = 0
    """Rows of the largest decode step."""
    prompt_tokens: tuple[int, ...] = ()
    """New tokens of the steps with prompts, ascending."""
    mixed_steps: tuple[tuple[int, int], ...] = ()
    """(new tokens, room for decoding rows among them) of the steps of prompts beside decoding rows."""

    def add(self, later: Captured) -> None:
        """Adds programs that were captured later, and forgets why they were missing."""
        made = {program.name for program in later.programs}
        missing = {name: reason for name, reason in self.left_out.items() if name not in made}
        self.left_out = missing | later.left_out
        self.programs += later.programs
        self.waits = later.waits
        self.nbytes += later.nbytes
        self.prompt_tokens, self.mixed_steps = later.prompt_tokens, later.mixed_steps

    @property
    def lines(self) -> Iterator[tuple[str, str]]:
        """Yields the name of each program with a description of its steps, or the reason why it is not used."""
        yield from ((program.name, program.takes) for program in (*self.first, *self.programs))
        yield from ((name, f"not used: {reason}") for name, reason in self.left_out.items())


@dataclass(frozen=True, slots=True)
class Runnable:
    """A model with its memory, ready to run steps."""

    eager: Program
    warm_ups: Sequence[ModelWorkerBatch]
    """Steps of padding that compile what is compiled at first use."""
    special: Sequence[Program] = ()
    """Programs for steps that no other program can run. They are tried first, and stay when captures are released."""
    slot_buffers: Sequence[SlotBuffer] = ()
    """Slot buffers in addition to the tables that all models share."""
    why_exact: str = ""
    """Why the host must know how long all rows of a step are, a clause; empty: it need not."""
    capture: Callable[[], Captured] = Captured
    """Makes the other programs: at the start, and again after weights or memory have moved."""
    capture_late: Callable[[], Captured] = Captured
    """Makes the programs that `capture` left out because they waited for kernels."""


@dataclass(frozen=True, slots=True)
class Beside:
    """Work that the other models of an executor do for the served one."""

    drafter: Drafter = field(default_factory=HostDrafts)
    why_exact: str = ""
    """Why the host must know how long all rows of a step are, a clause; empty: it need not."""


class HelpingModel(Protocol):
    """A model whose weights are loaded, and that supports the served one. It has pages of its own under the
    same page numbers, and no programs: its part of a step is run by the served model's programs.
    """

    @property
    def model(self) -> CheckpointModel: ...

    @property
    def stores(self) -> ModelStores:
        """Store of the keys and values of its layers."""
        ...

    def workspace(self, *, max_tokens: int, max_context: int) -> int:
        """Returns the number of bytes of workspace that the model needs. See `ServedModel.workspace`."""
        ...

    def ready(self, memory: ModelMemory, beside: Beside) -> Beside:
        """Builds its work over its memory, and combines it with that of the other models (`beside`)."""
        ...


class ServedModel(Protocol):
    """A model whose weights are loaded, and that waits for its memory."""

    @property
    def model(self) -> CheckpointModel: ...

    @property
    def stores(self) -> ModelStores:
        """Store of the keys and values of its layers."""
        ...

    @property
    def attention(self) -> str:
        """The name of the program's attention backend, as /server_info shows it."""
        ...

    def workspace(self, *, max_tokens: int, max_context: int) -> int:
        """Returns the bytes of temporary memory of a step with so many new tokens, in rows of up to that length.

        Arguments and results are not counted. An amount that is small for the device may be left out.
        """
        ...

    def ready(self, memory: ModelMemory, beside: Beside) -> Runnable:
        """Prepares the model to run with this memory."""
        ...


Load = Callable[[], ServedModel]
"""Reads the weights. What cannot run here was refused when this was made."""
LoadHelp = Callable[[], HelpingModel]
"""Loads a model that supports the served one."""
