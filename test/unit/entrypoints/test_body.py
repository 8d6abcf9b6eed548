"""Bodies: bounded before they are parsed, JSON without loopholes, every fault told with its place."""

import asyncio
import gc
import threading
import tracemalloc
import weakref
from collections.abc import Iterator
from typing import Any

import orjson
import pytest
from pydantic import BaseModel
from starlette.requests import Request
from starlette.types import Message

from fixtures.patience import PATIENCE_S, until
from mysglang.srt.entrypoints import body as bodies
from mysglang.srt.entrypoints.body import (
    LONG_BODY,
    MAX_DEPTH,
    BodyTooLarge,
    parse_json,
    read_as,
    read_body,
    too_deep,
    validate,
)
from mysglang.srt.entrypoints.body_room import BodyRoom, BodyRoomFull
from mysglang.srt.entrypoints.departure import ClientDisconnected
from mysglang.srt.entrypoints.ollama.protocol import OllamaChatRequest, OllamaEmbedRequest
from mysglang.srt.entrypoints.openai.protocol import ChatCompletionRequest, CompletionRequest
from mysglang.srt.entrypoints.openai.responses.protocol import ResponsesRequest
from mysglang.srt.entrypoints.strict_model import StrictModel
from mysglang.srt.errors import InvalidRequest
from mysglang.srt.managers.text_pool import WorkDropped


def request(
    parts: list[bytes], headers: dict[str, str] | None = None, *, cut: bool = False
) -> tuple[Request, list[int]]:
    """A request whose body comes in `parts`, and a list that grows by one for each part taken."""
    taken: list[int] = []

    def messages() -> Iterator[Message]:
        for place, part in enumerate(parts):
            taken.append(len(part))
            yield {"type": "http.request", "body": part, "more_body": cut or place + 1 < len(parts)}
        yield {"type": "http.disconnect"}

    source = messages()

    async def receive() -> Message:
        return next(source)

    told = {"content-type": "application/json"} | (headers or {})
    scope: dict[str, Any] = {
        "type": "http",
        "headers": [(name.encode(), value.encode()) for name, value in told.items()],
    }
    return Request(scope, receive), taken


async def test_parts_make_one_body() -> None:
    read, _ = request([b'{"a"', b":", b"1}"])
    assert await read_body(read) == b'{"a":1}'


@pytest.mark.parametrize("kind", ["", "application/x-www-form-urlencoded"])
@pytest.mark.parametrize("browsers", [{}, {"origin": "http://evil.example"}, {"sec-fetch-site": "cross-site"}])
async def test_clients_that_care_about_no_type_are_read_unless_they_are_browsers(
    kind: str, browsers: dict[str, str]
) -> None:
    read, taken = request([b"{}"], {"content-type": kind, **browsers})
    if not browsers:
        assert await read_body(read) == b"{}"
        return
    with pytest.raises(InvalidRequest, match="content type must be application/json"):
        await read_body(read)
    assert not taken


async def test_unfinished_bodies_have_a_bound_together(monkeypatch: pytest.MonkeyPatch) -> None:
    room = BodyRoom(limit=100)
    monkeypatch.setattr(bodies, "_ROOM", room)
    long, taken = request([b"1" * 40, b"2" * 20, b"3"])
    with pytest.raises(BodyRoomFull, match="100 together"):
        await read_body(long)
    assert taken == [40, 20] and room.held == 0
    slow, _ = request([b'{"a"', b": 1}"])
    held = await read_body(slow)
    assert room.held == 8
    assert await bodies.make_of(slow, held, dict) == {"a": 1}
    assert room.held == 0
    whole, _ = request([b'{"a": 1}'])
    held = await read_body(whole)
    assert room.held == 0, "a short body in one piece is not counted"
    assert await bodies.make_of(whole, held, dict) == {"a": 1}
    wrong, _ = request([b"{"])
    with pytest.raises(InvalidRequest):
        await read_as(wrong, dict)
    left, _ = request([b"{"], cut=True)
    with pytest.raises(ClientDisconnected):
        await read_as(left, dict)
    assert room.held == 0


async def test_declared_excess_is_refused_unread() -> None:
    read, taken = request([b"x" * 11], {"content-length": "11"})
    with pytest.raises(BodyTooLarge, match="larger than 10 bytes"):
        await read_body(read, limit=10)
    assert not taken


async def test_undeclared_excess_is_refused_when_it_shows() -> None:
    read, taken = request([b"x" * 6] * 100)
    with pytest.raises(BodyTooLarge):
        await read_body(read, limit=10)
    assert len(taken) == 2


