"""compiled_decode: decode steps of models whose layers torch.compile can compile.

    --enable-torch-compile not given   NOTHING_COMPILED
    it cannot compile here             no program, and the reason, which the log and /server_info show
    steps with it can be captured      the layers of captured steps
    else                               CompiledDecode, asked before the captured steps

All code is made at the start: one version for a single row, and one for any other number of rows.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch

from mysglang.srt.forward.outputs import BatchResult
from mysglang.srt.forward.worker_batch import ModelWorkerBatch
from mysglang.srt.layers.attention.graph import decode_capture
from mysglang.srt.model_executor.eager_program import EagerProgram
from mysglang.srt.model_executor.hidden_states import HiddenStates
from mysglang.srt.model_executor.model_launch import Setup
from mysglang.srt.model_executor.padding import padding_decode
from mysglang.srt.model_executor.programs import COMPILED_DECODE, Program
from mysglang.srt.model_executor.token_end import TokenParts
from mysglang.srt.models.checkpoint_model import DecodesRows, NotCompiled, TokenModel

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CompiledSteps:
    """The compiled programs of a model."""

    programs: Sequence[Program] = ()
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Name of a program -> why it is missing, a clause."""
    to_capture: DecodesRows | None = None
    """Layers for captured steps; None: those steps have the model's own."""
    most_rows: int = 0
    """Rows of the largest captured step with these layers."""


NOTHING_COMPILED = CompiledSteps()


class CompiledDecode:
    """Runs decode steps of up to so many rows with compiled layers (a `programs.Program`)."""

    name = COMPILED_DECODE

    def __init__(self, steps: EagerProgram, most_rows: int) -> None:
        """`steps`: runs any step of single tokens with the compiled layers."""
        self._steps = steps
        self._most_rows = most_rows
        self.takes = f"decode steps of up to {most_rows} rows, with layers compiled by torch.compile"

    def covers(self, batch: ModelWorkerBatch) -> bool:
        return batch.mode.is_decode and len(batch.slots) <= self._most_rows

    def run(self, batch: ModelWorkerBatch) -> BatchResult:
        return self._steps.run(batch)


def compiled_steps(
    setup: Setup, model: TokenModel, parts: TokenParts, hidden: Callable[[DecodesRows], HiddenStates]
) -> CompiledSteps:
    """Compiles the decode steps of a model as the launch asks, and runs one of each version. `hidden`: makes hidden
    states of steps of other layers over the same memory.
    """
    tables = parts.memory.tables
    most = min(setup.config.torch_compile_max_bs, parts.memory.budget.num_slots)
    if not most:
        return NOTHING_COMPILED
    began = time.perf_counter()
    padding = partial(padding_decode, slot=tables.padding_slot, spaces=tables.num_spaces)
    try:
        layers = model.compiled(setup.config.torch_compile_backend)
        compiled = hidden(layers)
        with torch.inference_mode():
            for rows in sorted({1, min(2, most), most}):
                _compare(compiled, hidden(model), padding(rows))
    except NotCompiled as error:
        reason = str(error)
    except Exception as error:  # the compiler is not ours: any error of it is the reason why it is not used
        reason = f"torch.compile failed ({type(error).__name__}: {str(error).strip().splitlines()[0][:200]})"
    else:
        logger.info("Compiled decode steps of up to %d rows in %.1f s.", most, time.perf_counter() - began)
        if setup.platform.captures_compiled and setup.graph_sizes and decode_capture(parts.backend) is not None:
            reason = f"captured decode steps of up to {most} rows have its layers, but for those of one kernel"
            return CompiledSteps(left_out={COMPILED_DECODE: reason}, to_capture=layers, most_rows=most)
        return CompiledSteps((CompiledDecode(EagerProgram(compiled, parts.logits, parts.end), most),))
    logger.warning("--enable-torch-compile has no effect: %s.", reason)
    return CompiledSteps(left_out={COMPILED_DECODE: reason})


def _compare(compiled: HiddenStates, plain: HiddenStates, batch: ModelWorkerBatch) -> None:
    """Raises NotCompiled if a step of padding differs from the plain one by more than rounding."""
    expected, found = plain.of(batch)[0], compiled.of(batch)[0].float()
    bound = 1e-3 if expected.dtype is torch.float32 else 0.1
    expected = expected.float()
    error = float(((found - expected).norm(dim=-1) / expected.norm(dim=-1)).median())
    if not error < bound:
        logger.debug("The relative error of the compiled layers is %.2g.", error)
        raise NotCompiled("compiled layers compute other values than plain ones")
