"""Parameters that a short request has copied for thousands of answers, or that take long to check: the scheduler's
memory and the event loop are kept from them.
"""

import asyncio
import json
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from fixtures.fake_engine import Row
from fixtures.manager_bench import LIMITS, Bench
from mysglang.srt.errors import InvalidRequest, Overloaded
from mysglang.srt.managers import input_tokenizer, tokenizer_manager
from mysglang.srt.managers.caller import CALLER, Caller
from mysglang.srt.managers.text_pool import LONG_TEXT
from mysglang.srt.managers.unfold import unfold, unfolding
from mysglang.srt.messages.generate import MANY_IDS, GenerateReqInput, parse_generate
from mysglang.srt.messages.outputs import Length
from mysglang.srt.sampling.request_field import MAX_ENTRIES
from mysglang.srt.sampling.sampling_params import MAX_ALLOWED_TOKEN_IDS, SamplingParams
from mysglang.srt.utils.tokenizer import Tokenizer

SCHEMA = json.dumps({"enum": ["a" * 1000] * 100})


def refused(**fields: Any) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        unfold(parse_generate({"text": "a", **fields}), LIMITS.vocab_size, 4096)
    return caught.value


@pytest.mark.parametrize(
    "params",
    [
        {"json_schema": SCHEMA},
        {"logit_bias": {str(token): 1 for token in range(600)}},
        {"allowed_token_ids": list(range(600))},
        {"bad_words": ["abcdefghij" * 20] * 100},
        {"stop": ["a" * 1000] * 30},
        {"custom_params": {"a": ["abc"] * 5000}},
    ],
)
def test_the_memory_of_all_copies_is_known(params: dict[str, Any]) -> None:
    obj = parse_generate({"text": ["a"] * 100, "sampling_params": {"n": 4, **params}})
    written = len(json.dumps(next(iter(params.values()))))
    assert unfold(obj, LIMITS.vocab_size, 4096).held_bytes > 400 * 0.8 * written


async def test_copies_of_open_requests_have_room_together(
    make: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    params = SamplingParams(json_schema=SCHEMA)
    most = 4 * params.held_bytes
    monkeypatch.setattr(tokenizer_manager, "MAX_PARAMS_BYTES", most)
    bench = make()
    CALLER.set(Caller(remote=True))
    task, [first, second] = await bench.started(2, text=["a", "b"], sampling_params=params)
    with pytest.raises(InvalidRequest, match="copied for 3 answers"):
        await bench.collect(text=["a"] * 3, sampling_params=params)
    other, more = await bench.started(2, text=["c", "d"], sampling_params=params)
    with pytest.raises(Overloaded, match="memory"):
        await bench.collect(sampling_params=params)
    for request in (first, second, *more):
        bench.engine.say(Row(request.rid, "", [], Length(1)))
    await asyncio.gather(task, other)
    assert bench.manager._params_room.used == 0
    last, [request] = await bench.started(sampling_params=params)
    bench.engine.say(Row(request.rid, "", [], Length(1)))
    await last


@pytest.mark.parametrize(
    ("params", "field"),
    [
        ({"allowed_token_ids": [1] * 601}, "allowed_token_ids"),
        ({"allowed_token_ids": [1] * (MAX_ALLOWED_TOKEN_IDS + 1)}, "allowed_token_ids"),
        ({"stop_token_ids": [1] * (MAX_ENTRIES + 1)}, "stop_token_ids"),
        ({"stop_regex": ["(|||||){70}a"]}, "stop_regex"),
        ({"stop_regex": [f".{{1,60}}a{number}" for number in range(32)]}, "stop_regex"),
    ],
)
def test_what_takes_long_to_look_at_is_refused(params: dict[str, Any], field: str) -> None:
    assert refused(sampling_params=params).param == field


def test_lists_for_each_prompt_are_bounded() -> None:
    assert refused(return_logprob=[True] * (MAX_ENTRIES + 1)).param == "return_logprob"
    assert refused(token_ids_logprob=[[1] * (1 << 20), [1]]).param == "token_ids_logprob"


@pytest.mark.parametrize("field", ["input_ids", "input_embeds"])
def test_long_lists_are_not_copied(field: str) -> None:
    """A copy is made in one go, in which no other thread can run: 130 ms for four million numbers."""
    given = [[1.5] * MANY_IDS]
    assert getattr(parse_generate({field: given}), field) is given


@pytest.mark.parametrize("rows", [["a"], [[1.5], 1], [[[1.5]], 2], [[[1.5]], ["a"]], [[1.5, "1.5"]], [[True, 1.0]]])
async def test_vectors_that_are_none(tokenizer: Tokenizer, bench: Bench, rows: list[Any]) -> None:
    limits = replace(LIMITS, hidden_size=2)
    coder = input_tokenizer.InputTokenizer(tokenizer, limits, bench.manager.input_tokenizer._pool)
    obj = GenerateReqInput(input_embeds=rows)
    with pytest.raises(InvalidRequest) as caught:
        unfolded = await coder.unfold(obj, 100)
        await coder.tokenize(obj, unfolded, unfolded.rids)
    assert caught.value.param == "input_embeds"


async def test_vectors_where_layers_need_ids(tokenizer: Tokenizer, bench: Bench) -> None:
    limits = replace(LIMITS, hidden_size=2, inputs_of_ids=True)
    coder = input_tokenizer.InputTokenizer(tokenizer, limits, bench.manager.input_tokenizer._pool)
    obj = GenerateReqInput(input_embeds=[[1.5, 2.5]])
    unfolded = await coder.unfold(obj, 100)
    with pytest.raises(InvalidRequest, match="vectors have no ids"):
        await coder.tokenize(obj, unfolded, unfolded.rids)


@pytest.mark.parametrize("rows", [[1.5], [[1.5], 1], [None], "a", [1.5] * MANY_IDS])
def test_what_are_no_lists_are_no_vectors(rows: object) -> None:
    """Routes look at the first of them before they are laid out."""
    with pytest.raises(InvalidRequest) as caught:
        parse_generate({"input_embeds": rows})
    assert caught.value.param is not None and caught.value.param.startswith("input_embeds")


async def test_a_prompt_that_cannot_fit_is_not_packed(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(input_tokenizer, "packed_prompts", None)
    with pytest.raises(InvalidRequest, match="2000 tokens"):
        await bench.collect(text=None, input_ids=["not looked at"] * 2000)


@pytest.mark.parametrize(
    "fields",
    [
        {"text": ["a"] * 300, "sampling_params": [SamplingParams(temperature=0.5 + i) for i in range(300)]},
        {"text": "a", "sampling_params": SamplingParams(stop_regex=["a", "b", "c", "d", "e", "f", "g", "h"])},
        {"text": "a", "sampling_params": SamplingParams(json_schema=SCHEMA)},
        {"text": "a", "sampling_params": SamplingParams(allowed_token_ids=[1] * LONG_TEXT)},
        {"text": "a", "token_ids_logprob": [1] * LONG_TEXT},
    ],
)
async def test_what_takes_long_to_check_leaves_the_event_loop(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any]
) -> None:
    threads: list[threading.Thread] = []

    def watched(*_: object) -> None:
        threads.append(threading.current_thread())
        raise InvalidRequest("seen")

    monkeypatch.setattr(input_tokenizer, "unfold", watched)
    obj = GenerateReqInput(**fields)
    assert unfolding(obj) >= LONG_TEXT
    with pytest.raises(InvalidRequest, match="seen"):
        await bench.manager.input_tokenizer.unfold(obj, 4096)
    assert threads != [threading.main_thread()]
