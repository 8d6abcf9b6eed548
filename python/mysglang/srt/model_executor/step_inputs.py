"""StepInputs: one ModelWorkerBatch on the device, after one upload.

Keeps one thing between steps: the sampling tensors of the last SamplingColumns object, which comes again while the
rows stay the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from mysglang.srt.forward.worker_batch import ModelWorkerBatch, SamplingColumns, TokenMask
from mysglang.srt.layers.logits_processor import PromptQuery
from mysglang.srt.layers.logprobs import LogprobQuery
from mysglang.srt.layers.sampling_step import OutputQuery, SamplingStep
from mysglang.srt.model_executor.step_columns import (
    Columns,
    Indices,
    LogprobLayout,
    drawing_columns,
    edit_columns,
    hidden_column,
    logits_rows_of,
    mask_columns,
    output_logprob_columns,
    penalty_columns,
    prompt_logprob_columns,
    reset_columns,
    uniform_column,
)
from mysglang.srt.platforms.upload import Uploader
from mysglang.srt.sampling.logit_processors import REQUEST, LogitProcessor, ProcessorRun, RequestTokens
from mysglang.srt.sampling.penalties import Penalties, PenaltyTable
from mysglang.srt.sampling.sampling_tensors import Bitmask, Drawing, Edits, SamplingTensors

Uploaded = dict[str, Tensor]

NO_PROCESSORS: Mapping[str, LogitProcessor] = {}

PLAIN_GREEDY = SamplingTensors(drawing=None, penalties=None, bias=None)


def is_plain(batch: ModelWorkerBatch) -> bool:
    """Whether every row takes its most likely token and nothing else is asked."""
    columns = batch.sampling
    extras = (columns.penalties, columns.bias, batch.penalty_reset, batch.forbidden, batch.logprobs, batch.hidden)
    return columns.all_greedy and all(extra is None for extra in extras)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepInputs:
    """What one step reads beside the tables."""

    tokens: Uploaded
    """The columns that were handed in with the batch."""
    sampling: SamplingStep
    output_layout: LogprobLayout | None
    prompt: PromptQuery | None
    prompt_layout: LogprobLayout | None


NOTHING_TO_STAGE = StepInputs(
    tokens={},
    sampling=SamplingStep(tensors=PLAIN_GREEDY, uniforms=None, forbidden=None, output_query=None),
    output_layout=None,
    prompt=None,
    prompt_layout=None,
)
"""Of a captured step whose rows are all plain."""


class StepStager:
    """Turns batches into StepInputs, and restarts penalty lines on the way."""

    def __init__(
        self, uploader: Uploader, penalties: PenaltyTable, processors: Mapping[str, LogitProcessor] = NO_PROCESSORS
    ) -> None:
        self._processors = processors
        self._uploader = uploader
        self._penalties = penalties
        self._last: tuple[SamplingColumns, SamplingTensors] | None = None

    def stage(self, batch: ModelWorkerBatch, tokens: Columns) -> StepInputs:
        """Upload `tokens` and whatever the batch's sampling needs."""
        if not tokens and is_plain(batch):
            return NOTHING_TO_STAGE
        logits_row = logits_rows_of(batch.yields)
        known = self._known(batch)
        logprobs = batch.logprobs
        output = output_logprob_columns(logprobs, batch.yields, logits_row) if logprobs else None
        prompt = prompt_logprob_columns(logprobs) if logprobs else None
        columns: Columns = {
            **tokens,
            **({} if known else _kept_columns(batch, logits_row)),
            **uniform_column(batch),
            **hidden_column(batch.hidden),
            **edit_columns("forbidden", batch.forbidden, logits_row),
            **reset_columns(batch.penalty_reset),
            **(output[1] if output else {}),
            **(prompt[1] if prompt else {}),
        }
        up = self._uploader.upload(columns) if columns else {}
        self._reset_penalties(batch, up)
        tensors = known or self._keep(batch, up)
        return StepInputs(
            tokens=up,
            sampling=SamplingStep(
                tensors=tensors,
                uniforms=up.get("uniforms"),
                forbidden=_edits("forbidden", up),
                output_query=OutputQuery(up["output_rows"], _query("output", output[0], up)) if output else None,
            ),
            output_layout=output[0] if output else None,
            prompt=PromptQuery(up["prompt_positions"], up["prompt_targets"], _query("prompt", prompt[0], up))
            if prompt
            else None,
            prompt_layout=prompt[0] if prompt else None,
        )

    def stage_mask(self, batch: ModelWorkerBatch, mask: TokenMask) -> Bitmask | None:
        """Upload what the step waited for; None if no row of it needs a mask any more."""
        if not len(mask.rows):
            return None
        up = self._uploader.upload(mask_columns(mask, logits_rows_of(batch.yields)))
        return Bitmask(up["mask_rows"], up["mask_bits"])

    def stage_runs(self, batch: ModelWorkerBatch, mask: TokenMask) -> tuple[ProcessorRun, ...]:
        """What the logit processors of the step are to do."""
        if not mask.calls:
            return ()
        logits_row = logits_rows_of(batch.yields)
        rows = self._uploader.upload({str(number): logits_row[call.rows] for number, call in enumerate(mask.calls)})
        runs = []
        for number, call in enumerate(mask.calls):
            told = zip(call.params, call.prompts, call.outputs, strict=True)
            params = [{**given, REQUEST: RequestTokens(prompt, output)} for given, prompt, output in told]
            runs.append(ProcessorRun(self._processors[call.name], rows[str(number)], params))
        return tuple(runs)

    def _known(self, batch: ModelWorkerBatch) -> SamplingTensors | None:
        """The tensors of these columns, if they need no upload."""
        columns = batch.sampling
        if columns.all_greedy and columns.penalties is None and columns.bias is None:
            return PLAIN_GREEDY
        if self._last is not None and self._last[0] is columns and batch.mode.is_decode:
            return self._last[1]
        return None

    def _keep(self, batch: ModelWorkerBatch, up: Uploaded) -> SamplingTensors:
        columns = batch.sampling
        if columns.penalties is not None:
            self._penalties.reserve(int(columns.penalties.lines.max()) + 1)
        tensors = SamplingTensors(_drawing(up), _penalties(up), _edits("bias", up))
        # Only where all rows have logits do the tensors fit the next step of the same columns.
        self._last = (columns, tensors) if batch.mode.is_decode else None
        return tensors

    def _reset_penalties(self, batch: ModelWorkerBatch, up: Uploaded) -> None:
        if batch.penalty_reset is None:
            return
        self._penalties.reserve(int(batch.penalty_reset.lines.max()) + 1)
        self._penalties.reset(
            up["reset_lines"],
            (up["reset_prompt_lines"], up["reset_prompt_ids"]),
            (up["reset_output_lines"], up["reset_output_ids"]),
        )


