"""Steps of a model whose layers are divided among several pipeline stages.

    stage 0     A1 ▶ B1 ▶ A2 ▶ B2          runs a step, sends what it made, and goes on with the other lane
    stage 1        A1 ▶ B1 ▶ A2 ▶ …        takes it up, chooses the tokens, and tells them

Every stage launches the same steps in the same order. A stage that is not the last needs a step's tokens when one of
that step's rows goes on, or when the scheduler asks for the result; until then it runs other rows. So tokens are heard
as late as that, in the order in which they were told.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol, TypeAlias

import torch
from torch import Tensor

from mysglang.srt.distributed.pipeline import Stage
from mysglang.srt.forward.host_pages import HostPages, PageCopies
from mysglang.srt.forward.outputs import BatchResult, StepOutput
from mysglang.srt.forward.worker_batch import PLAIN_SAMPLING, Ints, ModelWorkerBatch, Slots, TokenMask
from mysglang.srt.layers.logits_processor import MakesLogits, PromptQuery
from mysglang.srt.layers.logprobs import Logprobs
from mysglang.srt.layers.sampler import ChoosesTokens, Sampled, SamplingStep
from mysglang.srt.model_executor.programs import Program
from mysglang.srt.model_executor.token_end import AT_ONCE, Choosing


class NoLogits:
    """Implements `MakesLogits` on a stage that has no projection to logits."""

    def next_token_logits(self, hidden: Tensor, rows: Tensor | None) -> Tensor:
        """Returns [S, 0]: as many rows as the last stage chooses tokens for, without logits."""
        return hidden.new_empty(len(hidden if rows is None else rows), 0)

    def prompt_logprobs(self, hidden: Tensor, prompt: PromptQuery) -> Logprobs:
        raise AssertionError("log-probabilities are made on the last stage")


class ReceivedTokens:
    """Implements `ChoosesTokens` on a stage that is not the last, by receiving the tokens that the last one has
    chosen.
    """

    def __init__(self, stage: Stage) -> None:
        self._stage = stage

    def sample(self, logits: Tensor, step: SamplingStep) -> Sampled:
        return Sampled(self._stage.receive_tokens(torch.empty(len(logits), dtype=torch.int64, device=logits.device)))


class SentTokens:
    """Implements `ChoosesTokens` on the last stage: sends the tokens that `inner` has chosen to all other stages."""

    def __init__(self, inner: ChoosesTokens, stage: Stage) -> None:
        self._inner = inner
        self._stage = stage

    def sample(self, logits: Tensor, step: SamplingStep) -> Sampled:
        sampled = self._inner.sample(logits, step)
        self._stage.send_tokens(sampled.tokens)
        return sampled


class LateTokens:
    """Implements `token_end.Choosing` for stages other than the last: their tokens come from the last stage later."""

    def __init__(self) -> None:
        self._open: deque[_LateStep] = deque()

    def begin(self, batch: ModelWorkerBatch, choose: Callable[[], BatchResult]) -> BatchResult:
        step = _LateStep(batch.slots, choose)
        self._open.append(step)

        def finish() -> StepOutput:
            self._receive(step)
            assert step.result is not None, "it was heard"
            return step.result.complete()

        return BatchResult(finish)

    def lasting(self, tensor: Tensor) -> Tensor:
        # Steps that come before the tokens are prepared in the same memory.
        return tensor.clone()

    def catch_up(self, slots: Slots) -> None:
        """Receives the tokens of every step that had one of these slots, and of the steps before it."""
        reopened = set(slots.tolist())
        for step in reversed(self._open):
            if not reopened.isdisjoint(step.slots.tolist()):
                self._receive(step)
                return

    def _receive(self, last: _LateStep) -> None:
        """Receives the tokens of all steps up to this one. They may have been received already."""
        while last.result is None:
            step = self._open.popleft()
            step.result = step.choose()


class _LateStep:
    """A launched step whose tokens are not chosen yet."""

    __slots__ = ("choose", "result", "slots")

    def __init__(self, slots: Slots, choose: Callable[[], BatchResult]) -> None:
        self.slots = slots
        self.choose = choose
        self.result: BatchResult | None = None
        """Set when the tokens are heard."""


class EarlyProgram:
    """A Program of a stage other than the last: receives its rows' tokens before it runs, and leaves all work on logits
    and on the last hidden states to the last stage.
    """

    def __init__(self, inner: Program, late: LateTokens) -> None:
        self._inner = inner
        self._late = late
        self.name = inner.name
        self.takes = inner.takes

    def covers(self, batch: ModelWorkerBatch) -> bool:
        return self._inner.covers(batch)

    def run(self, batch: ModelWorkerBatch) -> BatchResult:
        self._late.catch_up(batch.slots)
        return self._inner.run(
            replace(batch, sampling=PLAIN_SAMPLING, sampling_now=(), logprobs=None, hidden=None, waits_for_mask=False)
        )


class StageWork(Protocol):
    """Parts of a generating model's programs that depend on which stage has the last layers."""

    all_tokens: bool
    """True if every token goes through all layers here."""
    choosing: Choosing
    not_captured: str
    """Why no step is captured, a clause; empty: steps may be."""

    def sampler(self, inner: ChoosesTokens) -> ChoosesTokens:
        """Returns the object that chooses tokens. `inner` chooses them from logits."""
        ...

    def logits(self, inner: MakesLogits) -> MakesLogits: ...

    def program(self, inner: Program) -> Program: ...


