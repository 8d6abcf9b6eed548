"""Each method of the client packages that asks for a route of ours, by both clients of the package, sync and async; and
that no method of these packages' resources was forgotten.
"""

import inspect
import json
from collections.abc import AsyncIterable, Callable, Iterable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any

import anthropic
import ollama
import openai
import pytest
from pydantic import ValidationError

from fixtures.server_process import ServerProcess
from fixtures.warm_start import WarmServer

MODEL = "mysglang-tiny"
USER = [{"role": "user", "content": "Hello"}]
SHORT = {"model": MODEL, "messages": USER, "max_tokens": 4}
SCHEMA = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}},
    "required": ["ok"],
    "additionalProperties": False,
}
JSON_SCHEMA = {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}
OLLAMA = {"model": MODEL, "options": {"num_predict": 4}}
LINE = {"custom_id": "1", "method": "POST", "url": "/v1/chat/completions", "body": SHORT}

Ask = Callable[[Any], Any]
"""A client -> what the call gives: an answer, pieces of one, or something to enter that gives either."""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:The `.content:DeprecationWarning"),
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    files = tmp_path_factory.mktemp("files")
    with WarmServer("--log-level", "warning", "--file-storage-path", str(files)) as server:
        yield server


class Known:
    """Objects that calls refer to: made for each call by a client of its own."""

    def __init__(self, url: str) -> None:
        self._openai = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)

    def file(self, lines: int = 1) -> str:
        text = "\n".join(json.dumps({**LINE, "custom_id": str(number)}) for number in range(lines))
        return self._openai.files.create(file=("lines.jsonl", text.encode()), purpose="batch").id

    def batch(self, lines: int = 1) -> str:
        made = self._openai.batches.create(
            input_file_id=self.file(lines), endpoint="/v1/chat/completions", completion_window="24h"
        )
        return made.id

    def response(self, **fields: Any) -> str:
        return self._openai.responses.create(model=MODEL, input="Hello", max_output_tokens=2, **fields).id

    def begun(self) -> str:
        """A response that is told as a stream in the background."""
        events = self._openai.responses.create(
            model=MODEL, input="Hello", max_output_tokens=4, background=True, stream=True
        )
        with events:
            return next(event.response.id for event in events if event.type == "response.created")


@pytest.fixture(scope="module")
def known(server: ServerProcess) -> Known:
    return Known(server.url)


OPENAI: dict[str, Callable[[Any, Known], Any]] = {
    "chat.completions.create": lambda c, _: c.chat.completions.create(**SHORT),
    "chat.completions.create, stream": lambda c, _: c.chat.completions.create(**SHORT, stream=True),
    "chat.completions.stream": lambda c, _: c.chat.completions.stream(**SHORT),
    "chat.completions.parse": lambda c, _: c.chat.completions.parse(
        **{**SHORT, "max_tokens": 200, "response_format": JSON_SCHEMA}
    ),
    "chat.completions.with_raw_response.create": lambda c, _: c.chat.completions.with_raw_response.create(**SHORT),
    "chat.completions.with_streaming_response.create": lambda c, _: c.chat.completions.with_streaming_response.create(
        **SHORT
    ),
    "completions.create": lambda c, _: c.completions.create(model=MODEL, prompt="Hello", max_tokens=4),
    "completions.create, stream": lambda c, _: c.completions.create(
        model=MODEL, prompt=["Hello", "you"], max_tokens=4, stream=True
    ),
    "models.list": lambda c, _: c.models.list(),
    "models.retrieve": lambda c, _: c.models.retrieve(MODEL),
    "files.create": lambda c, _: c.files.create(file=("a.jsonl", b"{}"), purpose="batch"),
    "files.list": lambda c, known: (known.file(), c.files.list(limit=1))[1],
    "files.retrieve": lambda c, known: c.files.retrieve(known.file()),
    "files.content": lambda c, known: c.files.content(known.file()),
    "files.retrieve_content": lambda c, known: c.files.retrieve_content(known.file()),
    "files.wait_for_processing": lambda c, known: c.files.wait_for_processing(known.file()),
    "files.delete": lambda c, known: c.files.delete(known.file()),
    "batches.create": lambda c, known: c.batches.create(
        input_file_id=known.file(), endpoint="/v1/chat/completions", completion_window="24h"
    ),
    "batches.list": lambda c, known: (known.batch(), c.batches.list(limit=1))[1],
    "batches.retrieve": lambda c, known: c.batches.retrieve(known.batch()),
    "batches.cancel": lambda c, known: c.batches.cancel(known.batch(2000)),
    "responses.create": lambda c, _: c.responses.create(model=MODEL, input="Hello", max_output_tokens=4),
    "responses.create, stream": lambda c, _: c.responses.create(
        model=MODEL, input="Hello", max_output_tokens=4, stream=True
    ),
    "responses.stream": lambda c, _: c.responses.stream(model=MODEL, input="Hello", max_output_tokens=4),
    "responses.parse": lambda c, _: c.responses.parse(
        model=MODEL, input="Hello", text={"format": {"type": "json_schema", "name": "a", "schema": SCHEMA}}
    ),
    "responses.retrieve": lambda c, known: c.responses.retrieve(known.response()),
    "responses.retrieve, stream": lambda c, known: c.responses.retrieve(known.begun(), stream=True),
    "responses.cancel": lambda c, known: c.responses.cancel(known.response(background=True)),
    "responses.delete": lambda c, known: c.responses.delete(known.response()),
    "responses.input_items.list": lambda c, known: c.responses.input_items.list(known.response()),
    "responses.input_tokens.count": lambda c, _: c.responses.input_tokens.count(model=MODEL, input="Hello"),
}
ELSEWHERE = {"embeddings.create": "test_embeddings.py: the embedded model makes no vectors"}

ANTHROPIC: dict[str, Ask] = {
    "messages.create": lambda c: c.messages.create(**SHORT),
    "messages.create, stream": lambda c: c.messages.create(**SHORT, stream=True),
    "messages.stream": lambda c: c.messages.stream(**SHORT),
    "messages.parse": lambda c: c.messages.parse(
        **{**SHORT, "max_tokens": 200}, output_config={"format": {"type": "json_schema", "schema": SCHEMA}}
    ),
    "messages.count_tokens": lambda c: c.messages.count_tokens(model=MODEL, messages=USER),
    "models.list": lambda c: c.models.list(),
    "models.retrieve": lambda c: c.models.retrieve(MODEL),
}

OLLAMAS: dict[str, Ask] = {
    "chat": lambda c: c.chat(messages=USER, **OLLAMA),
    "chat, stream": lambda c: c.chat(messages=USER, stream=True, **OLLAMA),
    "generate": lambda c: c.generate(prompt="Hello", **OLLAMA),
    "generate, stream": lambda c: c.generate(prompt="Hello", stream=True, **OLLAMA),
    "list": lambda c: c.list(),
    "show": lambda c: c.show(MODEL),
    "ps": lambda c: c.ps(),
}
OLLAMA_ELSEWHERE = {"embed": "test_embeddings.py", "embeddings": "test_embeddings.py"}

NOT_OURS: dict[str, set[str]] = {
    "openai": {
        *("chat.completions.list", "chat.completions.retrieve", "chat.completions.update"),  # store is refused
        *("chat.completions.delete", "chat.completions.messages.list"),
        "models.delete",
        *("responses.compact", "responses.connect"),
    },
    "anthropic": {
        *("messages.batches.create", "messages.batches.retrieve", "messages.batches.list"),
        *("messages.batches.delete", "messages.batches.cancel", "messages.batches.results"),
    },
    "ollama": {
        *("close", "copy", "create", "create_blob", "delete", "pull", "push"),  # of a store of models
        *("systemone", "web_fetch", "web_search"),
    },
}
"""Methods of resources of which we have some."""


WRONG_TYPES = {"choices.0.finish_reason: Input should be 'stop', 'length' or 'content_filter'"}
"""In a stream of completions it is null until the end, also where the types come from."""


async def settled(told: Any) -> list[Any]:
    """The answer that a call gave, or all its pieces, whichever kind of client asked."""
    if inspect.isawaitable(told):
        told = await told
    if isinstance(told, AbstractAsyncContextManager) and not isinstance(told, AsyncIterable):
        async with told as entered:
            return await settled(entered)
    if isinstance(told, AbstractContextManager) and not isinstance(told, Iterable):
        with told as entered:
            return await settled(entered)
    if isinstance(told, AsyncIterable):
        return [piece async for piece in told]
    if isinstance(told, Iterable) and not hasattr(told, "model_dump"):
        return list(told)
    return [told]


def problems(pieces: list[Any]) -> list[str]:
    """Fields that the package's types have and an answer lacks: the packages themselves do not look."""
    found = []
    for piece in pieces:
        dump = getattr(piece, "model_dump", None)
        if dump is not None:
            try:
                type(piece).model_validate(dump(by_alias=True))
            except ValidationError as error:
                told = (".".join(map(str, one["loc"])) + ": " + one["msg"] for one in error.errors())
                found += [problem for problem in told if problem not in WRONG_TYPES]
    return found


@pytest.mark.parametrize("kind", [openai.OpenAI, openai.AsyncOpenAI])
@pytest.mark.parametrize("method", OPENAI)
async def test_openai(server: ServerProcess, known: Known, method: str, kind: Any) -> None:
    client = kind(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
    pieces = await settled(OPENAI[method](client, known))
    assert pieces and not problems(pieces)


@pytest.mark.parametrize("kind", [anthropic.Anthropic, anthropic.AsyncAnthropic])
@pytest.mark.parametrize("method", ANTHROPIC)
async def test_anthropic(server: ServerProcess, method: str, kind: Any) -> None:
    client = kind(base_url=server.url, api_key="none", max_retries=0)
    pieces = await settled(ANTHROPIC[method](client))
    assert pieces and not problems(pieces)


@pytest.mark.parametrize("kind", [ollama.Client, ollama.AsyncClient])
@pytest.mark.parametrize("method", OLLAMAS)
async def test_ollama(server: ServerProcess, method: str, kind: Any) -> None:
    pieces = await settled(OLLAMAS[method](kind(host=server.url)))
    assert pieces and not problems(pieces)


def methods_of(client: Any, path: str = "") -> Iterator[str]:
    """The methods of all resources of a client, by their paths."""
    for name in dir(client):
        value = None if name.startswith(("_", "with_")) else inspect.getattr_static(type(client), name, None)
        if value is None:
            continue
        found = getattr(client, name)
        if ".resources." in type(found).__module__:
            yield from methods_of(found, f"{path}{name}.")
        elif path and inspect.ismethod(found):
            yield path + name


def asked(table: Iterable[str]) -> set[str]:
    return {name.partition(",")[0] for name in table}


def test_no_method_is_forgotten() -> None:
    """For each resource that we serve, every method is called above, or listed as not ours."""
    ours = asked([*OPENAI, *ELSEWHERE]) | NOT_OURS["openai"]
    resources = {name.partition(".")[0] for name in ours}
    there = {name for name in methods_of(openai.OpenAI(api_key="none")) if name.partition(".")[0] in resources}
    assert there == {name for name in ours if ".with_" not in name}
    ours = asked(ANTHROPIC) | NOT_OURS["anthropic"]
    there = {
        name for name in methods_of(anthropic.Anthropic(api_key="none")) if name.startswith(("messages.", "models."))
    }
    assert there == ours
    there = {name for name in dir(ollama.Client) if not name.startswith("_")}
    assert there == asked([*OLLAMAS, *OLLAMA_ELSEWHERE]) | NOT_OURS["ollama"]
