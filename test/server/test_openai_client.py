"""OpenAI's client against a real server with the embedded model: what its users do on their first day."""

import asyncio
import math
from collections.abc import AsyncIterator, Iterator
from pydoc_data.topics import topics
from typing import Any

import httpx
import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam

from fixtures.oracle import assert_quiet
from fixtures.server_process import ServerProcess

MODEL = "default"
FRANCE: list[ChatCompletionMessageParam] = [{"role": "user", "content": "What is the capital of France?"}]
COUNT: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Count from 1 to 10."}]
STORY: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Tell me a sad story about a dinosaur."}]
WARM: dict[str, Any] = {"temperature": 1.5, "max_tokens": 24, "extra_body": {"ignore_eos": True}}
"""Two draws of a story about an unknown animal are hardly ever the same; no draw hangs on a near tie."""


@pytest.fixture
def client(tiny_server: ServerProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(api_key="none", base_url=f"{tiny_server.url}/v1", max_retries=0) as client:
        yield client
    assert_quiet(tiny_server.url)


@pytest.fixture
async def aclient(tiny_server: ServerProcess) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(api_key="none", base_url=f"{tiny_server.url}/v1", max_retries=0) as client:
        yield client
    await asyncio.to_thread(assert_quiet, tiny_server.url)


class TestChat:
    def test_an_answer(self, client: openai.OpenAI) -> None:
        answer = client.chat.completions.create(model=MODEL, messages=FRANCE)
        (choice,) = answer.choices
        assert "Paris" in (choice.message.content or "")
        assert choice.finish_reason == "stop"
        assert answer.model == "mysglang-tiny"
        assert answer.usage is not None
        assert answer.usage.prompt_tokens > 5
        assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens

    def test_a_conversation(self, client: openai.OpenAI) -> None:
        messages: list[ChatCompletionMessageParam] = [{"role": "user", "content": "My name is Ada."}]
        first = client.chat.completions.create(model=MODEL, messages=messages).choices[0].message
        messages += [first.model_dump(), {"role": "user", "content": "What is my name?"}]  # type: ignore[list-item]
        assert "Ada" in (
            client.chat.completions.create(model=MODEL, messages=messages).choices[0].message.content or ""
        )

    def test_a_long_system_prompt_as_agents_send_it(self, client: openai.OpenAI) -> None:
        rules = "\n\n".join(topics[name][:1_500] for name in sorted(topics))[:18_000]
        answer = client.chat.completions.create(model=MODEL, messages=[{"role": "system", "content": rules}, *FRANCE])
        assert answer.usage is not None and answer.usage.prompt_tokens > 5_000
        assert "Paris" in (answer.choices[0].message.content or "")

    def test_length(self, client: openai.OpenAI) -> None:
        answer = client.chat.completions.create(model=MODEL, messages=COUNT, max_tokens=3)
        assert answer.choices[0].finish_reason == "length"
        assert answer.usage is not None
        assert answer.usage.completion_tokens == 3

    @pytest.mark.parametrize("stream", [False, True])
    def test_a_stop_string(self, client: openai.OpenAI, stream: bool) -> None:
        whole = client.chat.completions.create(model=MODEL, messages=COUNT).choices[0].message.content or ""
        stop = "5"
        assert stop in whole
        if stream:
            chunks = list(client.chat.completions.create(model=MODEL, messages=COUNT, stop=stop, stream=True))
            text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
            last: Any = chunks[-1].choices[0]
        else:
            last = client.chat.completions.create(model=MODEL, messages=COUNT, stop=[stop, "never"]).choices[0]
            text = last.message.content
        assert text == whole[: whole.index(stop)]
        assert last.finish_reason == "stop"
        assert last.model_extra["matched_stop"] == stop

    def test_two_answers_and_their_seeds(self, client: openai.OpenAI) -> None:
        def draw(seed: int | None) -> list[str]:
            answer = client.chat.completions.create(model=MODEL, messages=STORY, n=2, seed=seed, **WARM)
            assert [choice.index for choice in answer.choices] == [0, 1]
            assert answer.usage is not None
            assert answer.usage.completion_tokens == 2 * 24
            return [choice.message.content or "" for choice in answer.choices]

        first = draw(1)
        assert first[0] != first[1]
        assert draw(1) == first
        assert draw(9) != first
        assert draw(None) != draw(None)

    def test_two_answers_in_one_stream(self, client: openai.OpenAI) -> None:
        whole = client.chat.completions.create(model=MODEL, messages=STORY, n=2, seed=3, **WARM)
        texts, reasons = ["", ""], [0, 0]
        for chunk in client.chat.completions.create(model=MODEL, messages=STORY, n=2, seed=3, stream=True, **WARM):
            (choice,) = chunk.choices
            texts[choice.index] += choice.delta.content or ""
            reasons[choice.index] += choice.finish_reason is not None
        assert texts == [choice.message.content for choice in whole.choices]
        assert reasons == [1, 1]

    def test_logprobs(self, client: openai.OpenAI) -> None:
        answer = client.chat.completions.create(model=MODEL, messages=FRANCE, logprobs=True, top_logprobs=5)
        (choice,) = answer.choices
        assert choice.logprobs is not None
        content = choice.logprobs.content or []
        assert answer.usage is not None
        assert len(content) == answer.usage.completion_tokens
        for token in content:
            # Greedy: what was said is the likeliest.
            best, *others = token.top_logprobs
            assert len(others) == 4
            assert (best.token, best.logprob) == (token.token, token.logprob)
            assert all(other.logprob <= best.logprob for other in others)
            assert sum(math.exp(one.logprob) for one in token.top_logprobs) <= 1.0001
        said = bytes(byte for token in content for byte in token.bytes or [])
        assert said.decode().startswith(choice.message.content or "never")

    def test_logprobs_of_a_stream(self, client: openai.OpenAI) -> None:
        whole = client.chat.completions.create(model=MODEL, messages=FRANCE, logprobs=True).choices[0].logprobs
        tokens = [
            token.token
            for chunk in client.chat.completions.create(model=MODEL, messages=FRANCE, logprobs=True, stream=True)
            if chunk.choices[0].logprobs
            for token in chunk.choices[0].logprobs.content or []
        ]
        assert whole is not None
        assert tokens == [token.token for token in whole.content or []]


class TestCompletions:
    PROMPT = "The capital of France is"

    def test_a_text_and_its_stream(self, client: openai.OpenAI) -> None:
        whole = client.completions.create(model=MODEL, prompt=self.PROMPT, max_tokens=8, temperature=0)
        stream = client.completions.create(model=MODEL, prompt=self.PROMPT, max_tokens=8, temperature=0, stream=True)
        chunks = list(stream)
        assert "".join(chunk.choices[0].text for chunk in chunks) == whole.choices[0].text != ""
        assert chunks[-1].choices[0].finish_reason == whole.choices[0].finish_reason

    async def test_several_prompts(self, aclient: openai.AsyncOpenAI) -> None:
        prompts = [self.PROMPT, "One, two,", "Hello"]
        options: Any = {"model": MODEL, "max_tokens": 6, "temperature": 0}
        together = await aclient.completions.create(prompt=prompts, n=2, **options)
        alone = [(await aclient.completions.create(prompt=prompt, **options)).choices[0].text for prompt in prompts]
        assert [choice.text for choice in together.choices] == [text for text in alone for _ in range(2)]
        assert [choice.index for choice in together.choices] == list(range(6))

    def test_ids_for_a_prompt(self, client: openai.OpenAI, tiny_server: ServerProcess) -> None:
        ids = httpx.post(f"{tiny_server.url}/tokenize", json={"prompt": self.PROMPT}).json()["tokens"]
        options: Any = {"model": MODEL, "max_tokens": 6, "temperature": 0}
        by_ids = client.completions.create(prompt=ids, **options)
        by_text = client.completions.create(prompt=self.PROMPT, **options)
        assert by_ids.choices[0].text == by_text.choices[0].text
        back = httpx.post(f"{tiny_server.url}/detokenize", json={"tokens": ids}).json()["text"]
        assert back == self.PROMPT

    def test_scores_of_the_echoed_prompt(self, client: openai.OpenAI) -> None:
        answer = client.completions.create(
            model=MODEL, prompt=self.PROMPT, max_tokens=4, temperature=0, echo=True, logprobs=2
        )
        (choice,) = answer.choices
        found = choice.logprobs
        assert found is not None
        assert choice.text.startswith(self.PROMPT)
        assert answer.usage is not None
        columns = (found.tokens, found.token_logprobs, found.top_logprobs, found.text_offset)
        assert all(column and len(column) == answer.usage.total_tokens for column in columns)
        assert found.tokens is not None
        assert found.text_offset is not None
        assert found.token_logprobs is not None
        assert found.token_logprobs[0] is None
        assert all(value is not None and value <= 0 for value in found.token_logprobs[1:])
        for token, offset in zip(found.tokens, found.text_offset, strict=True):
            assert choice.text.startswith(token, offset) or token.startswith(("<|", "bytes:"))

    @pytest.mark.promise(25)
    def test_scores_do_not_depend_on_what_is_cached(self, client: openai.OpenAI) -> None:
        options: Any = {"model": MODEL, "prompt": self.PROMPT, "max_tokens": 0, "echo": True, "logprobs": 1}
        first, second = (client.completions.create(**options).choices[0].logprobs for _ in range(2))
        assert first is not None
        assert second is not None
        assert (first.token_logprobs or [])[1:] == pytest.approx((second.token_logprobs or [])[1:], abs=1e-4)

    def test_seeds(self, client: openai.OpenAI) -> None:
        def draw(seed: int) -> str:
            answer = client.completions.create(
                model=MODEL, prompt="Once upon a time there was a unicorn named", seed=seed, **WARM
            )
            return str(answer.choices[0].text)

        assert draw(1) == draw(1) != draw(2)


class TestErrors:
    def test_they_name_the_field_and_the_limit(self, client: openai.OpenAI) -> None:
        context = client.models.retrieve(MODEL).model_extra["max_model_len"]  # type: ignore[index]
        prompt = [5] * context
        for stream in (False, True):
            with pytest.raises(openai.BadRequestError, match=f"context length.*{context}") as error:
                client.completions.create(model=MODEL, prompt=prompt, max_tokens=5, stream=stream)
            assert error.value.param == "prompt"
            assert error.value.request_id
        # What does not fit after the prompt is cut to what does.
        assert client.chat.completions.create(model=MODEL, messages=FRANCE, max_tokens=context).choices
        with pytest.raises(openai.BadRequestError, match="temperature"):
            client.completions.create(model=MODEL, prompt="a", temperature=-1)
        raw = client.chat.completions.with_raw_response.create(model=MODEL, messages=FRANCE, service_tier="priority")
        assert raw.headers["x-ignored-fields"] == "service_tier"

    def test_an_unknown_model(self, client: openai.OpenAI) -> None:
        assert [model.id for model in client.models.list()] == ["mysglang-tiny"]
        assert client.chat.completions.create(model="gpt-4o", messages=FRANCE).model == "mysglang-tiny"
        with pytest.raises(openai.NotFoundError, match="mysglang-tiny"):
            client.chat.completions.create(model="mysglang-tiny:adapter", messages=FRANCE)
