"""FeatureStager: the sampling features of a step on the device, prepared before the step's one upload and behind it.

Keeps one thing between steps: what was uploaded for the last SamplingColumns object, which comes again while the rows
of decode steps stay the same.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from mysglang.srt.forward.worker_batch import ModelWorkerBatch, SamplingColumns
from mysglang.srt.model_executor.step_columns import Columns, feature_columns, named
from mysglang.srt.platforms.slot_buffer import SlotBuffer
from mysglang.srt.sampling.feature import Act, DeviceFacts, DeviceSide, SamplingFeature
from mysglang.srt.sampling.features import FEATURES
from mysglang.srt.sampling.logits_rows import LogitsRows

Uploaded = Mapping[str, Tensor]

NOTHING_KNOWN: Uploaded = {}


@dataclass(frozen=True, slots=True)
class StagedFeatures:
    """Of one step."""

    sampling: SamplingColumns
    columns: Columns
    """What is to be uploaded."""
    kept: tuple[str, ...]
    """Those of them that the next step may use as well; none where not all rows have logits."""
    known: Uploaded
    """What was uploaded before."""


class FeatureStager:
    """The device sides of the features."""

    def __init__(self, facts: DeviceFacts, features: Sequence[SamplingFeature] = FEATURES) -> None:
        self._sides: dict[str, DeviceSide] = {feature.name: feature.device(facts) for feature in features}
        self._last: tuple[SamplingColumns, Uploaded] | None = None

    @property
    def slot_buffers(self) -> tuple[SlotBuffer, ...]:
        """What the features keep for slots between steps."""
        return tuple(buffer for side in self._sides.values() for buffer in side.slot_buffers)

    def stage(self, batch: ModelWorkerBatch, logits: LogitsRows) -> StagedFeatures:
        """What the step's features need of the upload."""
        sampling, decode = batch.sampling, batch.mode.is_decode
        known = self._last[1] if self._last is not None and self._last[0] is sampling and decode else None
        columns: Columns = {}
        if known is None:
            for part in sampling.parts:
                columns |= feature_columns(part, logits)
        kept = tuple(columns) if decode else ()
        for part in batch.sampling_now:
            columns |= feature_columns(part, logits)
        for part in (*sampling.parts, *batch.sampling_now):
            columns |= named(part.feature, self._sides[part.feature].expect(part, logits, batch.seq_lens))
        return StagedFeatures(sampling, columns, kept, known or NOTHING_KNOWN)

    def acts(self, staged: StagedFeatures, up: Uploaded) -> tuple[Act, ...]:
        """What the features do in the step, in the order of their stages."""
        if staged.kept:
            self._last = (staged.sampling, {name: up[name] for name in staged.kept})
        if not staged.sampling.parts and not staged.columns:
            return ()
        tensors: defaultdict[str, dict[str, Tensor]] = defaultdict(dict)
        for found, names in ((staged.known, staged.known), (up, staged.columns)):
            for name in names:
                feature, _, column = name.partition(".")
                tensors[feature][column] = found[name]
        sides = self._sides
        acts = [act for name in sides if name in tensors and (act := sides[name].act(tensors[name]))]
        return tuple(sorted(acts, key=lambda act: act.stage))
