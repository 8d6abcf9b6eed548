"""Drawing: temperature, top_k, top_p, min_p and seed. Tokens are drawn instead of taking the most likely ones.

One feature, since one kernel does it. A row's random number is a function of its seed and of the length of its text, so
it is the same whatever the neighbours and however often the row is computed again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, ClassVar

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from mysglang.srt.sampling.draws import uniforms
from mysglang.srt.sampling.feature import (
    ANY_WIDTH,
    Act,
    Array,
    Arrays,
    DeviceFacts,
    DeviceSide,
    FeatureColumns,
    HostFacts,
    HostSide,
    Ints,
    SamplingFeature,
    Slots,
    Stage,
    Tensors,
)
from mysglang.srt.sampling.logits_rows import LogitsRows
from mysglang.srt.sampling.request_field import Bound, RequestField, between, on
from mysglang.srt.sampling.row_table import RowTable

if TYPE_CHECKING:
    from torch import Tensor

    from mysglang.srt.kernels.sampling import Filters

NAME = "drawing"

TOP_K_ALL = 1 << 30
"""top_k that keeps the whole vocabulary."""

GREEDY_TEMPERATURE = 1e-6
"""Below this temperature a request is greedy."""

MAX_TEMPERATURE = 1e20
"""Above this limit a float32 logit could become infinite, in combination with other fields."""

_INT64_MAX = (1 << 63) - 1

_EVERYWHERE = on("openai", "responses", "ollama", "anthropic")


class DrawingFields(msgspec.Struct, frozen=True, kw_only=True):
    """Request fields of random sampling."""

    temperature: Annotated[
        float,
        RequestField(
            "Divides the logits before a token is sampled, at least 0; 0 takes the most likely token.",
            (Bound(lambda t: 0 <= t <= MAX_TEMPERATURE, f"a finite number >= 0 and at most {MAX_TEMPERATURE:g}"),),
            routes=_EVERYWHERE,
            recommended="1",
            with_beams=True,
        ),
    ] = 1.0
    top_p: Annotated[
        float,
        RequestField(
            "Samples from the most likely tokens that together have this probability, up to 1.",
            (Bound(lambda p: 0 < p <= 1, "greater than 0 and at most 1"),),
            routes=_EVERYWHERE,
            recommended="1",
            with_beams=True,
        ),
    ] = 1.0
    top_k: Annotated[
        int,
        RequestField(
            "Samples from this many most likely tokens; -1 for all.",
            (Bound(lambda k: k == -1 or 1 <= k <= TOP_K_ALL, f"-1 (all) or between 1 and {TOP_K_ALL}"),),
            routes=_EVERYWHERE,
            recommended="all",
            as_ours=lambda k: TOP_K_ALL if k == 0 else k,
            with_beams=True,
        ),
    ] = TOP_K_ALL
    min_p: Annotated[
        float,
        RequestField(
            "Drops tokens less likely than this share of the most likely one, 0 to 1.",
            (between(0, 1),),
            routes=on("openai", "responses", "ollama"),
            recommended="0",
            with_beams=True,
        ),
    ] = 0.0
    sampling_seed: Annotated[
        int | None,
        RequestField(
            "Seed for sampling, a 64-bit integer. Default: one is drawn.",
            (Bound(lambda seed: -_INT64_MAX - 1 <= seed <= _INT64_MAX, "a 64-bit integer"),),
            routes=on("openai", "responses", "ollama", name="seed"),
            with_beams=True,
        ),
    ] = None
    """A seed is drawn on arrival, so that every request that reaches a scheduler has one."""


def is_greedy(fields: DrawingFields) -> bool:
    """True if the most likely token is always taken."""
    return fields.top_k == 1 or fields.temperature < GREEDY_TEMPERATURE


NEUTRAL: dict[str, float] = {"top_k": TOP_K_ALL, "top_p": 1.0, "min_p": 0.0}
"""The filters, and the value of each with which it leaves every token."""


def drawing_columns(
    rows: Slots,
    *,
    temperature: npt.NDArray[np.float32],
    top_k: Ints,
    top_p: npt.NDArray[np.float32],
    min_p: npt.NDArray[np.float32],
    seeds: npt.NDArray[np.int64],
) -> FeatureColumns:
    """Returns the columns of all rows of a batch [R]; greedy rows have top_k 1 and temperature 1. A filter that no
    drawing row uses is left out.
    """
    greedy = top_k == 1
    filters: dict[str, Array] = {"top_k": top_k, "top_p": top_p, "min_p": min_p}
    used = {name: column for name, column in filters.items() if (column[~greedy] != NEUTRAL[name]).any()}
    if used:
        # Filters are quicker the less they leave: a greedy row must not be one that keeps every token.
        used["top_k"] = top_k
    return FeatureColumns(NAME, rows, {"temperature": temperature, "greedy": greedy, **used}, {"seeds": seeds})


def one_drawing_row(top_k: int) -> FeatureColumns:
    """Returns the columns of a batch with one row that samples with `top_k`, temperature 1 and top_p 1."""
    one, row = np.ones(1, dtype=np.float32), np.zeros(1, dtype=np.int64)
    ranks = np.full(1, top_k, dtype=np.int32)
    return drawing_columns(row, temperature=one, top_k=ranks, top_p=one, min_p=0 * one, seeds=row)


class DrawingBySlot(HostSide):
    """Random sampling parameters by slot. A greedy request does not use them, but may be in a batch with one that does.

    Each place of a row has a random number of its own, so a draft counts where it is what would be drawn there, and the
    text is the same with drafts and without.
    """

    widest = ANY_WIDTH

    def __init__(self, facts: HostFacts) -> None:
        num_slots = facts.table.num_slots
        self._temperature = np.ones(num_slots, dtype=np.float32)
        self._top_k: Ints = np.ones(num_slots, dtype=np.int32)
        self._top_p = np.ones(num_slots, dtype=np.float32)
        self._min_p = np.zeros(num_slots, dtype=np.float32)
        self._seeds = np.zeros(num_slots, dtype=np.int64)

    def open(self, slot: int, params: DrawingFields) -> bool:
        greedy = is_greedy(params)
        self._temperature[slot] = 1.0 if greedy else params.temperature
        self._top_k[slot] = 1 if greedy else (TOP_K_ALL if params.top_k == -1 else params.top_k)
        self._top_p[slot] = params.top_p
        self._min_p[slot] = params.min_p
        self._seeds[slot] = params.sampling_seed or 0
        return not greedy

    def kept(self, slots: Slots, users: Slots) -> FeatureColumns:
        return drawing_columns(
            np.arange(len(slots)),
            temperature=self._temperature[slots],
            top_k=self._top_k[slots],
            top_p=self._top_p[slots],
            min_p=self._min_p[slots],
            seeds=self._seeds[slots],
        )


class Draw(Act, frozen=True, eq=False, kw_only=True):
    """The random choice of rows. All [S]."""

    stage: ClassVar[Stage] = Stage.CHOOSE
    draw: Callable[..., Tensor]
    uniforms: Tensor
    """float64 in [0, 1)"""
    temperature: Tensor
    """float32; 1 for greedy rows."""
    greedy: Tensor
    """bool: rows that take the most likely token all the same."""
    filters: Filters

    def scale(self, logits: Tensor, rows: Tensor) -> Tensor:
        return logits / self.temperature.index_select(0, rows)[:, None]

    def choose(self, logits: Tensor, tokens: Tensor) -> Tensor:
        drawn = self.draw(logits.float(), self.uniforms, self.temperature, self.filters)
        return tokens.where(self.greedy, drawn)

    def alone(self, row: int) -> Act:
        one = slice(row, row + 1)
        return replace(
            self,
            uniforms=self.uniforms[one],
            temperature=self.temperature[one],
            greedy=self.greedy[one],
            filters=self.filters.of(one),
        )


class DrawingOnDevice(DeviceSide):
    """The device side of sampling, which keeps no state between steps."""

    def __init__(self, facts: DeviceFacts) -> None:
        from mysglang.srt.kernels.late_rows import uniforms_at
        from mysglang.srt.kernels.sampling import Filters

        self._draw = facts.draw
        self._uniforms = uniforms_at
        self._filters = Filters

    def expect(self, part: FeatureColumns, logits: LogitsRows, seq_lens: Ints) -> Arrays:
        return {"uniforms": uniforms(part.host["seeds"][logits.rows], logits.lengths(seq_lens))}

    def expect_late(self, part: FeatureColumns, logits: LogitsRows) -> Arrays:
        return {"seeds": part.host["seeds"][logits.rows]}

    def tabulate(self, part: FeatureColumns, table: RowTable) -> bool:
        columns = part.columns
        filters = {name: columns.get(name, neutral) for name, neutral in NEUTRAL.items()}
        table.put(slice(None), seed=part.host["seeds"], temperature=columns["temperature"], **filters)
        table.put(columns["greedy"], top_k=1)
        return True

    def act(self, tensors: Tensors) -> Act | None:
        if "temperature" not in tensors:
            return None
        found = tensors.get("uniforms")
        return Draw(
            draw=self._draw,
            uniforms=self._uniforms(tensors["seeds"], tensors["lengths"]) if found is None else found,
            temperature=tensors["temperature"],
            greedy=tensors["greedy"],
            filters=self._filters(*(tensors.get(name) for name in self._filters._fields)),
        )


DRAWING = SamplingFeature(NAME, DrawingFields, DrawingBySlot, DrawingOnDevice)
