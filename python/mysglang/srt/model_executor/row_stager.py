"""RowStager: the rows of a step, ready to be sampled by one kernel.

What the kernel reads of each row of a decode step is uploaded when the rows change, and stays on the device while they
do not. So a sampled step is a replay and one launch. In a step with prompts, the rows that yield go up with its other
columns. A step that asks for more than the kernel does is sampled by acts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from torch import Tensor

from mysglang.srt.forward.worker_batch import LogprobColumns, ModelWorkerBatch, SamplingColumns
from mysglang.srt.kernels.sampled_rows import RowLogprobs
from mysglang.srt.layers.logprobs import Logprobs
from mysglang.srt.layers.sampler import Sampled
from mysglang.srt.model_executor.feature_stager import FeatureStager
from mysglang.srt.model_executor.step_columns import Columns, LogprobLayout, named
from mysglang.srt.platforms.upload import Uploader
from mysglang.srt.sampling.row_table import RowTable

Uploaded = dict[str, Tensor]
SampleRows = Callable[..., tuple[Tensor, RowLogprobs | None]]


@dataclass(frozen=True, slots=True)
class StagedRows:
    """Rows of a step that one kernel samples."""

    rows: Tensor
    bias: Tensor
    layout: LogprobLayout | None
    op: SampleRows
    features: FeatureStager
    plain: bool
    """True if nothing but a temperature is asked of the rows."""
    lengths: Tensor | None = None
    """[S] int32 tokens of each row's text so far; None: they are among the step's own columns."""

    def sample(self, logits: Tensor, greedy: Tensor, lengths: Tensor, slots: Tensor, newest: Tensor) -> Sampled:
        """Returns the tokens of the rows, recorded in `newest`. See `kernels.sampled_rows` about the arguments."""
        top = None if self.layout is None else min(self.layout.top, logits.shape[1])
        tokens, found = self.op(
            logits,
            self.rows,
            self.bias,
            greedy=greedy,
            lengths=lengths,
            slots=slots,
            newest=newest,
            top=top,
            plain=self.plain,
            **self.features.read_by_rows(),
        )
        if found is None:
            return Sampled(tokens)
        no_pairs = found.chosen[:0]
        return Sampled(tokens, Logprobs(found.chosen, found.top_values, found.top_ids, no_pairs, packed=found.packed))


class StagesRows(Protocol):
    """Prepares the rows of captured decode steps."""

    def stage(self, batch: ModelWorkerBatch) -> StagedRows | None:
        """Returns the rows of a decode step with one token for each, on the device. None: the step is sampled by
        acts.
        """
        ...

    def stage_yields(self, batch: ModelWorkerBatch, columns: Columns) -> tuple[StagedRows, Uploaded] | None:
        """Uploads `columns` and the rows of the step that yield, each one token, and returns both. None: nothing was
        uploaded, and the step is sampled by acts.
        """
        ...


class ByActs:
    """A null object for StagesRows, on a device or launch without a kernel that samples rows."""

    def stage(self, batch: ModelWorkerBatch) -> StagedRows | None:
        return None

    def stage_yields(self, batch: ModelWorkerBatch, columns: Columns) -> tuple[StagedRows, Uploaded] | None:
        return None


BY_ACTS = ByActs()


@dataclass(frozen=True, slots=True)
class _Last:
    """The rows that were staged last, and the columns that they were made from."""

    sampling: SamplingColumns
    logprobs: LogprobColumns | None
    num_rows: int
    staged: StagedRows


class RowStager:
    """Fills the table of rows from the sampling features, and keeps it on the device."""

    def __init__(self, op: SampleRows, features: FeatureStager, uploader: Uploader, vocab_size: int) -> None:
        self._op = op
        self._features = features
        self._uploader = uploader
        self._vocab_size = vocab_size
        self._last: _Last | None = None

    def stage(self, batch: ModelWorkerBatch) -> StagedRows | None:
        logprobs, last = batch.logprobs, self._last
        if _is_late(batch) or (logprobs is not None and any(map(len, logprobs.token_ids))):
            return None
        if (
            last is not None
            and last.sampling is batch.sampling
            and not batch.sampling_now
            and last.num_rows == batch.num_rows
            and _same(last.logprobs, logprobs)
        ):
            return last.staged
        table, layout = RowTable(batch.num_rows), None
        if not self._features.tabulate((*batch.sampling.parts, *batch.sampling_now), table):
            return None
        if logprobs is not None:
            asking = np.flatnonzero(logprobs.rows)
            top = logprobs.top_num[asking]
            table.put(asking, top_logprobs=np.minimum(top, self._vocab_size))
            layout = LogprobLayout(top, np.zeros(len(asking) + 1, dtype=np.int64), rows=asking)
        up = self._uploader.upload(table.columns())
        staged = StagedRows(up["rows"], up["bias"], layout, self._op, self._features, table.plain())
        self._last = None if batch.sampling_now else _Last(batch.sampling, logprobs, batch.num_rows, staged)
        return staged

    def stage_yields(self, batch: ModelWorkerBatch, columns: Columns) -> tuple[StagedRows, Uploaded] | None:
        if _is_late(batch) or batch.logprobs is not None or batch.logits_per_row is not None:
            return None
        table = RowTable(batch.num_rows)
        parts = (*batch.sampling.parts, *batch.sampling_now)
        if not parts or not batch.yields.any() or not self._features.tabulate(parts, table):
            return None
        yielding = np.flatnonzero(batch.yields)
        own = named("table", {**table.columns(yielding), "lengths": batch.seq_lens[batch.yields]})
        up = self._uploader.upload({**columns, **own})
        rows, bias, lengths = (up[name] for name in own)
        return StagedRows(rows, bias, None, self._op, self._features, table.plain(yielding), lengths), up


def _is_late(batch: ModelWorkerBatch) -> bool:
    """True if something about the rows is not known when the step is launched."""
    return batch.waits_for_mask or batch.high_lens is not None


def _same(one: LogprobColumns | None, other: LogprobColumns | None) -> bool:
    """True if the same rows ask for the same output, and neither asks for ids of its own choice."""
    if one is None or other is None:
        return one is other
    return np.array_equal(one.rows, other.rows) and np.array_equal(one.top_num, other.top_num)
