"""logit_bias: a number that a request adds to the logits of tokens that it names."""

from __future__ import annotations

import math
from typing import Annotated

import msgspec
import numpy as np

from mysglang.srt.sampling.feature import ANY_WIDTH, Array, FeatureColumns, HostFacts, HostSide, SamplingFeature, Slots
from mysglang.srt.sampling.logit_edits import EditsOnDevice, edits
from mysglang.srt.sampling.request_field import SHORT, Bound, RequestField

NAME = "logit_bias"

DECISIVE = 1e20
"""A logit that is raised or lowered by so much decides by itself; by more, it would not be finite in float32 once it is
divided by a small temperature."""


MAX_LOGIT_BIAS = 4096
_BYTES_BY_BIAS = 150
"""Bytes of a map's entry in Python."""


class LogitBiasFields(msgspec.Struct, frozen=True, kw_only=True):
    """Request fields of logit biases."""

    logit_bias: Annotated[
        dict[int, float],
        SHORT,
        RequestField(
            "Token id -> number that is added to its logit.",
            (
                Bound(lambda bias: len(bias) <= MAX_LOGIT_BIAS, f"a map of at most {MAX_LOGIT_BIAS} entries"),
                Bound(lambda bias: not bias or all(map(math.isfinite, bias.values())), "a map of finite numbers"),
            ),
            are_token_ids=True,
            with_beams=True,
            work=len,
            held_bytes=lambda bias: _BYTES_BY_BIAS * len(bias),
        ),
    ] = {}


class BiasBySlot(HostSide):
    """Biases of each request, by slot."""

    widest = ANY_WIDTH

    def __init__(self, facts: HostFacts) -> None:
        self._edits: dict[int, tuple[Array, Array]] = {}
        """Token ids and what is added to their logits, made once: a step of many rows with thousands of entries each
        must not go through all of them."""

    def open(self, slot: int, params: LogitBiasFields) -> bool:
        bias = params.logit_bias
        if bias:
            # Clipped in float64: what is beyond float32 would be infinite.
            values = np.fromiter(bias.values(), dtype=np.float64, count=len(bias)).clip(-DECISIVE, DECISIVE)
            ids = np.fromiter(bias, dtype=np.int64, count=len(bias))
            self._edits[slot] = ids, values.astype(np.float32)
        return bool(bias)

    def close(self, slot: int) -> None:
        del self._edits[slot]

    def kept(self, slots: Slots, users: Slots) -> FeatureColumns:
        ids, values = zip(*(self._edits[slot] for slot in slots[users].tolist()), strict=True)
        return edits(NAME, users, ids, values)


LOGIT_BIAS = SamplingFeature(NAME, LogitBiasFields, BiasBySlot, lambda _: EditsOnDevice())
