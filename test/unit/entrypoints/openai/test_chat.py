"""/v1/chat/completions over a scripted engine: messages in, answers and frames out, to the byte."""

import asyncio
import re
from collections.abc import Sequence
from typing import Any

import orjson
import pytest

from fixtures.dialects import CHAT, USER
from fixtures.scripted_engine import CONTEXT_LEN, Length, Served, Step, Stop, events, logprob_row, serve, small
from mysglang.srt.entrypoints.app_options import AppOptions
from mysglang.srt.entrypoints.openai.sampling import USUAL, SamplingDefaults
from mysglang.srt.entrypoints.openai.serving_base import ServingOptions
from mysglang.srt.messages.outputs import Abort, RowLogprobs
from mysglang.srt.messages.requests import TokenizedGenerateReqInput
from mysglang.srt.sampling.sampling_params import SamplingParams

PATH, asked = CHAT.path, CHAT.asked
CHATML_HI = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"


def without_time(body: bytes) -> bytes:
    return re.sub(rb'"created":\d+', b'"created":0', body)


async def frames(served: Served, **fields: Any) -> list[bytes]:
    response = await served.post(PATH, asked(stream=True, rid="r", **fields))
    assert response.status_code == 200, response.text
    return events(without_time(response.content))


async def test_a_whole_answer() -> None:
    async with serve() as served:
        response = await served.post(PATH, asked(rid="r", model="default"))
    assert response.headers["content-type"] == "application/json"
    assert orjson.loads(without_time(response.content)) == {
        "id": "r",
        "object": "chat.completion",
        "created": 0,
        "model": "tiny",
        "choices": [
            {
                "index": 0,
                "message": {
                    "role": "assistant",
                    "content": "Hello world",
                    "reasoning_content": None,
                    "tool_calls": None,
                },
                "logprobs": None,
                "finish_reason": "stop",
                "matched_stop": 2,
            }
        ],
        "usage": {
            "prompt_tokens": len(small("byte_level").encode(CHATML_HI)),
            "completion_tokens": 4,
            "total_tokens": len(small("byte_level").encode(CHATML_HI)) + 4,
            "prompt_tokens_details": None,
        },
        "metadata": {"weight_version": "default"},
    }


HEAD = b'{"id":"r","object":"chat.completion.chunk","created":0,"model":"tiny","choices":['
ROLE = b'{"index":%d,"delta":{"role":"assistant","content":"","reasoning_content":null},"logprobs":null,"finish_reason":null,"matched_stop":null}'  # noqa: E501
TEXT = b'{"index":%d,"delta":{"content":"%b","reasoning_content":null},"logprobs":null,"finish_reason":null,"matched_stop":null}'  # noqa: E501
END = b'{"index":%d,"delta":{"reasoning_content":null},"logprobs":null,"finish_reason":"%b","matched_stop":%b}'


async def test_a_stream_to_the_byte() -> None:
    async with serve() as served:
        assert await frames(served) == [
            HEAD + ROLE % 0 + b"]}",
            HEAD + TEXT % (0, b"Hello") + b"]}",
            HEAD + TEXT % (0, b" world") + b"]}",
            HEAD + END % (0, b"stop", b"2") + b"]}",
            b"[DONE]",
        ]


async def test_a_stream_with_usage_to_the_byte() -> None:
    async with serve() as served:
        found = await frames(served, stream_options={"include_usage": True})
    prompt = len(small("byte_level").encode(CHATML_HI))
    usage = b'{"prompt_tokens":%d,"completion_tokens":4,"total_tokens":%d,"prompt_tokens_details":null}'
    assert found == [
        HEAD + ROLE % 0 + b'],"usage":null}',
        HEAD + TEXT % (0, b"Hello") + b'],"usage":null}',
        HEAD + TEXT % (0, b" world") + b'],"usage":null}',
        HEAD + END % (0, b"stop", b"2") + b'],"usage":null}',
        HEAD + b'],"usage":' + usage % (prompt, prompt + 4) + b"}",
        b"[DONE]",
    ]


