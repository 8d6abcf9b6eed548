"""StepInputs: one ModelWorkerBatch on the device, after one upload."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from mysglang.srt.forward.worker_batch import ModelWorkerBatch, TokenMask
from mysglang.srt.layers.logits_processor import PromptQuery
from mysglang.srt.layers.logprobs import LogprobQuery
from mysglang.srt.layers.sampler import OutputQuery, SamplingOps, SamplingStep
from mysglang.srt.model_executor.feature_stager import FeatureStager, LateLogits
from mysglang.srt.model_executor.row_stager import BY_ACTS, StagedRows, StagesRows
from mysglang.srt.model_executor.step_columns import (
    Columns,
    LogprobLayout,
    hidden_column,
    mask_columns,
    output_logprob_columns,
    prompt_logprob_columns,
)
from mysglang.srt.platforms.upload import Uploader
from mysglang.srt.sampling.feature import Act
from mysglang.srt.sampling.logit_processors import REQUEST, LogitProcessor, ProcessorRun, RequestTokens
from mysglang.srt.sampling.logits_rows import LogitsRows
from mysglang.srt.sampling.token_mask import Masked

Uploaded = dict[str, Tensor]

NO_PROCESSORS: Mapping[str, LogitProcessor] = {}


def is_plain(batch: ModelWorkerBatch) -> bool:
    """True if every row takes its most likely token, and no further output is wanted."""
    return not (batch.sampling.parts or batch.sampling_now) and batch.logprobs is None and batch.hidden is None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepInputs:
    """Inputs of one step in addition to the tables."""

    tokens: Uploaded
    """The columns that were handed in with the batch."""
    sampling: SamplingStep
    output_layout: LogprobLayout | None
    prompt: PromptQuery | None
    prompt_layout: LogprobLayout | None
    rows: StagedRows | None = None
    """Rows of the step that one kernel samples; None: `sampling` says how the tokens are chosen."""


PLAIN = SamplingStep()
NOTHING_TO_STAGE = StepInputs(tokens={}, sampling=PLAIN, output_layout=None, prompt=None, prompt_layout=None)
"""Inputs of a captured step whose rows are all plain."""


class StepStager:
    """Turns batches into StepInputs."""

    def __init__(
        self,
        uploader: Uploader,
        features: FeatureStager,
        ops: SamplingOps,
        processors: Mapping[str, LogitProcessor] = NO_PROCESSORS,
        rows: StagesRows = BY_ACTS,
    ) -> None:
        self._rows = rows
        self._features = features
        self._ops = ops
        self._processors = processors
        self._uploader = uploader

    def stage(self, batch: ModelWorkerBatch, tokens: Columns, late: LateLogits | None = None) -> StepInputs:
        """Upload `tokens` and the columns that the batch's sampling needs. late: None if the host knows all lengths."""
        if not tokens and is_plain(batch):
            return NOTHING_TO_STAGE
        logits = LogitsRows.of(batch.yields, batch.logits_per_row)
        logprobs = batch.logprobs
        output = output_logprob_columns(logprobs, batch.yields, logits) if logprobs else None
        prompt = prompt_logprob_columns(logprobs) if logprobs else None
        features = self._features.stage(batch, logits, late)
        columns: Columns = {
            **tokens,
            **features.columns,
            **hidden_column(batch.hidden),
            **(output[1] if output else {}),
            **(prompt[1] if prompt else {}),
        }
        up = self._uploader.upload(columns) if columns else {}
        return StepInputs(
            tokens=up,
            sampling=SamplingStep(
                acts=self._features.acts(features, up, late),
                output_query=OutputQuery(up["output_rows"], _query("output", output[0], up)) if output else None,
            ),
            output_layout=output[0] if output else None,
            prompt=PromptQuery(up["prompt_positions"], up["prompt_targets"], _query("prompt", prompt[0], up))
            if prompt
            else None,
            prompt_layout=prompt[0] if prompt else None,
        )

    def stage_captured(self, batch: ModelWorkerBatch) -> StepInputs:
        """Returns the inputs that a captured decode step with one token for each row needs beside its own columns."""
        if is_plain(batch) or (rows := self._rows.stage(batch)) is None:
            return self.stage(batch, {})
        hidden = hidden_column(batch.hidden)
        return StepInputs(
            tokens=self._uploader.upload(hidden) if hidden else {},
            sampling=PLAIN,
            output_layout=rows.layout,
            prompt=None,
            prompt_layout=None,
            rows=rows,
        )

    def stage_yields(self, batch: ModelWorkerBatch, tokens: Columns) -> StepInputs:
        """Returns the inputs of a step whose rows have one row of logits each, or none. See `stage`."""
        columns = {**tokens, **hidden_column(batch.hidden)}
        if (staged := self._rows.stage_yields(batch, columns)) is None:
            return self.stage(batch, tokens)
        rows, up = staged
        return StepInputs(tokens=up, sampling=PLAIN, output_layout=None, prompt=None, prompt_layout=None, rows=rows)

    def stage_late(self, batch: ModelWorkerBatch, mask: TokenMask) -> tuple[Act, ...]:
        """Stages the inputs that the step waited for: logit processors, and forbidden tokens."""
        logits = LogitsRows.of(batch.yields, batch.logits_per_row)
        acts: list[Act] = []
        if mask.calls:
            named = {str(number): logits.only(call.rows) for number, call in enumerate(mask.calls)}
            rows = self._uploader.upload(named)
            for number, call in enumerate(mask.calls):
                told = zip(call.params, call.prompts, call.outputs, strict=True)
                params = [{**given, REQUEST: RequestTokens(prompt, output)} for given, prompt, output in told]
                acts.append(ProcessorRun(self._processors[call.name], rows[str(number)], params))
        # No row may need a mask any more.
        if len(mask.rows):
            up = self._uploader.upload(mask_columns(mask, logits))
            acts.append(Masked(up["mask_rows"], up["mask_bits"], self._ops.mask))
        return tuple(acts)


def _query(name: str, found: LogprobLayout, up: Uploaded) -> LogprobQuery:
    return LogprobQuery(found.top, found.pair_ends, up[f"{name}_pair_rows"], up[f"{name}_pair_ids"])
