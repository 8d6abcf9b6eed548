"""best_of: of the answers that were generated for each prompt, the likeliest."""

from __future__ import annotations

from collections.abc import Mapping

from mysglang.srt.managers.request_state import GenerationChunk


def likeliest(
    answers: Mapping[int, GenerationChunk], prompts: int, candidates: int, n: int
) -> dict[int, GenerationChunk]:
    """The `n` best answers of each prompt by their choice's index, the best first.

    `answers`: whole ones, those of prompt p at p * candidates and after it; with their log-probabilities if there are
    more than `n` for each. Better is the larger mean log-probability of a token, as OpenAI defines it.
    """
    best: dict[int, GenerationChunk] = {}
    for prompt in range(prompts):
        found = [answers[prompt * candidates + number] for number in range(candidates)]
        if candidates > n:
            found = sorted(found, key=mean_logprob, reverse=True)[:n]
        best.update({prompt * n + rank: answer for rank, answer in enumerate(found)})
    return best


def mean_logprob(answer: GenerationChunk) -> float:
    """Mean log-probability of the answer's tokens, in nats; minus infinity for an answer without tokens."""
    assert answer.logprobs is not None, "asked for"
    values = answer.logprobs.output.vals
    return float(values.mean()) if len(values) else float("-inf")
