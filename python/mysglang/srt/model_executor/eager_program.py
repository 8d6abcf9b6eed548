"""EagerProgram: runs a model that generates on a step as it is. It covers every step, so it is the last of the list."""

from __future__ import annotations

from torch import Tensor

from mysglang.srt.forward.outputs import BatchResult
from mysglang.srt.forward.worker_batch import ModelWorkerBatch
from mysglang.srt.layers.logits_processor import LogitsProcessor
from mysglang.srt.model_executor.device_tables import DeviceTables
from mysglang.srt.model_executor.hidden_states import HiddenStates
from mysglang.srt.model_executor.programs import EAGER
from mysglang.srt.model_executor.step_columns import table_columns, token_columns
from mysglang.srt.model_executor.token_end import ForwardOutput, TokenEnd


class EagerProgram:
    """Implements `programs.Program`."""

    name = EAGER
    takes = "every other step"

    def __init__(self, hidden: HiddenStates, logits: LogitsProcessor, tables: DeviceTables, end: TokenEnd) -> None:
        self._hidden = hidden
        self._logits = logits
        self._tables = tables
        self._end = end

    def covers(self, batch: ModelWorkerBatch) -> bool:
        return True

    def run(self, batch: ModelWorkerBatch) -> BatchResult:
        tables = self._tables
        writes = table_columns(batch.table_writes, tables.max_pages)
        inputs = self._end.stage(batch, {**writes, **token_columns(batch)})
        up = inputs.tokens
        tables.write(up)
        hidden = self._hidden.of(batch, up)
        logits_rows = up.get("logits_rows")
        wants_logits = logits_rows is None or len(logits_rows) > 0
        output = ForwardOutput(
            logits=self._logits.next_token_logits(hidden, logits_rows) if wants_logits else None,
            prompt_logprobs=None if inputs.prompt is None else self._logits.prompt_logprobs(hidden, inputs.prompt),
            hidden=hidden,
        )
        slots: Tensor = up["slots"] if batch.mode.is_decode else up["sample_slots"]
        return self._end.choose(batch, inputs, slots, output)
