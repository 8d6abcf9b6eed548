"""Log-probabilities of prompts and answers are those of transformers in float32, whatever of the prompt was cached and
however it was cut.
"""

from collections.abc import Iterator
from random import Random
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from fixtures.server_process import REPOSITORY
from fixtures.warm_start import warm_engines
from mysglang import Engine

TINY = REPOSITORY / "python" / "mysglang" / "assets" / "tiny"
CLOSE = {"abs": 2e-4}
"""Rounding: sums of a few hundred float32 products, in another order."""

TOP = 5
ASKED = [7, 300, 4095]
NEW = 12

WAYS = {
    "whole": {},
    "chunks and pages": {"chunked_prefill_size": 16, "page_size": 16},
    "mixed steps, no cache": {"chunked_prefill_size": 16, "enable_mixed_chunk": True, "disable_radix_cache": True},
}


@pytest.fixture(scope="module")
def truth() -> PreTrainedModel:
    torch.set_num_threads(1)
    return AutoModelForCausalLM.from_pretrained(TINY, dtype=torch.float32).eval()


@pytest.fixture(scope="module", params=list(WAYS), ids=lambda way: way.replace(" ", "_"))
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    with warm_engines(), Engine(dtype="float32", **WAYS[request.param]) as started:
        yield started


def drawn_prompt(seed: int, length: int) -> list[int]:
    draw = Random(seed)
    return [draw.randrange(3, 4096) for _ in range(length)]


def check(truth: PreTrainedModel, prompt: list[int], answer: dict[str, Any], start: int, temperature: float) -> None:
    """Every number of `answer`. `start`: the first position of the prompt that has one."""
    ids = torch.tensor([prompt + answer["output_ids"]])
    with torch.no_grad():
        logits = truth(ids).logits[0].double()
    meta, length = answer["meta_info"], len(prompt)
    assert len(answer["output_ids"]) == len(meta["output_token_logprobs"]) == meta["completion_tokens"]
    drawn = logits[length - 1 : -1] / (temperature or 1.0)
    check_rows(meta, "output", torch.log_softmax(drawn, -1), answer["output_ids"])
    if start == 0:
        # Nothing comes before the first token.
        assert meta["input_token_logprobs"].pop(0)[:2] == (None, prompt[0])
        assert meta["input_top_logprobs"].pop(0) is meta["input_token_ids_logprobs"].pop(0) is None
    first = max(start, 1)
    check_rows(meta, "input", torch.log_softmax(logits[first - 1 : length - 1], -1), prompt[first:])


def check_rows(meta: dict[str, Any], side: str, expected: torch.Tensor, ids: list[int]) -> None:
    """`expected`: [positions, vocabulary]."""
    chosen, top, asked = (meta[f"{side}_{kind}_logprobs"] for kind in ("token", "top", "token_ids"))
    assert len(chosen) == len(top) == len(asked) == len(ids) == len(expected)
    for i, token in enumerate(ids):
        assert chosen[i][:2] == (pytest.approx(expected[i, token].item(), **CLOSE), token)
        best = torch.topk(expected[i], TOP)
        assert [value for value, _, _ in top[i]] == pytest.approx(best.values.tolist(), **CLOSE)
        for value, likely, _ in top[i]:
            assert value == pytest.approx(expected[i, likely].item(), **CLOSE)
        assert [one for _, one, _ in asked[i]] == ASKED
        assert [value for value, _, _ in asked[i]] == pytest.approx(expected[i, ASKED].tolist(), **CLOSE)


def ask(engine: Engine, prompts: Any, start: int, temperature: float = 0.0) -> Any:
    params = {"max_new_tokens": NEW, "ignore_eos": True, "temperature": temperature, "sampling_seed": 5}
    return engine.generate(
        input_ids=prompts,
        sampling_params=params,
        return_logprob=True,
        logprob_start_len=start,
        top_logprobs_num=TOP,
        token_ids_logprob=ASKED,
    )


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_all_of_a_prompt_and_its_answer(engine: Engine, truth: PreTrainedModel, temperature: float) -> None:
    for length in (1, 2, 16, 17, 75):
        prompt = drawn_prompt(length, length)
        check(truth, prompt, ask(engine, prompt, 0, temperature), 0, temperature)


def test_the_end_of_a_prompt_whose_beginning_is_cached(engine: Engine, truth: PreTrainedModel) -> None:
    prompt = drawn_prompt(1000, 80)
    ask(engine, prompt, -1)
    state = engine.get_server_info()
    for start in (0, 30, 48, 70, 79):
        answer = ask(engine, prompt, start)
        if start >= 48 and not state["disable_radix_cache"]:
            assert 32 <= answer["meta_info"]["cached_tokens"] <= start
        check(truth, prompt, answer, start, 0.0)


def test_a_longer_prompt_on_a_cached_one_and_its_answer(engine: Engine, truth: PreTrainedModel) -> None:
    prompt = drawn_prompt(2000, 40)
    longer = [*prompt, *ask(engine, prompt, -1)["output_ids"], *drawn_prompt(2001, 21)]
    check(truth, longer, ask(engine, longer, 45), 45, 0.0)


def test_in_company(engine: Engine, truth: PreTrainedModel) -> None:
    common = drawn_prompt(3000, 33)
    prompts = [[*common, *drawn_prompt(3001 + i, 5 * i + 1)] for i in range(6)]
    for prompt, answer in zip(prompts, ask(engine, prompts, 20, 0.7), strict=True):
        check(truth, prompt, answer, 20, 0.7)