@pytest.mark.promise(13)
async def test_a_client_that_leaves_in_its_body() -> None:
    read, _ = request([b"{"], cut=True)
    with pytest.raises(ClientDisconnected):
        await read_body(read)


@pytest.mark.parametrize("kind", ["text/plain", "text/plain;charset=UTF-8", "multipart/form-data"])
async def test_only_json_is_read(kind: str) -> None:
    read, taken = request([b"{}"], {"content-type": kind})
    with pytest.raises(InvalidRequest, match="must be application/json"):
        await read_body(read)
    assert not taken


@pytest.mark.parametrize("kind", ["application/json", "Application/JSON; charset=utf-8"])
async def test_json_by_any_spelling(kind: str) -> None:
    read, _ = request([b"{}"], {"content-type": kind})
    assert await read_body(read) == b"{}"


@pytest.mark.parametrize(
    ("body", "found"),
    [
        (b"", "not valid JSON"),
        (b"{", "line 1 column 2"),
        (b'{\n"a": 1,\n}', "line 2 column 7"),
        (b'{"a": NaN}', "line 1 column 7"),
        (b'{"a": -Infinity}', "not valid JSON"),
        (b'{"a": 1e999}', "not valid JSON"),
        (
            b'{"a": 123456789012345678901}',
            "cannot be read as it is: the integer 123456789012345678901 has more than 64",
        ),
        (b'{"a": "\\ud800"}', "surrogate"),
        (b'{"a": "\xff"}', "UTF-8"),
        (b"[1]", "must be a JSON object, got an array"),
        (b'"a"', "got a string"),
        (b"null", "got null"),
        (b"true", "got a boolean"),
        (b"1", "got a number"),
        (b"[" * 10_000 + b"]" * 10_000, f"deeper than {MAX_DEPTH} levels"),
        (b'{"a":' * 10_000 + b"1" + b"}" * 10_000, f"deeper than {MAX_DEPTH} levels"),
        (b'{"a":' + b"[" * MAX_DEPTH + b"]" * MAX_DEPTH + b"}", f"deeper than {MAX_DEPTH} levels"),
    ],
)
def test_faults_of_json_are_named(body: bytes, found: str) -> None:
    with pytest.raises(InvalidRequest) as error:
        parse_json(body)
    assert found in error.value.message


def test_depth_is_what_counts_not_brackets() -> None:
    wide = {"a": [[1]] * 1000, "b": "[" * 1000, "c": [{}] * 1000}
    assert parse_json(orjson.dumps(wide)) == wide
    deepest = b'{"a":' + b"[" * (MAX_DEPTH - 1) + b"]" * (MAX_DEPTH - 1) + b"}"
    assert parse_json(deepest)


@pytest.mark.parametrize("beside", [b"", b', "b": "]]}"', b', "b": "[[{"', b', "b": "\\u005b"'])
def test_what_is_deep_is_found_among_what_is_wide(beside: bytes) -> None:
    """However many brackets there are in strings."""
    rows = b"[1, 2]," * 1000
    deep = b"[" * MAX_DEPTH + b"]" * MAX_DEPTH
    for body in (rows + deep, deep + b"," + rows[:-1]):
        with pytest.raises(InvalidRequest, match="deeper"):
            parse_json(b'{"a": [' + body + b"]" + beside + b"}")
    assert parse_json(b'{"a": [' + rows[:-1] + b"]" + beside + b"}")["a"] == [[1, 2]] * 1000


def test_once_all_lists_were_seen_nobody_looks_for_more() -> None:
    class Untouched(list[int]):
        def __iter__(self) -> Iterator[int]:
            raise AssertionError("looked into")

    data = {"a": [Untouched([1])] * 3}
    assert not too_deep(data, 5)
    with pytest.raises(AssertionError, match="looked into"):
        too_deep(data, 6)


class Inner(StrictModel):
    size: int = 0


class Sample(StrictModel):
    name: str = "anonymous"
    inner: Inner = Inner()
    share: float = 0.5
    unsupported = {"later": (), "maybe": (False, 0, {"type": "text"})}


def test_all_findings_in_one_line_with_their_paths() -> None:
    with pytest.raises(InvalidRequest) as error:
        validate(Sample, {"name": 1, "inner": {"size": "2", "depth": 3}, "extra": None})
    assert error.value.message == (
        "name: should be a valid string; inner.size: should be a valid integer; "
        "inner.depth: this server does not know the field; extra: this server does not know the field"
    )
    assert error.value.param == "name"


