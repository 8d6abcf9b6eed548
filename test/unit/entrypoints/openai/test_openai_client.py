"""OpenAI's own client against the application: it reads our answers, our streams and our errors as its own types."""

import httpx2
import openai
import pytest

from fixtures.scripted_engine import Served, Step, serve
from mysglang.srt.entrypoints.app_options import AppOptions
from mysglang.srt.messages.outputs import Abort


def client(served: Served, key: str = "k") -> openai.AsyncOpenAI:
    # The client's own HTTP library, which it brings along.
    http = httpx2.AsyncClient(transport=httpx2.ASGITransport(served.app, raise_app_exceptions=False))
    return openai.AsyncOpenAI(api_key=key, base_url="http://127.0.0.1:30000/v1", http_client=http, max_retries=0)


async def test_chat() -> None:
    async with serve() as served, client(served) as api:
        answer = await api.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "Hi"}], n=2)
    assert [choice.message.content for choice in answer.choices] == ["Hello world"] * 2
    assert answer.choices[0].finish_reason == "stop"
    assert answer.choices[0].message.tool_calls is None
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 8


async def test_chat_stream() -> None:
    async with serve() as served, client(served) as api:
        stream = await api.chat.completions.create(
            model="tiny",
            messages=[{"role": "user", "content": "Hi"}],
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = [chunk async for chunk in stream]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == "Hello world"
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert not chunks[-1].choices
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 4


async def test_completions() -> None:
    async with serve() as served, client(served) as api:
        answer = await api.completions.create(model="tiny", prompt=["a", "b"], echo=True)
        stream = await api.completions.create(model="tiny", prompt="a", stream=True)
        text = "".join([chunk.choices[0].text async for chunk in stream])
    assert [choice.text for choice in answer.choices] == ["aHello world", "bHello world"]
    assert text == "Hello world"


async def test_models() -> None:
    async with serve() as served, client(served) as api:
        assert [model.id async for model in api.models.list()] == ["tiny"]
        assert (await api.models.retrieve("tiny")).id == "tiny"
        with pytest.raises(openai.NotFoundError):
            await api.models.retrieve("org/other")


async def test_errors_are_its_own_exceptions() -> None:
    options = AppOptions(served_model_name="tiny", api_keys=("k",), strict_model_name=True)
    async with serve(options=options) as served, client(served) as api, client(served, "wrong") as stranger:
        with pytest.raises(openai.BadRequestError) as bad:
            await api.completions.create(model="tiny", prompt="a", temperature=-1)
        with pytest.raises(openai.NotFoundError, match="this server serves 'tiny'"):
            await api.completions.create(model="gpt-4o", prompt="a")
        with pytest.raises(openai.AuthenticationError):
            await stranger.models.list()
    assert bad.value.param == "temperature"
    assert bad.value.type == "BadRequestError"
    # Older versions of the client print the whole body, newer ones its message.
    for printed in (str(bad.value), bad.value.response.text):
        assert printed.count("temperature must be a finite number >= 0") == 1
    assert bad.value.request_id == bad.value.body["request_id"]  # type: ignore[index]


async def test_a_stream_that_fails_is_no_success() -> None:
    script = [Step("Hello"), Step("", [], Abort("out of memory", status=500))]
    async with serve(lambda _: script) as served, client(served) as api:
        for stream in (
            await api.completions.create(model="tiny", prompt="a", stream=True),
            await api.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "Hi"}], stream=True),
        ):
            with pytest.raises(openai.APIError, match="out of memory"):
                async for chunk in stream:
                    assert not chunk.choices[0].finish_reason
