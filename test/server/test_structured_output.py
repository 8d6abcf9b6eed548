"""Structured output through OpenAI's client and the native route, on a real server with the embedded model."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import openai
import psutil
import pytest
from openai.types.chat import ChatCompletionMessageParam

from fixtures.oracle import assert_quiet
from fixtures.patience import PATIENCE_S
from fixtures.server_process import ServerProcess
from fixtures.warm_start import WarmServer

pytest.importorskip("xgrammar")

MODEL = "default"
ASK: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Describe a person."}]
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "colour": {"enum": ["red", "green"]},
    },
    "required": ["name", "age", "colour"],
    "additionalProperties": False,
}
PERSON_FORMAT: Any = {"type": "json_schema", "json_schema": {"name": "person", "strict": True, "schema": PERSON}}
LAYOUT = ("--constrained-json-max-whitespace-cnt", "1", "--log-level", "warning", "--dtype", "float32")
"""A hot model could write whitespace for ever."""


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    """With so little memory that requests in company are retracted."""
    with WarmServer(*LAYOUT, "--max-total-tokens", "512", "--schedule-conservativeness", "0.1") as server:
        assert server.url
        yield server


@pytest.fixture
def client(server: ServerProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(api_key="none", base_url=f"{server.url}/v1", max_retries=0, timeout=PATIENCE_S) as client:
        yield client
    assert_quiet(server.url)


def assert_person(text: str | None) -> None:
    person = json.loads(text or "")
    assert person.keys() == PERSON["properties"].keys()  # type: ignore[attr-defined]
    assert isinstance(person["name"], str) and len(person["name"]) <= 12
    assert type(person["age"]) is int and 0 <= person["age"] <= 150
    assert person["colour"] in ("red", "green")


def person(client: openai.OpenAI, seed: int, **fields: Any) -> openai.types.chat.ChatCompletion:
    return client.chat.completions.create(
        model=MODEL, messages=ASK, response_format=PERSON_FORMAT, temperature=1, seed=seed, max_tokens=120, **fields
    )


def test_a_schema(client: openai.OpenAI) -> None:
    for seed in range(5):
        (choice,) = person(client, seed).choices
        assert choice.finish_reason == "stop"
        assert_person(choice.message.content)


def test_a_stream_says_the_same(client: openai.OpenAI) -> None:
    whole = person(client, 3).choices[0].message.content
    pieces = client.chat.completions.create(
        model=MODEL,
        messages=ASK,
        response_format=PERSON_FORMAT,
        temperature=1,
        seed=3,
        max_tokens=200,
        stream=True,
    )
    assert "".join(chunk.choices[0].delta.content or "" for chunk in pieces) == whole


def test_several_answers_of_one_prompt(client: openai.OpenAI) -> None:
    choices = person(client, 7, n=4).choices
    for choice in choices:
        assert_person(choice.message.content)
    assert len({choice.message.content for choice in choices}) > 1


def test_parsed_by_the_client(client: openai.OpenAI) -> None:
    from pydantic import BaseModel

    class Colour(BaseModel):
        red: int
        green: int

    answer = client.chat.completions.parse(model=MODEL, messages=ASK, response_format=Colour, max_tokens=100)
    assert isinstance(answer.choices[0].message.parsed, Colour)


@pytest.mark.parametrize("stream", [False, True])
def test_thinking_comes_first_where_it_was_asked_for(client: openai.OpenAI, stream: bool) -> None:
    """The grammar begins after the thinking; the thoughts are separated, and the answer is valid."""
    wanted: Any = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "integer", "maximum": 9999}}}
    answer: Any = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "What is 3 + 4?"}],
        response_format=wanted,
        temperature=0,
        max_tokens=120,
        stream=stream,
        extra_body={"chat_template_kwargs": {"enable_thinking": True}},
    )
    said = [chunk.choices[0].delta for chunk in answer] if stream else [answer.choices[0].message]
    assert "".join(getattr(part, "reasoning_content", None) or "" for part in said)
    assert isinstance(json.loads("".join(part.content or "" for part in said)), int)


def test_any_object(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model=MODEL, messages=ASK, response_format={"type": "json_object"}, temperature=0, max_tokens=200
    )
    (choice,) = answer.choices
    if choice.finish_reason == "stop":
        assert isinstance(json.loads(choice.message.content or ""), dict)
    assert (choice.message.content or "").startswith("{")


@pytest.mark.parametrize(
    ("fields", "pattern"),
    [({"regex": "[a-c]{3,6}x"}, "[a-c]{3,6}x"), ({"ebnf": 'root ::= "ab" ("c" | "dd")'}, "ab(c|dd)")],
)
def test_patterns(client: openai.OpenAI, fields: dict[str, str], pattern: str) -> None:
    answer = client.completions.create(model=MODEL, prompt="Letters: ", temperature=1, max_tokens=80, extra_body=fields)
    assert re.fullmatch(pattern, answer.choices[0].text)


def test_logprobs_are_those_of_what_may_be_said(client: openai.OpenAI) -> None:
    """Forbidden tokens are none of the likeliest, and where only one is allowed it is certain."""
    answer = client.completions.create(
        model=MODEL, prompt="Say: ", logprobs=5, max_tokens=10, extra_body={"regex": "zq", "logit_bias": {"5": 100}}
    )
    found = answer.choices[0].logprobs
    assert answer.choices[0].text == "zq" and found is not None and found.top_logprobs is not None
    for top in found.top_logprobs:
        assert all("zq".startswith(token) or token in "zq" or "<" in token for token in top)


@pytest.mark.parametrize(
    ("wanted", "param", "words"),
    [
        (
            {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "nonsense"}}},
            "response_format",
            "nonsense",
        ),
        ({"type": "json_schema", "json_schema": {"name": "x", "schema": {"$ref": "#/no"}}}, "response_format", "no"),
        (
            {"type": "json_schema", "json_schema": {"schema": {"enum": ["x" * 200_000]}}},
            "response_format",
            "131072 bytes",
        ),
        ({"type": "json_schema"}, "response_format.json_schema", "required"),
        ({"type": "structural_tag", "triggers": []}, "response_format", "structures"),
        ({"type": "xml"}, "response_format", "json_schema"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_what_is_wrong_is_a_400_that_names_it(
    client: openai.OpenAI, wanted: Any, param: str, words: str, stream: bool
) -> None:
    """Also for a stream: before it begins."""
    with pytest.raises(openai.BadRequestError, match=words) as caught:
        client.chat.completions.create(model=MODEL, messages=ASK, response_format=wanted, stream=stream)
    assert caught.value.param == param


def test_beside_free_requests_and_under_retraction(server: ServerProcess, client: openai.OpenAI) -> None:
    """Many at once in little memory: each is valid, and those without a grammar say what they say alone."""

    def free(seed: int) -> str | None:
        answer = client.chat.completions.create(
            model=MODEL, messages=ASK, temperature=1, seed=seed, max_tokens=40, extra_body={"ignore_eos": True}
        )
        return answer.choices[0].message.content

    alone = {seed: free(seed) for seed in range(6)}
    bound_alone = {seed: person(client, seed).choices[0].message.content for seed in range(6)}
    with ThreadPoolExecutor(30) as pool:
        bound = {seed: pool.submit(person, client, seed) for seed in range(24)}
        together = {seed: pool.submit(free, seed) for seed in alone}
    assert {seed: done.result() for seed, done in together.items()} == alone
    for seed, done in bound.items():
        text = done.result().choices[0].message.content
        assert_person(text)
        assert text == bound_alone.get(seed, text)
    state = httpx.get(f"{server.url}/server_info", timeout=PATIENCE_S).json()["internal_states"][0]
    assert state["num_retractions"] > 0, "there was memory enough: this test says less than it should"


def test_the_native_route(server: ServerProcess) -> None:
    def generate(**params: Any) -> httpx.Response:
        body = {"text": "Say: ", "sampling_params": {"max_new_tokens": 60, **params}}
        return httpx.post(f"{server.url}/generate", json=body, timeout=PATIENCE_S)

    tag = {"structures": [{"begin": "<f>", "schema": {"type": "object"}, "end": "</f>"}], "triggers": ["<f>"]}
    assert re.fullmatch("(yes|no)", generate(regex="(yes|no)").json()["text"])
    assert generate(structural_tag=json.dumps(tag), max_new_tokens=5).status_code == 200
    assert json.loads(generate(json_schema='{"type":"array","items":{"type":"null"},"maxItems":3}').json()["text"]) in (
        [[None] * count for count in range(4)]
    )
    refused = generate(regex="(a")
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "regex" and "not closed" in refused.json()["error"]["message"]
    both = generate(regex="a", ebnf="b")
    assert both.status_code == 400 and both.json()["error"]["param"] == "ebnf"


def compilers(server: ServerProcess) -> list[psutil.Process]:
    """The processes that compile for this server; a child at work has the same name."""
    found = psutil.Process(server.popen.pid).children(recursive=True)
    return [process for process in found if "mysglang::grammar_compiler" in " ".join(process.cmdline())]


@pytest.mark.promise(2)
def test_the_compiler_may_be_killed(server: ServerProcess, client: openai.OpenAI) -> None:
    """Compiled grammars stay valid, and a new one gets another process."""
    known = person(client, 1).choices[0].message.content
    (killed,) = compilers(server)
    killed.kill()
    killed.wait(PATIENCE_S)
    assert person(client, 1).choices[0].message.content == known
    answer = client.completions.create(
        model=MODEL, prompt="Say: ", max_tokens=20, extra_body={"regex": "after the end"}
    )
    assert answer.choices[0].text == "after the end"
    (other,) = compilers(server)
    assert other.pid != killed.pid


@pytest.mark.promise(34)
def test_bombs_are_refused_while_others_go_on(server: ServerProcess, client: openai.OpenAI) -> None:
    nested = {"type": "string"}
    for _ in range(400):
        nested = {"type": "array", "items": nested}  # type: ignore[dict-item]
    bombs: list[dict[str, Any]] = [
        {"response_format": {"type": "json_schema", "json_schema": {"name": "bomb", "schema": nested}}},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "bomb", "schema": {"$ref": "#"}}}},
        {"regex": "(" * 30_000 + "a" + ")" * 30_000},
    ]

    def explode(fields: dict[str, Any]) -> int:
        body = {"model": MODEL, "messages": ASK, "max_tokens": 5, **fields}
        return httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=PATIENCE_S).status_code

    def free() -> str | None:
        answer = client.chat.completions.create(
            model=MODEL, messages=ASK, temperature=1, seed=5, max_tokens=100, extra_body={"ignore_eos": True}
        )
        return answer.choices[0].message.content

    alone = free()
    with ThreadPoolExecutor(8) as pool:
        refused = [pool.submit(explode, fields) for fields in bombs]
        together = [pool.submit(free) for _ in range(3)]
    assert [done.result() for done in together] == [alone] * 3
    assert [done.result() for done in refused] == [400] * len(bombs)
    assert len(compilers(server)) == 1
