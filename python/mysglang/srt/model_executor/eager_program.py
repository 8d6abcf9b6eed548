"""EagerProgram: runs a model that generates on a step as it is. It covers every step, so it is the last of the list."""

from __future__ import annotations

from mysglang.srt.forward.outputs import BatchResult
from mysglang.srt.forward.worker_batch import ModelWorkerBatch
from mysglang.srt.layers.logits_processor import MakesLogits
from mysglang.srt.model_executor.hidden_states import HiddenStates
from mysglang.srt.model_executor.programs import EAGER
from mysglang.srt.model_executor.token_end import ForwardOutput, TokenEnd


class EagerProgram:
    """Runs any step without a graph, kernel by kernel (a `programs.Program`)."""

    name = EAGER
    takes = "every other step"

    def __init__(self, hidden: HiddenStates, logits: MakesLogits, end: TokenEnd) -> None:
        self._hidden = hidden
        self._logits = logits
        self._end = end

    def covers(self, batch: ModelWorkerBatch) -> bool:
        return True

    def run(self, batch: ModelWorkerBatch) -> BatchResult:
        hidden, columns = self._hidden.of(batch)
        inputs = self._end.stage_yields(batch, {})
        logits_rows = columns.get("logits_rows")
        output = ForwardOutput(
            logits=self._logits.next_token_logits(hidden, logits_rows) if batch.yields.any() else None,
            prompt_logprobs=None if inputs.prompt is None else self._logits.prompt_logprobs(hidden, inputs.prompt),
            hidden=hidden,
        )
        slots = columns["slots"] if batch.mode.is_decode else columns.get("sample_slots", columns["slots"][:0])
        return self._end.choose(batch, inputs, slots, output)