@pytest.mark.parametrize(
    ("model", "fields", "place"),
    [
        (ChatCompletionRequest, {"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        (
            ChatCompletionRequest,
            {"response_format": {"type": "json_schema", "json_schema": {"schema": 5}}},
            "response_format.json_schema.schema",
        ),
        (ChatCompletionRequest, {"response_format": {"type": "xml"}}, "response_format"),
        (ChatCompletionRequest, {"response_format": {}}, "response_format"),
        (ChatCompletionRequest, {"tool_choice": "f"}, "tool_choice"),
        (ChatCompletionRequest, {"json_schema": 5}, "json_schema"),
        (ChatCompletionRequest, {"guided_json": 5}, "guided_json"),
        (ChatCompletionRequest, {"messages": [5]}, "messages.0"),
        (ResponsesRequest, {"input": [{"type": "function_call"}]}, "input.0.call_id"),
        (ResponsesRequest, {"input": [{"role": "user", "content": 5}]}, "input.0.content"),
        (ResponsesRequest, {"input": [{"type": "nothing"}]}, "input.0"),
    ],
)
def test_the_place_of_an_error_is_one_that_the_client_wrote(
    model: type[BaseModel], fields: dict[str, Any], place: str
) -> None:
    """Also in a field that may be one of several things. Words of Python and pydantic mean nothing to a client."""
    with pytest.raises(InvalidRequest) as error:
        validate(model, {"messages": [{"role": "user", "content": "Hi"}], "input": "Hi", **fields})
    assert error.value.param == place
    assert all(word not in error.value.message for word in ("literal[", "dict", "instance", "tag '", "_kind"))


def test_many_findings_are_counted_not_told() -> None:
    with pytest.raises(InvalidRequest) as error:
        validate(Sample, {f"field{i}": i for i in range(100)})
    assert error.value.message.endswith("field7: this server does not know the field; and 92 more")


def test_null_is_the_default() -> None:
    assert validate(Sample, {"name": None, "inner": {"size": None}, "later": None, "maybe": None}) == Sample()


@pytest.mark.parametrize(
    ("field", "value"),
    [("name", 1), ("name", True), ("name", []), ("share", "0.5"), ("share", True), ("inner", 1), ("inner", "{}")],
)
def test_nothing_is_coerced(field: str, value: object) -> None:
    with pytest.raises(InvalidRequest, match=f"^{field}: "):
        validate(Sample, {field: value})


@pytest.mark.parametrize("value", [True, 1.0, "1", [1]])
def test_no_integer_is_made_of_anything_else(value: object) -> None:
    with pytest.raises(InvalidRequest, match=r"^inner\.size: "):
        validate(Sample, {"inner": {"size": value}})


@pytest.mark.parametrize("value", [False, 0, {"type": "text"}, "", [], {}])
def test_what_asks_for_nothing_may_be_sent(value: object) -> None:
    assert validate(Sample, {"maybe": value}) == Sample()


@pytest.mark.promise(31)
@pytest.mark.parametrize("value", [True, 1, 0.0, {"type": "json_object"}, "x", [0]])
def test_what_is_not_served_is_refused_by_name(value: object) -> None:
    with pytest.raises(InvalidRequest, match="maybe: not supported by this server, except False or 0") as error:
        validate(Sample, {"maybe": value})
    assert error.value.param == "maybe"
    with pytest.raises(InvalidRequest, match=r"later: not supported by this server\."):
        validate(Sample, {"later": value})


LONG = b" " * LONG_BODY


async def stays(body: bytes) -> Request:
    """A request whose client stays."""
    sent = iter([{"type": "http.request", "body": body, "more_body": False}])

    async def receive() -> Message:
        for message in sent:
            return message
        await asyncio.Event().wait()
        raise AssertionError("waits for ever")

    return Request({"type": "http", "headers": [(b"content-type", b"application/json")]}, receive)


@pytest.mark.promise(42)
@pytest.mark.parametrize(("padding", "own"), [(b"", False), (LONG, True)])
async def test_a_long_body_is_parsed_and_checked_in_a_thread(padding: bytes, own: bool) -> None:
    names: list[str] = []

    def make(data: dict[str, object]) -> dict[str, object]:
        names.append(threading.current_thread().name)
        return data

    assert await read_as(await stays(b'{"name": "x"}' + padding), make) == {"name": "x"}
    assert (names[0] != threading.current_thread().name) == own


@pytest.mark.promise(43)
async def test_a_long_body_is_dropped_when_its_client_leaves() -> None:
    begun, ended = threading.Event(), threading.Event()

    def make(_: dict[str, object]) -> None:
        begun.set()
        try:
            while True:
                validate(Sample, {})
        except WorkDropped:
            ended.set()
            raise

    left = asyncio.Event()
    sent = iter([{"type": "http.request", "body": b"{}" + LONG, "more_body": False}])

    async def receive() -> Message:
        for message in sent:
            return message
        await left.wait()
        return {"type": "http.disconnect"}

    read = Request({"type": "http", "headers": [(b"content-type", b"application/json")]}, receive)
    asking = asyncio.create_task(read_as(read, make))
    assert await asyncio.to_thread(begun.wait, PATIENCE_S)
    left.set()
    with pytest.raises(ClientDisconnected):
        await asking
    assert await asyncio.to_thread(ended.wait, PATIENCE_S)


@pytest.mark.promise(42)
@pytest.mark.parametrize(
    ("body", "found"),
    [
        (b'{"a": [' + b"1," * 5_000_000 + b"1]}", "more than 4194304 values"),
        (b'{"a": [' + b"{}," * 200_000 + b"1]}", "more than 32768 lists and objects"),
        (b'{"a": [' + b'"x",' * 600_000 + b"1]}", "more than 524288 strings"),
        (b'{"a": "' + b"x" * (17 << 20) + b'"}', "more than 16777216 bytes in memory"),
        (b'{"a": ' + b"[" * 100_000, f"deeper than {MAX_DEPTH} levels"),
        (b'{"a": 1,\n "b": tru, "c": "' + LONG + b'"}', "not valid JSON: .*line 2 column"),
        (b'{"a": 123456789012345678901, "c": "' + LONG + b'"}', "the integer 123456789012345678901 has more"),
        (b'{"ids": [123456789012345678901' + b", 1" * 100_000 + b"]}", "the integer 123456789012345678901 has more"),
        (b"[1]" + LONG, "must be a JSON object, got an array"),
    ],
)
def test_long_bodies_are_counted_before_they_are_parsed(body: bytes, found: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(InvalidRequest, match=found):
            parse_json(body)
        assert tracemalloc.get_traced_memory()[1] < 3 * len(body) + (16 << 20)
    finally:
        tracemalloc.stop()


@pytest.mark.promise(42)
def test_what_is_made_of_many_token_ids_takes_little_more_than_they_do() -> None:
    body = b'{"ids": [' + b",".join(b"%d" % (number % 50_000) for number in range(1_000_000)) + b"]}"
    tracemalloc.start()
    try:
        data = parse_json(body)
        assert tracemalloc.get_traced_memory()[0] < 3 * len(body)
    finally:
        tracemalloc.stop()
    assert data == orjson.loads(body)


@pytest.mark.promise(42)
async def test_what_a_refused_body_held_is_gone_without_a_collection() -> None:
    class Held(dict[str, object]):
        pass

    refs: list[weakref.ref[Held]] = []

    def make(data: dict[str, object]) -> None:
        held = Held(data)
        refs.append(weakref.ref(held))
        raise InvalidRequest("refused")

    async def ask() -> None:
        with pytest.raises(InvalidRequest):
            await read_as(await stays(b'{"name": "x"}' + LONG), make)

    gc.collect()
    gc.disable()
    try:
        await ask()
        # Until the thread has let go of it, too.
        await until(lambda: refs[0]() is None)
    finally:
        gc.enable()


class Values(list[object]):
    """A list that can be waited for."""


@pytest.mark.promise(42)
@pytest.mark.parametrize(
    ("model", "field"),
    [
        (ChatCompletionRequest, "stop"),
        (CompletionRequest, "prompt"),
        (OllamaChatRequest, "format"),
        (OllamaEmbedRequest, "input"),
        (ResponsesRequest, "stop"),
    ],
)
def test_what_a_validator_refused_is_gone_without_a_collection(model: type[BaseModel], field: str) -> None:
    """An exception of our validators refers to the frames around it, and so to the body."""
    gc.collect()
    gc.disable()
    try:
        values = Values([1, "a"])
        held = weakref.ref(values)
        with pytest.raises(InvalidRequest, match=field):
            validate(model, {field: values})
        del values
        assert held() is None
    finally:
        gc.enable()
