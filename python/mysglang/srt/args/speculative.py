"""Drafts of tokens to come."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from mysglang.srt.args.field import arg

SpeculativeAlgorithm = Literal["NGRAM"]

MOST_DRAFT_TOKENS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculativeArgs:
    """Steps that try several tokens of a request at once."""

    speculative_algorithm: SpeculativeAlgorithm | None = arg(
        None,
        help="Where drafts of the next tokens come from. NGRAM: from the last place in a request's own text that ends "
        "as the text does now. Answers stay the same; text that repeats itself comes faster.",
    )
    speculative_num_draft_tokens: int = arg(
        MOST_DRAFT_TOKENS,
        at_least=2,
        at_most=MOST_DRAFT_TOKENS,
        help="Tokens of a request that one step computes at most: its newest one, and the drafts behind it.",
    )

    @property
    def drafts(self) -> int:
        """Of a row in a step, at most; 0: none are tried."""
        return 0 if self.speculative_algorithm is None else self.speculative_num_draft_tokens - 1
