"""/api/*: golden lines, streams that say what the whole answer says, however they are cut, and what is refused."""

import re
from typing import Any

import orjson
import pytest

from fixtures.dialect_chat import CALL, OFFERED, OPTIONS, PARAMETERS, TEMPLATE, says
from fixtures.scripted_engine import CONTEXT_LEN, Length, Served, Step, Stop, endless, logprob_row, serve, small
from mysglang.srt.entrypoints.ollama.answer import joined
from mysglang.srt.messages.codec import unpack_ids
from mysglang.srt.messages.outputs import Abort, FinishReason, RowLogprobs
from mysglang.srt.parser import completion_template
from mysglang.srt.parser.completion_template import CompletionTemplate
from mysglang.srt.sampling.drawing import TOP_K_ALL
from mysglang.srt.sampling.sampling_params import SamplingParams

CHAT, GENERATE = "/api/chat", "/api/generate"
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": PARAMETERS}}
TIMES = {"total_duration", "load_duration", "prompt_eval_duration", "eval_duration"}


def asked(path: str, **fields: Any) -> dict[str, Any]:
    what = {"messages": [{"role": "user", "content": "Hi"}]} if path == CHAT else {"prompt": "Hi"}
    return {"model": "tiny"} | what | fields


async def whole(served: Served, path: str = CHAT, **fields: Any) -> dict[str, Any]:
    response = await served.post(path, asked(path, stream=False, **fields))
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


async def streamed(served: Served, path: str = CHAT, **fields: Any) -> list[dict[str, Any]]:
    response = await served.post(path, asked(path, **fields))
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "application/x-ndjson"
    *lines, rest = response.content.split(b"\n")
    assert rest == b""
    return [orjson.loads(line) for line in lines]


def timeless(answer: dict[str, Any]) -> dict[str, Any]:
    for call in answer.get("message", {}).get("tool_calls", []):
        assert call.pop("id").startswith("call_")
    return {name: value for name, value in answer.items() if name not in TIMES | {"created_at"}}


async def test_the_lines_of_a_chat() -> None:
    async with serve() as served:
        first, second, last = await streamed(served)
    assert timeless(first) == {"model": "tiny", "message": {"role": "assistant", "content": "Hello"}, "done": False}
    assert timeless(second) == {"model": "tiny", "message": {"role": "assistant", "content": " world"}, "done": False}
    assert timeless(last) == {
        "model": "tiny",
        "message": {"role": "assistant", "content": ""},
        "done": True,
        "done_reason": "stop",
        "prompt_eval_count": last["prompt_eval_count"],
        "eval_count": 4,
    }
    assert 0 < last["prompt_eval_duration"] <= last["total_duration"]
    assert last["prompt_eval_duration"] + last["eval_duration"] == last["total_duration"]


async def test_the_lines_of_a_prompt() -> None:
    async with serve() as served:
        *lines, last = await streamed(served, GENERATE)
        answer = await whole(served, GENERATE)
    assert [line["response"] for line in lines] == ["Hello", " world"]
    assert (last["response"], last["done"], answer["response"], answer["done"]) == ("", True, "Hello world", True)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
@pytest.mark.parametrize("finish", [Stop(2), Stop("END"), Length(9)], ids=["eos", "stop", "length"])
@pytest.mark.parametrize("text", ["", "Hello.", CALL, CALL + CALL.partition("So: ")[2], CALL[:-30], "<think>Only this"])
async def test_a_stream_says_what_the_answer_says(text: str, finish: FinishReason, size: int) -> None:
    async with serve(says(text, size, finish), OPTIONS, template=TEMPLATE) as served:
        answer = timeless(await whole(served, tools=[WEATHER]))
        *lines, last = await streamed(served, tools=[WEATHER])
    message = joined([line["message"] for line in lines])
    assert timeless({**last, "message": message}) == answer
    assert not any(line["done"] for line in lines)


async def test_thoughts_and_calls() -> None:
    async with serve(says(CALL), OPTIONS, template=TEMPLATE) as served:
        message = timeless(await whole(served, tools=[WEATHER]))["message"]
        thought = await whole(served, GENERATE)
    assert message == {
        "role": "assistant",
        "content": "So:",
        "thinking": "Hm.",
        "tool_calls": [{"function": {"index": 0, "name": "weather", "arguments": {"city": "Köln"}}}],
    }
    assert thought["thinking"] == "Hm."


async def test_half_a_call_is_told_as_it_is() -> None:
    half = '<tool_call>{"name": "weather", "arguments": {"city": "Kö'
    async with serve(says(half, 3, Length(9)), OPTIONS, template=TEMPLATE) as served:
        (call,) = (await whole(served, tools=[WEATHER]))["message"]["tool_calls"]
    assert call["function"]["arguments"] == {"INVALID_JSON": '{"city": "Kö'}


