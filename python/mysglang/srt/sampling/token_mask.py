"""Masked: the tokens that a grammar or a rule forbids in each row, as one bit for each token."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar

from msgspec.structs import replace

from mysglang.srt.sampling.feature import Act, Stage, places

if TYPE_CHECKING:
    from torch import Tensor


class Masked(Act, frozen=True, eq=False):
    """A mask of allowed tokens for rows [C] int64 of the logits: [C, words] int32, one bit for each token."""

    stage: ClassVar[Stage] = Stage.MASK
    rows: Tensor
    bits: Tensor
    apply: Callable[[Tensor, Tensor, Tensor], None]
    """The op `apply_token_bitmask`, or its reference."""

    def edit(self, logits: Tensor, broken: Tensor) -> None:
        self.apply(logits, self.rows, self.bits)

    def alone(self, row: int) -> Act | None:
        at = places(self.rows, row)
        return replace(self, rows=at * 0, bits=self.bits[at]) if len(at) else None
