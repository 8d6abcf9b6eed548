"""/api/*, beside what all dialects do (test_dialects.py): golden lines, the model, suffixes, options that are named."""

from dataclasses import replace

import pytest

from fixtures.dialects import CALL, OLLAMA_CHAT, OLLAMA_GENERATE, OPTIONS, TEMPLATE, Dialect, says
from fixtures.scripted_engine import CONTEXT_LEN, Step, Stop, endless, logprob_row, serve, small
from mysglang.srt.configs.architectures import Task
from mysglang.srt.configs.pooling_config import PoolingConfig
from mysglang.srt.messages.outputs import RowLogprobs
from mysglang.srt.messages.packing import unpack_ids
from mysglang.srt.parser import completion_template
from mysglang.srt.parser.completion_template import CompletionTemplate

GENERATE = OLLAMA_GENERATE.path
BOTH = pytest.mark.parametrize("dialect", [OLLAMA_CHAT, OLLAMA_GENERATE], ids=lambda dialect: dialect.path)
whole, streamed = OLLAMA_CHAT.ask, OLLAMA_CHAT.stream


async def test_the_lines_of_a_chat() -> None:
    async with serve() as served:
        # Without a word of it in the request, this dialect streams.
        response = await served.post(OLLAMA_CHAT.path, OLLAMA_CHAT.asked())
        first, second, last = OLLAMA_CHAT.read(response.content)
    assert OLLAMA_CHAT.nameless(first) == {
        "model": "tiny",
        "message": {"role": "assistant", "content": "Hello"},
        "done": False,
    }
    assert OLLAMA_CHAT.nameless(second) == {
        "model": "tiny",
        "message": {"role": "assistant", "content": " world"},
        "done": False,
    }
    assert OLLAMA_CHAT.nameless(last) == {
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
        *lines, last = await OLLAMA_GENERATE.stream(served)
        answer = await OLLAMA_GENERATE.ask(served)
    assert [line["response"] for line in lines] == ["Hello", " world"]
    assert (last["response"], last["done"], answer["response"], answer["done"]) == ("", True, "Hello world", True)


async def test_thoughts_and_calls() -> None:
    async with serve(says(CALL), OPTIONS, template=TEMPLATE) as served:
        message = OLLAMA_CHAT.nameless(await whole(served, **OLLAMA_CHAT.weather))["message"]
        thought = await OLLAMA_GENERATE.ask(served)
    assert message == {
        "role": "assistant",
        "content": "So:",
        "thinking": "Hm.",
        "tool_calls": [{"function": {"index": 0, "name": "weather", "arguments": {"city": "Köln"}}}],
    }
    assert thought["thinking"] == "Hm."


async def test_log_probabilities() -> None:
    row = RowLogprobs(**logprob_row([7, 2], [-0.5, -1.0], [[(7, -0.5)], [(2, -1.0)]]))
    script = [Step("Hello", [7, 2], Stop(2), row)]
    async with serve(lambda _: script) as served:
        answer = await whole(served, logprobs=True, top_logprobs=1)
        first, _ = await streamed(served, logprobs=True, top_logprobs=1)
    assert [token["logprob"] for token in answer["logprobs"]] == [-0.5, -1.0]
    assert answer["logprobs"][0]["top_logprobs"][0]["logprob"] == -0.5
    assert first["logprobs"] == answer["logprobs"]


@BOTH
async def test_nothing_asked_is_only_loading(dialect: Dialect) -> None:
    async with serve(endless) as served:
        answer = await dialect.ask(served, **({"messages": []} if dialect is OLLAMA_CHAT else {"prompt": ""}))
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


@pytest.mark.parametrize(("task", "capabilities"), [("embed", ["embedding"]), ("classify", [])])
async def test_a_model_of_vectors_or_labels_completes_nothing(task: Task, capabilities: list[str]) -> None:
    pooling = PoolingConfig(task=task, mode="cls", width=4, normalize=True)
    async with serve(options=replace(OPTIONS, pooling=pooling), template=TEMPLATE) as served:
        shown = (await served.post("/api/show", {"model": "tiny"})).json()
    assert shown["capabilities"] == capabilities


async def test_a_model_that_generates_makes_no_vectors() -> None:
    async with serve(endless) as served:
        for path, fields in (("/api/embed", {"input": ["a"]}), ("/api/embeddings", {"prompt": "a"})):
            response = await served.post(path, {"model": "tiny:latest", **fields})
            assert response.status_code == 400
            assert "generates text" in response.json()["error"]
        assert not served.engine.requests


@pytest.mark.parametrize(("path", "field"), [("/api/embed", "input"), ("/api/embeddings", "prompt")])
async def test_a_vector_does_not_depend_on_how_to_sample(path: str, field: str) -> None:
    async with serve(endless) as served:

        async def answer(**options: object) -> tuple[str, str | None]:
            response = await served.post(path, {"model": "tiny", field: "a", "options": options})
            return response.json()["error"], response.headers.get("x-ignored-fields")

        taken = "The served model generates text"
        unset, unset_ignored = await answer(temperature=None, num_ctx=None, mirostat=None, num_thread=None)
        some, some_ignored = await answer(temperature=0.5, mirostat=1, num_ctx=CONTEXT_LEN, num_thread=4)
        far, _ = await answer(num_ctx=CONTEXT_LEN + 1)
    assert unset.startswith(taken) and unset_ignored is None
    assert some.startswith(taken) and some_ignored == "temperature, mirostat, num_thread"
    assert far == f"options.num_ctx: the model is served with a context of {CONTEXT_LEN} tokens, got {CONTEXT_LEN + 1}."


@pytest.mark.parametrize("prompt", ["def f(", ""])
async def test_what_stands_before_a_suffix(monkeypatch: pytest.MonkeyPatch, prompt: str) -> None:
    """Asked as the model was trained to be, without the chat template."""
    marks = ("<s>", "<|turn|>", "<think>")
    family = CompletionTemplate("<s>{prompt}<|turn|>{suffix}<think>", marks)
    monkeypatch.setattr(completion_template, "COMPLETION_TEMPLATES", {"ours": family})
    async with serve(says("a, b"), OPTIONS, template=TEMPLATE) as served:
        response = await served.post(GENERATE, OLLAMA_GENERATE.asked(prompt=prompt, suffix="): pass", stream=False))
        [request] = served.engine.requests
    assert response.json()["response"] == "a, b"
    assert unpack_ids(request.input_ids).tolist() == small("byte_level").encode(f"<s>{prompt}<|turn|>): pass<think>")


@BOTH
async def test_options_that_change_little_are_taken_and_named(
    dialect: Dialect, caplog: pytest.LogCaptureFixture
) -> None:
    options = {"repeat_last_n": 64, "num_thread": 8, "num_gpu": 99, "use_mmap": False, "num_keep": 5, "numa": True}
    async with serve() as served:
        response = await served.post(dialect.path, dialect.asked(stream=False, options=options))
    assert response.status_code == 200, response.text
    told = response.headers["x-ignored-fields"]
    assert all(name in told and name in caplog.text for name in options)
    assert len(served.engine.requests) == 1
