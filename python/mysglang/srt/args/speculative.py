"""Options of speculative decoding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from mysglang.srt.args.field import arg

SpeculativeAlgorithm = Literal["NGRAM", "STANDALONE"]

MOST_DRAFTS = 4
MODEL_DRAFTS = 3
"""Drafts of a row where a draft model proposes them and no flag says how many, as in SGLang."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculativeArgs:
    """Steps that try several tokens of a request at once."""

    speculative_algorithm: SpeculativeAlgorithm | None = arg(
        None,
        help="Where drafts of the next tokens come from. NGRAM: from the last place in a request's own text that ends "
        "as the text does now. STANDALONE: from a small model. Answers stay the same; where drafts are right they come "
        "faster.",
    )
    speculative_draft_model_path: str | None = arg(
        None,
        aliases=("speculative_draft_model",),
        help="The model that proposes drafts with STANDALONE: a directory in Hugging Face format, or a Hugging Face "
        "repository. It must have the vocabulary of the served model.",
    )
    speculative_num_steps: int | None = arg(
        None,
        at_least=1,
        at_most=MOST_DRAFTS,
        help="With STANDALONE: drafts of a request in a step at most, one less than --speculative-num-draft-tokens. "
        f"Default: {MODEL_DRAFTS}.",
    )
    speculative_eagle_topk: int | None = arg(
        None, help="With STANDALONE: drafts at each place. Only chains are supported, so give 1 or leave it out."
    )
    speculative_num_draft_tokens: int | None = arg(
        None,
        at_least=2,
        at_most=1 + MOST_DRAFTS,
        help="Tokens of a request that one step computes at most: its newest one, and the drafts behind it. Default: "
        f"{1 + MOST_DRAFTS} with NGRAM, one more than --speculative-num-steps with STANDALONE.",
    )

    @property
    def drafts(self) -> int:
        """Largest number of draft tokens per row and step; 0: no drafts. For resolved options."""
        return 0 if self.speculative_num_draft_tokens is None else self.speculative_num_draft_tokens - 1

    def complaint(self) -> str | None:
        """Returns an error message if the given flags contradict one another, or None."""
        algorithm = self.speculative_algorithm
        of_model = {
            "--speculative-draft-model-path": self.speculative_draft_model_path,
            "--speculative-num-steps": self.speculative_num_steps,
            "--speculative-eagle-topk": self.speculative_eagle_topk,
        }
        given = [flag for flag, value in of_model.items() if value is not None]
        steps, tokens, topk = self.speculative_num_steps, self.speculative_num_draft_tokens, self.speculative_eagle_topk
        if algorithm is None:
            given += [] if tokens is None else ["--speculative-num-draft-tokens"]
            return f"{', '.join(given)}: only with --speculative-algorithm." if given else None
        if algorithm != "STANDALONE":
            return f"{', '.join(given)}: only with --speculative-algorithm STANDALONE." if given else None
        if self.speculative_draft_model_path is None:
            return "--speculative-algorithm STANDALONE: give the model with --speculative-draft-model-path."
        if topk not in (None, 1):
            return f"--speculative-eagle-topk {topk}: only chains of drafts are supported; give 1 or leave it out."
        if steps is not None and tokens not in (None, steps + 1):
            return (
                f"--speculative-num-draft-tokens {tokens}: with --speculative-num-steps {steps} it is {steps + 1}; "
                "leave one of them out."
            )
        return None