async def test_usage_on_every_frame() -> None:
    async with serve() as served:
        found = await frames(served, stream_options={"continuous_usage_stats": True})
    told = [orjson.loads(frame)["usage"] for frame in found[:-1]]
    assert [usage["completion_tokens"] for usage in told] == [1, 1, 4, 4]


async def test_the_last_usage_counts_a_token_without_text() -> None:
    async with serve(lambda _: [Step("a"), Step("", [2], Stop(2))]) as served:
        found = await frames(served, stream_options={"continuous_usage_stats": True})
    assert orjson.loads(found[-2])["usage"]["completion_tokens"] == 2


async def test_two_choices_take_turns() -> None:
    def script(request: TokenizedGenerateReqInput) -> list[Step]:
        name = request.rid.partition("@")[0]
        return [Step(name), Step("!", [3], Length(2))]

    async with serve(script) as served:
        found = [orjson.loads(frame) for frame in (await frames(served, n=2))[:-1]]
        whole = (await served.post(PATH, asked(rid="r", n=2))).json()
    for index in range(2):
        own = [frame["choices"][0] for frame in found if frame["choices"][0]["index"] == index]
        assert own[0]["delta"]["role"] == "assistant"
        assert "".join(choice["delta"].get("content", "") for choice in own) == f"r_{index}!"
        assert [choice["finish_reason"] for choice in own] == [None] * (len(own) - 1) + ["length"]
    assert [choice["message"]["content"] for choice in whole["choices"]] == ["r_0!", "r_1!"]
    prompt = len(small("byte_level").encode(CHATML_HI))
    assert whole["usage"]["prompt_tokens"] == prompt
    assert whole["usage"]["completion_tokens"] == 4


async def test_an_answer_without_text() -> None:
    async with serve(lambda _: [Step("", [2], Stop(2))]) as served:
        assert [orjson.loads(frame)["choices"][0]["delta"] for frame in (await frames(served))[:-1]] == [
            {"role": "assistant", "content": "", "reasoning_content": None},
            {"reasoning_content": None},
        ]
        whole = (await served.post(PATH, asked())).json()
    assert whole["choices"][0]["message"]["content"] == ""


@pytest.mark.parametrize(
    ("reason", "told"),
    [
        (Stop("END"), ("stop", "END")),
        (Stop(7), ("stop", 7)),
        (Stop(None), ("stop", None)),
        (Length(3), ("length", None)),
        (Abort("Aborted by the client."), ("abort", None)),
    ],
)
async def test_reasons_to_end(reason: Any, told: tuple[str, object]) -> None:
    async with serve(lambda _: [Step("Hi", [3], reason)]) as served:
        whole = (await served.post(PATH, asked())).json()["choices"][0]
        last = orjson.loads((await frames(served))[-2])["choices"][0]
    assert (whole["finish_reason"], whole["matched_stop"]) == told
    assert (last["finish_reason"], last["matched_stop"]) == told


@pytest.mark.parametrize("status", [400, 500])
async def test_an_engine_that_refuses_a_field_names_it_as_the_client_does(status: int) -> None:
    refusal = Abort("json_schema: it is too large.", status=status, param="json_schema")
    body = asked(response_format={"type": "json_object"})
    async with serve(lambda _: [Step("", [], refusal)]) as served:
        whole = await served.post(PATH, body)
        stream = await served.post(PATH, body | {"stream": True})
    for answer in (whole, stream):
        error = answer.json()["error"]
        assert (answer.status_code, error["param"]) == (status, "response_format")
        assert error["message"] == "response_format: it is too large."


async def test_an_engine_that_refuses_before_the_first_frame() -> None:
    async with serve(lambda _: [Step("", [], Abort("The request queue is full.", status=503))]) as served:
        response = await served.post(PATH, asked(stream=True))
    assert response.status_code == 503
    assert response.headers["retry-after"] == "1"


async def test_cached_tokens_are_told_if_the_server_is_to() -> None:
    options = AppOptions(serving=ServingOptions(report_cached_tokens=True))
    async with serve(options=options) as served:
        usage = (await served.post(PATH, asked(n=2))).json()["usage"]
    assert usage["prompt_tokens_details"] == {"cached_tokens": 4}


