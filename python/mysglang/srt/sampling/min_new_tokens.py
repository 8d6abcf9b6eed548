"""min_new_tokens: EOS and stop tokens are forbidden until the answer is long enough. Stop strings, which may be part of
a good answer, have no effect until then (`utils/text.py`).

For a request with a mask, the mask forbids them: it alone knows whether anything but the end is allowed.
"""

from __future__ import annotations

from typing import Annotated, Protocol

import msgspec
import numpy as np

from mysglang.srt.sampling.feature import (
    FeatureColumns,
    HostFacts,
    HostSide,
    Ints,
    SamplingFeature,
    Slots,
    StepRows,
)
from mysglang.srt.sampling.logit_edits import EditsOnDevice, Prohibitions, edits
from mysglang.srt.sampling.request_field import RequestField, between, on

NAME = "min_new_tokens"

_INT32_MAX = (1 << 31) - 1


class MinNewTokensFields(msgspec.Struct, frozen=True, kw_only=True):
    """Request fields of min_new_tokens."""

    min_new_tokens: Annotated[
        int,
        RequestField(
            "Minimum number of tokens before the answer may end. Default: 0.",
            (between(0, _INT32_MAX),),
            routes=on("openai", name="min_tokens"),
            with_beams=True,
        ),
    ] = 0


class EndFields(Protocol):
    """Request fields that decide which tokens end an answer."""

    @property
    def min_new_tokens(self) -> int: ...

    @property
    def stop_token_ids(self) -> list[int]: ...


class MinNewTokensBySlot(HostSide):
    """For each slot, the tokens that would end it."""

    def __init__(self, facts: HostFacts) -> None:
        self._table = facts.table
        self._eos: Ints = np.asarray(facts.eos_token_ids, dtype=np.int32)
        self._ends: dict[int, Ints] = {}

    def open(self, slot: int, params: EndFields) -> bool:
        if params.min_new_tokens == 0:
            return False
        self._ends[slot] = np.union1d(self._eos, np.asarray(params.stop_token_ids, dtype=np.int32))
        return True

    def close(self, slot: int) -> None:
        del self._ends[slot]

    def fresh(self, step: StepRows, users: Slots) -> FeatureColumns | None:
        slots = step.slots[users]
        # The token to be sampled stands at starts + lens.
        length = step.starts[users] + step.lens[users] + 1
        early = (length <= self._table.min_len[slots]) & step.yields[users] & ~self._table.is_constrained(slots)
        if not early.any():
            return None
        ids = [self._ends[slot] for slot in slots[early].tolist()]
        return edits(NAME, users[early], ids, [np.full(len(row), -np.inf) for row in ids])


MIN_NEW_TOKENS = SamplingFeature(NAME, MinNewTokensFields, MinNewTokensBySlot, lambda _: EditsOnDevice(Prohibitions))
