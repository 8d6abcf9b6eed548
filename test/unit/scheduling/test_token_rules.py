"""Allowed tokens and bad words: what a mask leaves, and whole answers with overlap, chunks and retraction."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

import numpy as np
import pytest

from fixtures.covering import pairwise
from fixtures.driven_scheduler import Answer
from fixtures.fake_grammar import allowed_tokens, first_allowed
from fixtures.fake_worker import EOS, next_token
from fixtures.late_scheduler import LOOPS, VOCAB, LateScheduler, Setup
from mysglang.srt.forward.worker_batch import Ints, mask_words
from mysglang.srt.messages.packing import pack_ids
from mysglang.srt.messages.requests import TokenizedGenerateReqInput
from mysglang.srt.sampling.sampling_params import SamplingParams
from mysglang.srt.scheduling.grammar import Phrases, TokenRules, token_rules

SETUPS = [
    Setup(**case, max_context=192, conservativeness=0.1) for case in pairwise({**LOOPS, "num_tokens": (192, 2048)})
]


def ints(*values: int) -> Ints:
    return np.asarray(values, dtype=np.int32)


def rules(allowed: Sequence[int] | None, *bad_words: Sequence[int], vocab_size: int = 70) -> TokenRules:
    made = token_rules(allowed, [ints(*word) for word in bad_words], vocab_size)
    assert made is not None
    return made


def left(made: TokenRules, output: Sequence[int] = (), vocab_size: int = 70) -> list[int]:
    """The tokens that a mask which allowed all still allows."""
    bits = np.full(mask_words(vocab_size), -1, dtype=np.int32)
    made.apply(bits, ints(*output))
    tokens = np.flatnonzero(np.unpackbits(bits.view(np.uint8), bitorder="little")[:vocab_size]).tolist()
    assert tokens == [token for token in range(vocab_size) if made.allow(token, ints(*output))]
    return tokens


def send(
    scheduler: LateScheduler,
    rid: str,
    prompt: Sequence[int],
    max_new: int,
    *,
    bad_words: Sequence[Sequence[int]] = (),
    **params: object,
) -> None:
    """A request with rules arrives."""
    scheduler.answers[rid] = Answer()
    scheduler.requests.send(
        TokenizedGenerateReqInput(
            rid=rid,
            input_ids=pack_ids(list(prompt)),
            sampling_params=SamplingParams(max_new_tokens=max_new, sampling_seed=1, **params),  # type: ignore[arg-type]
            bad_words=[pack_ids(list(word)) for word in bad_words],
            stream=True,
        )
    )


def test_without_rules_there_are_none() -> None:
    assert token_rules(None, [], 70) is None


def test_allowed_tokens_are_the_only_ones() -> None:
    assert left(rules([0, 31, 32, 69, 31])) == [0, 31, 32, 69]


def test_a_word_of_one_token_is_never_left() -> None:
    assert left(rules(None, [31], [63])) == [token for token in range(70) if token not in (31, 63)]


def test_the_last_token_of_a_word_is_forbidden_after_the_others() -> None:
    made = rules([1, 2, 3, 4], [1, 2, 3], [2, 4])
    assert left(made) == [1, 2, 3, 4]
    assert left(made, [2]) == [1, 2, 3]
    assert left(made, [5, 1, 2]) == [1, 2]
    assert left(made, [1, 2, 2]) == [1, 2, 3]


def test_a_step_does_not_look_at_every_word() -> None:
    """A thousand bad words of one request would take milliseconds of each step of the batch."""
    looked: list[int] = []

    class Watched(dict[bytes, Ints]):
        def get(self, head: bytes, default: Ints | None = None) -> Ints | None:  # type: ignore[override]
            looked.append(1)
            return super().get(head, default)

    phrases = Phrases(ints(*head, last) for head in itertools.product(range(40), range(25)) for last in (50, 60))
    phrases._lasts = Watched(phrases._lasts)
    assert [lasts.tolist() for lasts in phrases.after(ints(9, 39, 24))] == [[50, 60]]
    assert len(looked) == 1


def test_a_word_begins_in_the_answer_and_not_in_the_prompt() -> None:
    """Its tokens count from the first that was generated."""
    scheduler = LateScheduler(Setup())
    prompt, second = [5, 6], next_token([5, 6, next_token([5, 6], VOCAB)], VOCAB)
    send(scheduler, "r", prompt, 2, ignore_eos=True, bad_words=[[6, next_token(prompt, VOCAB)], [6, 5, second]])
    scheduler.run()
    assert scheduler.answers["r"].ids == [next_token(prompt, VOCAB), second]


def solo(
    prompt: list[int], max_new: int, allowed: Sequence[int] | None, words: Sequence[Sequence[int]], number: int | None
) -> list[int]:
    """The toy's answer under the rules, and grammar `number`; cut where nothing is allowed."""
    out: list[int] = []
    while len(out) < max_new:
        tokens = set(range(VOCAB) if allowed is None else allowed)
        if number is not None:
            tokens &= set(allowed_tokens(number, out, VOCAB))
        tokens -= {word[-1] for word in words if out[len(out) - len(word) + 1 :] == list(word[:-1])}
        out.append(first_allowed(next_token([*prompt, *out], VOCAB), sorted(tokens)))
        if out[-1] == EOS:
            break
    return out


@pytest.mark.parametrize("setup", SETUPS, ids=str)
def test_answers_equal_solo_ones(setup: Setup) -> None:
    """Small sets of tokens, so that words of two and three come up all the time."""
    rng, scheduler = random.Random(3), LateScheduler(setup)
    expected = {}
    for i in range(30):
        prompt = [rng.randrange(1, VOCAB) for _ in range(rng.randrange(1, 40))]
        allowed = None if i % 4 == 0 else rng.sample(range(1, VOCAB), 6)
        letters = allowed or range(VOCAB)
        words = [rng.choices(letters, k=rng.randrange(2, 4)) for _ in range(8)] if i % 3 else []
        number = rng.randrange(1000) if allowed is None and not words else None
        grammar = {} if number is None else {"regex": str(number)}
        send(scheduler, f"r{i}", prompt, 25, bad_words=words, allowed_token_ids=allowed, **grammar)
        expected[f"r{i}"] = solo(prompt, 25, allowed, words, number)
        scheduler.turn(rng.randrange(3))
    scheduler.run()
    assert {rid: answer.ids for rid, answer in scheduler.answers.items()} == expected
    if setup.num_tokens == 192:
        assert scheduler.retractions > 0


def test_such_steps_overlap_too() -> None:
    scheduler = LateScheduler(Setup(overlap=True))
    send(scheduler, "r", [1, 2, 3], 30, allowed_token_ids=[4, 5, 6], bad_words=[[4, 5]])
    scheduler.run()
    assert scheduler.worker.most_in_flight == 2
    assert scheduler.answers["r"].ids == solo([1, 2, 3], 30, [4, 5, 6], [[4, 5]], None)


def test_the_shortest_answer_is_kept_open() -> None:
    scheduler = LateScheduler(Setup())
    send(scheduler, "r", [1, 2], 8, min_new_tokens=6, allowed_token_ids=[EOS, 7])
    scheduler.run()
    assert scheduler.answers["r"].ids[:5] == [7] * 5