async def prompt_and_params(path: str = CHAT, **fields: Any) -> tuple[str, SamplingParams]:
    async with serve(says("Yes."), OPTIONS, template=TEMPLATE) as served:
        await whole(served, path, **fields)
        (request,) = served.engine.requests
        coder = served.front.tokenizer_manager.input_tokenizer
        prompt = await coder.decode(unpack_ids(request.input_ids).tolist(), skip_special_tokens=False)
    return prompt, request.sampling_params


async def test_the_conversation_reaches_the_template() -> None:
    messages = [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "a"},
        {
            "role": "assistant",
            "content": "c",
            "thinking": "t",
            "tool_calls": [{"function": {"name": "weather", "arguments": {"city": "x"}}}],
        },
        {"role": "tool", "content": "d", "tool_name": "weather"},
    ]
    prompt, _ = await prompt_and_params(messages=messages, tools=[WEATHER])
    expected = '[system]s/[user]a/[assistant]c<think>t</think><tool_call>weather {"city": "x"}/[tool]d/[assistant]'
    assert prompt == f"{OFFERED}{expected}"


@pytest.mark.parametrize(
    ("path", "fields", "expected"),
    [
        (GENERATE, {"system": "s"}, "[system]s/[user]Hi/[assistant]"),
        (GENERATE, {"raw": True}, "Hi"),
        (CHAT, {"messages": [{"role": "assistant", "content": "Well,"}]}, "[assistant]Well,"),
        (CHAT, {"think": True}, "[user]Hi/[assistant]<think>\n"),
        (CHAT, {"think": "high"}, "[user]Hi/[assistant]<think>\n"),
        (CHAT, {"think": False}, "[user]Hi/[assistant]"),
        (GENERATE, {"think": True}, "[user]Hi/[assistant]<think>\n"),
    ],
)
async def test_prompts(path: str, fields: dict[str, Any], expected: str) -> None:
    assert (await prompt_and_params(path, **fields))[0] == expected


async def test_options() -> None:
    options = {"temperature": 0.5, "top_p": 0.9, "top_k": 0, "min_p": 0.1, "seed": 5, "num_predict": 9, "stop": "x"}
    penalties = {"repeat_penalty": 1.1, "presence_penalty": 0.2, "frequency_penalty": 0.3}
    for path in (CHAT, GENERATE):
        for raw in [{}] if path == CHAT else [{}, {"raw": True}]:
            _, params = await prompt_and_params(path, options=options | penalties, keep_alive="5m", **raw)
            assert (params.temperature, params.top_p, params.top_k, params.min_p) == (0.5, 0.9, TOP_K_ALL, 0.1)
            assert (params.sampling_seed, params.max_new_tokens, list(params.stop)) == (5, 9, ["x"])
            found = (params.repetition_penalty, params.presence_penalty, params.frequency_penalty)
            assert found == (1.1, 0.2, 0.3)


async def test_a_format_is_a_grammar() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    for form, expected in [(schema, schema), ("json", {"type": "object"})]:
        _, params = await prompt_and_params(format=form)
        assert orjson.loads(params.json_schema or "") == expected
    _, params = await prompt_and_params(format="")
    assert params.json_schema is None


async def test_log_probabilities() -> None:
    row = RowLogprobs(**logprob_row([7, 2], [-0.5, -1.0], [[(7, -0.5)], [(2, -1.0)]]))
    script = [Step("Hello", [7, 2], Stop(2), row)]
    async with serve(lambda _: script) as served:
        answer = await whole(served, logprobs=True, top_logprobs=1)
        first, _ = await streamed(served, logprobs=True, top_logprobs=1)
    assert [token["logprob"] for token in answer["logprobs"]] == [-0.5, -1.0]
    assert answer["logprobs"][0]["top_logprobs"][0]["logprob"] == -0.5
    assert first["logprobs"] == answer["logprobs"]


@pytest.mark.parametrize("path", [CHAT, GENERATE])
async def test_nothing_asked_is_only_loading(path: str) -> None:
    async with serve(endless) as served:
        answer = await whole(served, path, **({"messages": []} if path == CHAT else {"prompt": ""}))
        assert not served.engine.requests
    assert (answer["done"], answer["done_reason"]) == (True, "load")


async def test_the_model() -> None:
    async with serve(options=OPTIONS, template=TEMPLATE) as served:
        tags = (await served.client.get("/api/tags")).json()
        shown = (await served.post("/api/show", {"model": "tiny:latest"})).json()
        unknown = await served.post("/api/show", {"model": "tiny:mine"})
        (running,) = (await served.client.get("/api/ps")).json()["models"]
        version = (await served.client.get("/api/version")).json()
        await whole(served, model="tiny:latest")
    assert [model["name"] for model in tags["models"]] == ["tiny"] == [running["name"]]
    assert (running["context_length"], running["size_vram"]) == (CONTEXT_LEN, 0)
    assert shown["capabilities"] == ["completion", "tools", "thinking"]
    assert shown["model_info"]["general.context_length"] == CONTEXT_LEN
    assert shown["template"] == TEMPLATE
    assert unknown.status_code == 404
    assert "'tiny:mine' does not exist" in unknown.json()["error"]
    assert version["version"]