def logprob_script(_request: TokenizedGenerateReqInput) -> list[Step]:
    ids = small("byte_level").encode("é!")
    row = logprob_row(ids[:1], [-0.5], [[(ids[0], -0.5), (5, float("-inf"))]])
    rest = logprob_row(ids[1:], [-1.0] * len(ids[1:]), [[(token, -1.0), (5, -3.0)] for token in ids[1:]])
    return [Step("", ids[:1], None, RowLogprobs(**row)), Step("é!", ids[1:], Length(3), RowLogprobs(**rest))]


async def test_logprobs_of_whole_and_half_characters() -> None:
    async with serve(logprob_script) as served:
        response = await served.post(PATH, asked(logprobs=True, top_logprobs=2))
        streamed = await frames(served, logprobs=True, top_logprobs=2)
    content = response.json()["choices"][0]["logprobs"]["content"]
    assert bytes(byte for token in content for byte in token["bytes"]).decode() == "é!"
    assert [len(token["top_logprobs"]) for token in content] == [2] * len(content)
    assert content[0]["logprob"] == -0.5
    assert content[0]["top_logprobs"][1]["logprob"] == -9999.0
    assert content[-1]["token"] == "!"
    # In a stream no token is lost whose text is held back.
    choices = [orjson.loads(frame)["choices"][0] for frame in streamed[:-1]]
    assert [token for choice in choices if choice["logprobs"] for token in choice["logprobs"]["content"]] == content


@pytest.mark.parametrize(
    ("messages", "prompt"),
    [
        (USER, CHATML_HI),
        ([{"role": "user", "content": [{"type": "text", "text": "Hi"}]}], CHATML_HI),
        (
            [{"role": "developer", "content": "D"}, *USER],
            "<|im_start|>system\nD<|im_end|>\n" + CHATML_HI,
        ),
        (
            [*USER, {"role": "assistant", "content": "Yo", "refusal": None, "tool_calls": None}, *USER],
            "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nYo<|im_end|>\n" + CHATML_HI,
        ),
        (
            [{"role": "function", "name": "f", "content": "3"}, *USER],
            "<|im_start|>tool\n3<|im_end|>\n" + CHATML_HI,
        ),
    ],
)
async def test_messages_become_a_prompt(messages: Sequence[object], prompt: str) -> None:
    async with serve() as served:
        assert await CHAT.prompt(served, messages=messages) == prompt


async def test_going_on_with_the_last_message() -> None:
    messages = [*USER, {"role": "assistant", "content": "The capital"}]
    async with serve() as served:
        prompt = await CHAT.prompt(served, messages=messages, continue_final_message=True)
        assert prompt == CHATML_HI + "The capital"
        prompt = await CHAT.prompt(served, add_generation_prompt=False)
        assert prompt == "<|im_start|>user\nHi<|im_end|>\n"


async def test_every_sampling_field_arrives() -> None:
    async with serve() as served:
        params = await CHAT.params(
            served,
            max_completion_tokens=9,
            min_tokens=2,
            temperature=0.5,
            top_p=0.9,
            top_k=5,
            min_p=0.1,
            frequency_penalty=0.2,
            presence_penalty=0.3,
            repetition_penalty=1.1,
            stop="END",
            stop_token_ids=[3],
            ignore_eos=True,
            skip_special_tokens=False,
            spaces_between_special_tokens=False,
            no_stop_trim=True,
            logit_bias={"7": 1, "8": -1.5},
            seed=42,
        )
    assert params == SamplingParams(
        max_new_tokens=9,
        min_new_tokens=2,
        temperature=0.5,
        top_p=0.9,
        top_k=5,
        min_p=0.1,
        frequency_penalty=0.2,
        presence_penalty=0.3,
        repetition_penalty=1.1,
        stop=["END"],
        stop_token_ids=[3],
        ignore_eos=True,
        skip_special_tokens=False,
        spaces_between_special_tokens=False,
        no_stop_trim=True,
        logit_bias={7: 1.0, 8: -1.5},
        sampling_seed=42,
    )


