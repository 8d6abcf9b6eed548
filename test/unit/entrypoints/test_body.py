"""Bodies: bounded before they are parsed, JSON without loopholes, every fault told with its place."""

from collections.abc import Iterator
from typing import Any

import orjson
import pytest
from starlette.requests import Request
from starlette.types import Message

from mysglang.srt.entrypoints.body import (
    MAX_DEPTH,
    BodyTooLarge,
    ClientDisconnected,
    parse_json,
    read_body,
    too_deep,
    validate,
)
from mysglang.srt.entrypoints.strict_model import StrictModel
from mysglang.srt.errors import InvalidRequest


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


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""])
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
        (b'{"a": "\\ud800"}', "surrogate"),
        (b'{"a": "\xff"}', "UTF-8"),
        (b"[1]", "must be a JSON object, got an array"),
        (b'"a"', "got a string"),
        (b"null", "got null"),
        (b"true", "got a boolean"),
        (b"1", "got a number"),
        (b"[" * 10_000 + b"]" * 10_000, "not valid JSON"),
        (b'{"a":' * 10_000 + b"1" + b"}" * 10_000, "not valid JSON"),
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


@pytest.mark.parametrize("value", [False, 0, {"type": "text"}])
def test_what_asks_for_nothing_may_be_sent(value: object) -> None:
    assert validate(Sample, {"maybe": value}) == Sample()


@pytest.mark.promise(31)
@pytest.mark.parametrize("value", [True, 1, 0.0, {"type": "json_object"}, "", []])
def test_what_is_not_served_is_refused_by_name(value: object) -> None:
    with pytest.raises(InvalidRequest, match="maybe: not supported by this server, except False or 0") as error:
        validate(Sample, {"maybe": value})
    assert error.value.param == "maybe"
    with pytest.raises(InvalidRequest, match=r"later: not supported by this server\."):
        validate(Sample, {"later": value})