async def test_a_model_that_generates_makes_no_vectors() -> None:
    async with serve(endless) as served:
        for path, fields in (("/api/embed", {"input": ["a"]}), ("/api/embeddings", {"prompt": "a"})):
            response = await served.post(path, {"model": "tiny:latest", **fields})
            assert response.status_code == 400
            assert "generates text" in response.json()["error"]
        assert not served.engine.requests


@pytest.mark.parametrize(
    ("path", "fields", "name"),
    [
        (CHAT, {"options": {"mirostat": 2}}, "mirostat"),
        (CHAT, {"options": {"typical_p": 0.5}}, "typical_p"),
        (CHAT, {"options": {"num_ctx": CONTEXT_LEN + 1}}, rf"num_ctx.*{CONTEXT_LEN}"),
        (CHAT, {"options": {"num_predict": 0}}, r"options\.num_predict"),
        (CHAT, {"options": {"temperature": -1}}, "temperature"),
        (CHAT, {"options": {"repeat_penalty": -1}}, "repeat_penalty"),
        (CHAT, {"keep_alive": 0}, "keep_alive"),
        (CHAT, {"keep_alive": "0s"}, "keep_alive"),
        (CHAT, {"format": "yaml"}, "format"),
        (CHAT, {"messages": [{"role": "user", "images": ["x"]}]}, "images"),
        (CHAT, {"messages": [{"role": "robot"}]}, r"messages\.0\.role"),
        (CHAT, {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f"}}]}]}, "messages"),
        (CHAT, {"top_logprobs": 2}, "top_logprobs"),
        (GENERATE, {"suffix": "x"}, "suffix"),
        (GENERATE, {"context": [1, 2]}, "context"),
        (GENERATE, {"raw": True, "system": "s"}, "system"),
        (GENERATE, {"suffix": "x", "system": "s"}, "system: not with a suffix"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_refused_by_name(path: str, fields: dict[str, Any], name: str, stream: bool) -> None:
    async with serve(endless, OPTIONS, template=TEMPLATE) as served:
        response = await served.post(path, asked(path, stream=stream, **fields))
        assert not served.engine.requests
    assert response.status_code == 400
    assert re.search(name, response.json()["error"]), response.text


@pytest.mark.parametrize("prompt", ["def f(", ""])
async def test_what_stands_before_a_suffix(monkeypatch: pytest.MonkeyPatch, prompt: str) -> None:
    """Asked as the model was trained to be, without the chat template."""
    marks = ("<s>", "<|turn|>", "<think>")
    family = CompletionTemplate("<s>{prompt}<|turn|>{suffix}<think>", marks)
    monkeypatch.setattr(completion_template, "COMPLETION_TEMPLATES", {"ours": family})
    async with serve(says("a, b"), OPTIONS, template=TEMPLATE) as served:
        response = await served.post(GENERATE, asked(GENERATE, prompt=prompt, suffix="): pass", stream=False))
        [request] = served.engine.requests
    assert response.json()["response"] == "a, b"
    assert unpack_ids(request.input_ids).tolist() == small("byte_level").encode(f"<s>{prompt}<|turn|>): pass<think>")


@pytest.mark.parametrize(
    ("abort", "status"), [(Abort("no memory", status=500), 500), (Abort("Aborted by the client."), 499)]
)
async def test_an_answer_that_fails_is_no_success(abort: Abort, status: int) -> None:
    script = [Step("Hello"), Step("", [], abort)]
    async with serve(lambda _: script) as served:
        response = await served.post(CHAT, asked(CHAT, stream=False))
        *before, last = await streamed(served)
    assert response.status_code == status
    assert isinstance(response.json()["error"], str)
    assert [line["done"] for line in before] == [False]
    assert last["error"] == response.json()["error"]


@pytest.mark.parametrize("path", [CHAT, GENERATE])
async def test_options_that_change_little_are_taken_and_named(path: str, caplog: pytest.LogCaptureFixture) -> None:
    options = {"repeat_last_n": 64, "num_thread": 8, "num_gpu": 99, "use_mmap": False, "num_keep": 5, "numa": True}
    async with serve() as served:
        response = await served.post(path, asked(path, stream=False, options=options))
    assert response.status_code == 200, response.text
    told = response.headers["x-ignored-fields"]
    assert all(name in told and name in caplog.text for name in options)
    assert len(served.engine.requests) == 1