class OneStage:
    """A null object for a model that is not divided into stages."""

    all_tokens = False
    not_captured = ""

    def __init__(self) -> None:
        self.choosing: Choosing = AT_ONCE

    def sampler(self, inner: ChoosesTokens) -> ChoosesTokens:
        return inner

    def logits(self, inner: MakesLogits) -> MakesLogits:
        return inner

    def program(self, inner: Program) -> Program:
        return inner


class LastStage(OneStage):
    """The last of several stages, which chooses the tokens."""

    not_captured = "its layers are in several stages (--pp-size)"

    def __init__(self, stage: Stage) -> None:
        super().__init__()
        self._stage = stage

    def sampler(self, inner: ChoosesTokens) -> ChoosesTokens:
        return SentTokens(inner, self._stage)


class EarlierStage:
    """The parts of a pipeline stage that is not the last."""

    all_tokens = True
    not_captured = LastStage.not_captured

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._late = LateTokens()
        self.choosing: Choosing = self._late

    def sampler(self, inner: ChoosesTokens) -> ChoosesTokens:
        return ReceivedTokens(self._stage)

    def logits(self, inner: MakesLogits) -> MakesLogits:
        return NoLogits()

    def program(self, inner: Program) -> Program:
        return EarlyProgram(inner, self._late)


def work_of(stage: Stage) -> StageWork:
    """Returns the parts that this stage needs."""
    if not stage.last:
        return EarlierStage(stage)
    return OneStage() if stage.first else LastStage(stage)


RunStep: TypeAlias = Callable[[ModelWorkerBatch], BatchResult]
"""Queues a step."""


class StepsOnDemand:
    """Runs each step when its result, or the result of a later step, is needed. Steps run in the order of launching.

    Used on the last stage, if running a step blocks until the step is done, as on a CPU. Earlier stages must still
    compute a step that was just launched, so the last stage first continues with the previous step, of another lane.
    """

    def __init__(self, run: RunStep) -> None:
        self._run = run
        self._open: deque[_OpenStep] = deque()

    def launch(self, batch: ModelWorkerBatch) -> BatchResult:
        step = _OpenStep(batch)
        self._open.append(step)
        result = BatchResult(lambda: self._finished(step))
        if not batch.waits_for_mask:
            return result

        def choose(mask: TokenMask) -> BatchResult:
            # It is valid until that of another lane is made, which happens before this step runs.
            step.mask = mask.copy()
            return result

        return BatchResult.waiting(choose)

    def catch_up(self) -> None:
        """Runs every step that was launched."""
        while self._open:
            self._open.popleft().run(self._run)

    def _finished(self, step: _OpenStep) -> StepOutput:
        while step.output is None:
            self._open.popleft().run(self._run)
        return step.output


class _OpenStep:
    """A step that was launched and has no result yet."""

    __slots__ = ("batch", "mask", "output")

    def __init__(self, batch: ModelWorkerBatch) -> None:
        self.batch = batch
        self.mask: TokenMask | None = None
        self.output: StepOutput | None = None

    def run(self, run: RunStep) -> None:
        assert self.mask is not None or not self.batch.waits_for_mask, "its mask was made when its lane's turn ended"
        result = run(self.batch)
        if self.mask is not None:
            result.sample(self.mask)
        self.output = result.complete()


class CopiesInOrder:
    """Implements `HostPages` where steps run on demand: every step that was launched before a copy runs before it."""

    def __init__(self, inner: HostPages, steps: StepsOnDemand) -> None:
        self._inner = inner
        self._steps = steps
        self.num_pages = inner.num_pages
        self.page_bytes = inner.page_bytes
        self.identity = inner.identity

    def copy(self, copies: PageCopies) -> None:
        self._steps.catch_up()
        self._inner.copy(copies)

    def done(self) -> int:
        return self._inner.done()

    def wait(self) -> None:
        self._inner.wait()

    def read(self, pages: Ints) -> bytes | None:
        return self._inner.read(pages)

    def put(self, pages: Ints, data: bytes) -> None:
        self._inner.put(pages, data)
