"""Requests of backends to services of others. The clients of Google and LiteLLM are replaced; OpenAI's is a script."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import mysglang as sgl


@sgl.function
def chat(s: sgl.ProgramState) -> None:
    s += sgl.system("Be short.")
    s += sgl.user("Why?")
    s += sgl.assistant(sgl.gen("answer", max_tokens=5, stop="."))


class Letters:
    """A tokenizer with a token for each letter."""

    def encode(self, text: str) -> list[int]:
        return [ord(letter) for letter in text]

    def decode(self, tokens: list[int]) -> str:
        return "".join(map(chr, tokens))


@dataclass
class Client:
    """A client of OpenAI that writes `text`, of which each request takes what it may."""

    text: str

    def __post_init__(self) -> None:
        self.requests: list[dict[str, Any]] = []
        self.completions = SimpleNamespace(create=self.create)

    def create(self, **request: Any) -> Any:
        self.requests.append(request)
        said = self.text[: request["max_tokens"]]
        self.text = self.text[request["max_tokens"] :]
        usage = SimpleNamespace(prompt_tokens=1, completion_tokens=1)
        return SimpleNamespace(choices=[SimpleNamespace(text=said)], usage=usage)


def openai(client: Client) -> sgl.OpenAI:
    backend = sgl.OpenAI("gpt-3.5-turbo-instruct", api_key="none", tokenizer=Letters())
    backend.client = client
    return backend


class TestOpenAI:
    @pytest.mark.parametrize(
        ("written", "choices", "choice"),
        [("se", ["calculator", "search"], "search"), ("car", ["cat", "card", "cart"], "card"), ("", ["only"], "only")],
    )
    def test_select_goes_token_by_token(self, written: str, choices: list[str], choice: str) -> None:
        client = Client(written + "d")

        @sgl.function
        def program(s: sgl.ProgramState) -> None:
            s += "I need a " + sgl.select("tool", choices)

        state = program.run(backend=openai(client))
        assert state["tool"] == choice
        for request in client.requests:
            assert set(request["logit_bias"].values()) == {100} and request["max_tokens"] == 1

    def test_numbers_and_strings(self) -> None:
        client = Client("7abc")

        @sgl.function
        def program(s: sgl.ProgramState) -> None:
            s += sgl.gen_int("number", max_tokens=1) + " " + sgl.gen_string("text", max_tokens=3)

        state = program.run(backend=openai(client))
        assert (state["number"], state["text"]) == ("7", '"abc"')
        numbers, strings = client.requests
        assert {chr(int(token)) for token in numbers["logit_bias"]} == set(" 0123456789") and numbers["stop"] == [" "]
        assert strings["prompt"] == '7 "' and strings["stop"] == ['"']

    def test_chat_models_refuse_what_they_cannot_do(self) -> None:
        backend = sgl.OpenAI("gpt-4o", api_key="none")
        for expression, message in [(sgl.select("x", ["a"]), "cannot select"), (sgl.gen_int("x"), "chat models")]:

            @sgl.function
            def program(s: sgl.ProgramState, expression: Any = expression) -> None:
                s += sgl.user("Hello")
                s += sgl.assistant(expression)

            assert message in str(program.run(backend=backend).error())


@pytest.fixture
def litellm(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    requests: list[dict[str, Any]] = []

    def completion(**request: Any) -> Any:
        requests.append(request)
        parts = ["So", None, "."]
        if request.get("stream"):
            return [SimpleNamespace(choices=[SimpleNamespace(delta=SimpleNamespace(content=part))]) for part in parts]
        return SimpleNamespace(choices=[SimpleNamespace(message=SimpleNamespace(content="So."))])

    module = ModuleType("litellm")
    module.completion = completion  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "litellm", module)
    return requests


def test_litellm(litellm: list[dict[str, Any]]) -> None:
    backend = sgl.LiteLLM("openai/some-model", api_key="none", base_url="http://localhost:1")
    assert chat.run(backend=backend)["answer"] == "So."
    assert "".join(chat.run(backend=backend, stream=True).text_iter("answer")) == "So."
    assert litellm[0] == {
        "model": "openai/some-model",
        "messages": [{"role": "system", "content": "Be short."}, {"role": "user", "content": "Why?"}],
        "max_tokens": 5,
        "temperature": 1.0,
        "stop": ["."],
        "api_key": "none",
        "base_url": "http://localhost:1",
    }


@pytest.fixture
def google(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[dict[str, Any]]]:
    requests: list[dict[str, Any]] = []

    class Models:
        def generate_content(self, **request: Any) -> Any:
            requests.append(request)
            return SimpleNamespace(text="So.")

        def generate_content_stream(self, **request: Any) -> Any:
            return [SimpleNamespace(text=part) for part in ("So", None, ".")]

    def client(**options: Any) -> Any:
        requests.append(options)
        return SimpleNamespace(models=Models())

    genai, types = ModuleType("google.genai"), ModuleType("google.genai.types")
    genai.Client = client  # type: ignore[attr-defined]
    types.GenerateContentConfig = dict  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "google", ModuleType("google"))
    monkeypatch.setitem(sys.modules, "google.genai", genai)
    monkeypatch.setitem(sys.modules, "google.genai.types", types)
    monkeypatch.setenv("GCP_PROJECT_ID", "project")
    monkeypatch.delenv("GCP_LOCATION", raising=False)
    yield requests


def test_vertex(google: list[dict[str, Any]]) -> None:
    backend = sgl.VertexAI("gemini")
    assert chat.run(backend=backend, top_k=-1)["answer"] == "So."
    assert "".join(chat.run(backend=backend, stream=True).text_iter("answer")) == "So."
    options, request = google[:2]
    assert options == {"vertexai": True, "project": "project", "location": None}
    assert request["contents"] == [{"role": "user", "parts": [{"text": "Why?"}]}]
    assert request["config"] == {
        "system_instruction": "Be short.",
        "max_output_tokens": 5,
        "temperature": 1.0,
        "stop_sequences": ["."],
    }


def test_a_client_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "litellm", None)
    with pytest.raises(ImportError, match="pip install litellm"):
        sgl.LiteLLM("openai/some-model")


def test_what_a_service_would_ignore_is_refused(litellm: list[dict[str, Any]]) -> None:
    @sgl.function
    def program(s: sgl.ProgramState) -> None:
        s += sgl.user("Why?")
        s += sgl.assistant(sgl.gen("answer", regex="a+", ignore_eos=False))

    assert str(program.run(backend=sgl.LiteLLM("m")).error()) == "regex cannot be used with LiteLLM."
