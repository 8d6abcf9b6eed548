"""FeatureStager: the sampling features of a step on the device, prepared before the step's one upload and after it.

Keeps one thing between steps: what was uploaded for the last SamplingColumns object, which comes again while the rows
of decode steps stay the same.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from torch import Tensor

from mysglang.srt.forward.worker_batch import ModelWorkerBatch, SamplingColumns
from mysglang.srt.model_executor.step_columns import Columns, feature_columns, named
from mysglang.srt.platforms.slot_buffer import SlotBuffer
from mysglang.srt.sampling.feature import Act, DeviceFacts, DeviceSide, FeatureColumns, SamplingFeature
from mysglang.srt.sampling.features import FEATURES
from mysglang.srt.sampling.logits_rows import LogitsRows
from mysglang.srt.sampling.row_table import RowTable

Uploaded = Mapping[str, Tensor]

NOTHING_KNOWN: Uploaded = {}
LATE_TOKENS = "late_tokens"
"""The column [S] int64 of the token of the step that each row of the logits is behind, where features need lengths
that only the device knows.
"""


@dataclass(frozen=True, slots=True)
class LateLogits:
    """Logits of a step of rows whose length only the device may know."""

    positions: Tensor
    """[T] int64 of the tokens of the step, on the device."""
    tokens: npt.NDArray[np.int64]
    """[S] the token of the step that each row of the logits is behind."""


@dataclass(frozen=True, slots=True)
class StagedFeatures:
    """The sampling features of one step as columns to upload."""

    sampling: SamplingColumns
    columns: Columns
    """Columns to upload."""
    kept: tuple[str, ...]
    """Names of the columns that the next step may use too; empty if some rows have no logits."""
    known: Uploaded
    """Columns that were uploaded before."""


class FeatureStager:
    """Prepares the sampling features of a step for the device."""

    def __init__(self, facts: DeviceFacts, features: Sequence[SamplingFeature] = FEATURES) -> None:
        self._sides: dict[str, DeviceSide] = {feature.name: feature.device(facts) for feature in features}
        self._last: tuple[SamplingColumns, Uploaded] | None = None

    @property
    def slot_buffers(self) -> tuple[SlotBuffer, ...]:
        """Slot buffers of all features."""
        return tuple(buffer for side in self._sides.values() for buffer in side.slot_buffers)

    def stage(self, batch: ModelWorkerBatch, logits: LogitsRows, late: LateLogits | None = None) -> StagedFeatures:
        """Prepare the columns that the step's features need on the device. late: None if the host knows all lengths."""
        sampling, decode = batch.sampling, batch.mode.is_decode
        wants_lengths = False
        known = self._last[1] if self._last is not None and self._last[0] is sampling and decode else None
        columns: Columns = {}
        if known is None:
            for part in sampling.parts:
                columns |= feature_columns(part, logits)
        kept = tuple(columns) if decode else ()
        for part in batch.sampling_now:
            columns |= feature_columns(part, logits)
        for part in (*sampling.parts, *batch.sampling_now):
            side = self._sides[part.feature]
            added = side.expect(part, logits, batch.seq_lens) if late is None else side.expect_late(part, logits)
            columns |= named(part.feature, added)
            wants_lengths |= bool(added)
        if late is not None and wants_lengths:
            columns[LATE_TOKENS] = late.tokens
        return StagedFeatures(sampling, columns, kept, known or NOTHING_KNOWN)

    def tabulate(self, parts: Iterable[FeatureColumns], table: RowTable) -> bool:
        """Writes the values of a decode step to the table. Returns False if a feature cannot express its values
        there.
        """
        return all(self._sides[part.feature].tabulate(part, table) for part in parts)

    def read_by_rows(self) -> dict[str, Tensor]:
        """Returns the features' own tensors that `sample_rows` reads, by the names of its arguments."""
        return {name: tensor for side in self._sides.values() for name, tensor in side.read_by_rows.items()}

    def acts(self, staged: StagedFeatures, up: Uploaded, late: LateLogits | None = None) -> tuple[Act, ...]:
        """Returns the acts of the features in the step, in the order of their stages."""
        if staged.kept:
            self._last = (staged.sampling, {name: up[name] for name in staged.kept})
        if not staged.sampling.parts and not staged.columns:
            return ()
        tensors: defaultdict[str, dict[str, Tensor]] = defaultdict(dict)
        for found, names in ((staged.known, staged.known), (up, staged.columns)):
            for name in names:
                feature, _, column = name.partition(".")
                if column:
                    tensors[feature][column] = found[name]
        if late is not None and LATE_TOKENS in up:
            lengths = late.positions.index_select(0, up[LATE_TOKENS]) + 1
            for columns in tensors.values():
                columns["lengths"] = lengths
        sides = self._sides
        acts = [act for name in sides if name in tensors and (act := sides[name].act(tensors[name]))]
        return tuple(sorted(acts, key=lambda act: act.stage))