async def test_length_is_the_rest_of_the_context() -> None:
    async with serve() as served:
        params = await CHAT.params(served)
        assert params.max_new_tokens == CONTEXT_LEN - len(small("byte_level").encode(CHATML_HI))
        assert (await CHAT.params(served, max_tokens=5)).max_new_tokens == 5
        assert (await CHAT.params(served, max_tokens=5, max_completion_tokens=5)).max_new_tokens == 5


async def test_null_is_the_default_of_every_field() -> None:
    fields = "temperature top_p max_tokens n stop logit_bias stream stream_options tools tool_choice response_format"
    async with serve() as served:
        params = await CHAT.params(served, **dict.fromkeys(fields.split()), seed=1)
        assert params == await CHAT.params(served, seed=1)


async def test_the_models_own_defaults() -> None:
    config = {"temperature": 0.6, "top_k": 20, "repetition_penalty": 1.05, "top_p": None, "do_sample": True}
    options = AppOptions(serving=ServingOptions(defaults=SamplingDefaults.choose("model", config)))
    async with serve(options=options) as served:
        params = await CHAT.params(served)
        assert (params.temperature, params.top_k, params.repetition_penalty) == (0.6, 20, 1.05)
        assert params.top_p == 1.0
        assert (await CHAT.params(served, temperature=0.0)).temperature == 0.0


@pytest.mark.parametrize(
    ("source", "config", "expected"),
    [
        ("openai", {"temperature": 0.6}, SamplingDefaults()),
        ("model", {}, SamplingDefaults()),
        ("model", {"top_k": 0}, SamplingDefaults()),
        ("model", {"min_p": 0.1}, SamplingDefaults({**USUAL, "min_p": 0.1})),
        ("model", {"do_sample": False, "temperature": 0.7}, SamplingDefaults({**USUAL, "temperature": 0.0})),
    ],
)
def test_where_defaults_come_from(source: Any, config: dict[str, Any], expected: SamplingDefaults) -> None:
    assert SamplingDefaults.choose(source, config) == expected


async def test_seeds_of_choices_differ_and_repeat() -> None:
    async with serve() as served:
        for _ in range(2):
            await served.post(PATH, asked(n=2, seed=5))
        seeds = [request.sampling_params.sampling_seed for request in served.engine.requests]
    assert seeds == [5, 6, 5, 6]


@pytest.mark.parametrize("key", ["extra_key", "cache_salt"])
async def test_cache_namespaces_arrive(key: str) -> None:
    async with serve() as served:
        await served.post(PATH, asked())
        await served.post(PATH, asked(**{key: "tenant"}))
        open_to_all, own = (request.extra_key for request in served.engine.requests)
        refused = await served.post(PATH, asked(**{key: ""}))
    assert open_to_all == ""
    assert "tenant" in own
    assert refused.status_code == (400 if key == "cache_salt" else 200)


async def test_tools_are_kept_from_a_model_that_may_not_use_them() -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    async with serve() as served:
        assert await CHAT.prompt(served, tools=tools, tool_choice="none") == CHATML_HI


async def test_a_server_without_a_tokenizer_cannot_chat() -> None:
    async with serve(with_tokenizer=False) as served:
        response = await served.post(PATH, asked())
    assert response.status_code == 400
    assert "tokenizer" in response.json()["error"]["message"]


@pytest.mark.promise(36, 49)
async def test_a_template_that_works_long_for_a_short_text_leaves_the_event_loop() -> None:
    """Its conversation is short, so it would be rendered at once; the loop goes on, and its answer is a 400."""
    loops = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
    # A template is tried at the start, on another message than this.
    template = "{% if messages[0].content == 'Go' %}" + loops + "{% endif %}fine"
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async with serve(template=template) as served:
        counting = asyncio.create_task(count())
        response = await served.post(PATH, {"messages": [{"role": "user", "content": "Go"}]})
        counting.cancel()
    assert response.status_code == 400
    assert "too much" in response.text
    assert turns > 20


async def test_a_template_that_works_a_little_longer_is_rendered_all_the_same() -> None:
    async with serve(template="{% for i in range(20000) %}{% endfor %}{{ messages[0].content }}") as served:
        assert await CHAT.prompt(served) == "Hi"