def _kept_columns(batch: ModelWorkerBatch, logits_row: Indices) -> Columns:
    return {
        **drawing_columns(batch.sampling, batch.yields),
        **penalty_columns(batch.sampling, logits_row),
        **edit_columns("bias", batch.sampling.bias, logits_row),
    }


def _drawing(up: Uploaded) -> Drawing | None:
    if "temperature" not in up:
        return None
    return Drawing(
        temperature=up["temperature"],
        greedy=up["greedy"],
        top_k=up.get("top_k"),
        top_p=up.get("top_p"),
        min_p=up.get("min_p"),
    )


def _penalties(up: Uploaded) -> Penalties | None:
    if "penalty_rows" not in up:
        return None
    names = ("penalty_rows", "penalty_lines", "frequency", "presence", "repetition")
    return Penalties(*(up[name] for name in names))


def _edits(name: str, up: Uploaded) -> Edits | None:
    if f"{name}_rows" not in up:
        return None
    return Edits(up[f"{name}_rows"], up[f"{name}_ids"], up[f"{name}_values"])


def _query(name: str, found: LogprobLayout, up: Uploaded) -> LogprobQuery:
    return LogprobQuery(found.top, found.pair_ends, up[f"{name}_pair_rows"], up[f"{name}_pair_ids"])
