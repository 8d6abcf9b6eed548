"""Usage of a request, counted while its choices arrive; and the finish reason of a choice, by OpenAI's names."""

from __future__ import annotations

import msgspec

from mysglang.srt.messages.outputs import Abort, FinishReason, Length, Stop
from mysglang.srt.messages.weights import FIRST_VERSION


class _Counts(msgspec.Struct, frozen=True):
    prompt: int
    completion: int
    cached: int
    reasoning: int | None


class UsageMeter:
    """Counts the tokens of one request, over all of its prompts and their `n` choices each (choice = prompt * n +
    sample).
    """

    def __init__(self, n: int, *, report_cached: bool) -> None:
        self._n = n
        self._report_cached = report_cached
        self._choices: dict[int, _Counts] = {}
        self.weight_version = FIRST_VERSION
        """Version of the weights with which its newest tokens were computed."""

    def note(self, choice: int, *, prompt: int, completion: int, cached: int, reasoning: int | None = None) -> None:
        """Stores the present counters of `choice`. `reasoning`: the number of tokens of its thoughts, if known."""
        self._choices[choice] = _Counts(prompt, completion, cached, reasoning)

    def of(self, choice: int) -> dict[str, object]:
        """Returns `usage` of one choice so far."""
        counts = self._choices[choice]
        return self._fields(counts.prompt, counts.completion, counts.cached, counts.reasoning)

    def total(self) -> dict[str, object]:
        """Returns `usage` of the whole request. A prompt counts once, however many choices it has."""
        # The other choices find the prompt cached by the first: what was there before is the least of them.
        cached: dict[int, int] = {}
        prompts: dict[int, int] = {}
        for choice, counts in self._choices.items():
            prompt = choice // self._n
            prompts[prompt] = counts.prompt
            cached[prompt] = min(cached.get(prompt, counts.cached), counts.cached)
        completion = sum(counts.completion for counts in self._choices.values())
        known = [counts.reasoning for counts in self._choices.values() if counts.reasoning is not None]
        return self._fields(sum(prompts.values()), completion, sum(cached.values()), sum(known) if known else None)

    def _fields(self, prompt: int, completion: int, cached: int, reasoning: int | None) -> dict[str, object]:
        details: dict[str, object] = {}
        if reasoning is not None:
            # SGLang's clients read this key beside the details, OpenAI's inside them.
            details = {"completion_tokens_details": {"reasoning_tokens": reasoning}, "reasoning_tokens": reasoning}
        return {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
            "prompt_tokens_details": {"cached_tokens": cached} if self._report_cached else None,
            **details,
        }


def finish_words(reason: FinishReason) -> tuple[str, int | str | None]:
    """Returns (finish_reason, matched_stop) as OpenAI spells them."""
    match reason:
        case Stop(matched=matched):
            return "stop", matched
        case Length():
            return "length", None
        case Abort():
            return "abort", None
