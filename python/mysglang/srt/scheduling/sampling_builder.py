"""SamplingBuilder: what a step carries of the sampling features that its rows use.

While the rows of consecutive decode steps stay the same, the same SamplingColumns object is handed out again, so that
a worker keeps its device copy.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mysglang.srt.forward.worker_batch import PLAIN_SAMPLING, Longs, SamplingColumns, Slots
from mysglang.srt.sampling.feature import FeatureColumns, HostFacts, HostSide, SamplingFeature
from mysglang.srt.sampling.features import FEATURES
from mysglang.srt.sampling.sampling_params import SamplingParams
from mysglang.srt.scheduling.batch import ScheduleBatch
from mysglang.srt.scheduling.request_table import RequestTable, Trait


class SamplingBuilder:
    """Builds the sampling columns of steps from the host sides of the features. `open` and `close` are called with the
    request table's.
    """

    def __init__(
        self,
        table: RequestTable,
        eos_token_ids: tuple[int, ...],
        features: Sequence[SamplingFeature] = FEATURES,
    ) -> None:
        facts = HostFacts(table, eos_token_ids)
        slots = table.num_slots
        self._sides: list[tuple[HostSide, Trait]] = [(feature.host(facts), Trait(slots)) for feature in features]
        self._uses = 0
        """Feature -> number of open slots that use it. A step without such slots skips the feature."""
        self._last: tuple[Slots, Longs, SamplingColumns] | None = None

    def open(self, slot: int, params: SamplingParams) -> None:
        for side, users in self._sides:
            users[slot] = uses = side.open(slot, params)
            self._uses += uses

    def widest(self, slot: int) -> int | None:
        """Returns how many new tokens of a step all features of this slot can handle exactly; None: any number."""
        return min((side.widest for side, users in self._sides if users[slot]), default=None)

    def close(self, slot: int) -> None:
        for side, users in self._sides:
            if users[slot]:
                side.close(slot)
                users[slot] = False
                self._uses -= 1

    def columns(self, batch: ScheduleBatch) -> SamplingColumns:
        """Returns the columns for the rows of `batch`; the object of the last step if its rows were the same."""
        if self._last is not None:
            slots, lives, columns = self._last
            if slots is batch.slots and lives is batch.lives:
                return columns
            if np.array_equal(slots, batch.slots) and np.array_equal(lives, batch.lives):
                # The arrays that come again from here on.
                self._last = (batch.slots, batch.lives, columns)
                return columns
        columns = self._gather(batch.slots)
        self._last = (batch.slots, batch.lives, columns)
        return columns

    def _gather(self, slots: Slots) -> SamplingColumns:
        used = [(side, rows) for side, users in self._sides if len(rows := users.rows(slots))]
        parts = tuple(part for side, rows in used if (part := side.kept(slots, rows)))
        return SamplingColumns(parts) if parts else PLAIN_SAMPLING

    def now(self, batch: ScheduleBatch) -> tuple[FeatureColumns, ...]:
        """Returns the columns of the features that are valid for this step only."""
        if not self._uses:
            return ()
        used = [(side, rows) for side, users in self._sides if len(rows := users.rows(batch.slots))]
        return tuple(part for side, rows in used if (part := side.fresh(batch, rows)))
