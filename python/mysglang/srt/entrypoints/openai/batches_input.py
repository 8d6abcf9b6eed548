"""The input of a batch: one JSON object on each line, all checked before any is asked.

    {"custom_id": "mine-1", "method": "POST", "url": "/v1/chat/completions", "body": {...}}

Only the places of the lines are kept, and digests of their names, so that many long files cost little memory. What a
body says is the endpoint's business, when it is asked. Everything here blocks.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from mysglang.srt.entrypoints.body import MAX_BODY_BYTES, MAX_DEPTH, too_deep
from mysglang.srt.entrypoints.openai.batches_record import BatchFault
from mysglang.srt.messages.generate import REFUSED, FieldReport
from mysglang.srt.utils import exact_json
from mysglang.srt.utils.exact_json import InexactInteger
from mysglang.srt.utils.json_types import json_type

MAX_LINES = 50_000
"""OpenAI's bound."""

MAX_FAULTS = 50
"""Largest number of errors that are reported."""

MAX_CUSTOM_ID = 512
"""Characters."""

NAME_BYTES = 16

_FIELDS = ("custom_id", "method", "url", "body")


class InputLine(NamedTuple):
    """A request in the input file of a batch: its place, not its content."""

    number: int
    """Line number, from 1."""
    offset: int
    length: int
    name: bytes
    """The name that `name_of` gives it."""


class InputLines:
    """The places of all requests of an input file, in some 40 bytes each."""

    def __init__(self) -> None:
        self._places = array("q")
        """Number, offset and length of each line."""
        self._names = bytearray()

    def __len__(self) -> int:
        return len(self._names) // NAME_BYTES

    def __iter__(self) -> Iterator[InputLine]:
        return (self[index] for index in range(len(self)))

    def __getitem__(self, index: int) -> InputLine:
        number, offset, length = self._places[3 * index : 3 * index + 3]
        name = bytes(self._names[NAME_BYTES * index : NAME_BYTES * (index + 1)])
        return InputLine(number, offset, length, name)

    def append(self, line: InputLine) -> None:
        self._places.extend(line[:3])
        self._names += line.name


def name_of(custom_id: str) -> bytes:
    """Returns the key of a line in memory: a digest of its custom_id, which may be long."""
    return blake2b(custom_id.encode(), digest_size=NAME_BYTES).digest()


class InputRefused(Exception):
    """Raised if a file is no valid input of a batch."""

    def __init__(self, faults: list[BatchFault]) -> None:
        super().__init__(f"{len(faults)} faults")
        self.faults = faults


def read_input(path: Path, endpoint: str, fields: FieldReport = REFUSED) -> InputLines:
    """Returns all requests in the file, each for `endpoint`. Lines of white space are skipped. `fields` receives
    unknown fields beside `body`.

    Raises InputRefused with the first MAX_FAULTS faults.
    """
    lines = InputLines()
    faults: list[BatchFault] = []
    seen: dict[bytes, int] = {}
    for number, offset, raw in _lines(path):
        if len(lines) == MAX_LINES:
            faults.append(BatchFault(code="too_many_requests", message=f"A batch may have {MAX_LINES} requests."))
            break
        try:
            custom_id = _checked(raw, endpoint, number, fields)
            name = name_of(custom_id)
            if name in seen:
                message = f"The custom_id {custom_id!r} is that of line {seen[name]} already."
                raise _fault("duplicate_custom_id", message, number, "custom_id")
        except InputRefused as refused:
            faults += refused.faults
            if len(faults) >= MAX_FAULTS:
                break
            continue
        seen[name] = number
        lines.append(InputLine(number, offset, len(raw), name))
    if not lines and not faults:
        faults.append(BatchFault(code="empty_file", message="The file has no requests."))
    if faults:
        raise InputRefused(faults)
    return lines


def read_request(path: Path, line: InputLine) -> tuple[str, dict[str, object]]:
    """Returns the custom_id of a line that `read_input` has found, and what it asks of the endpoint. Raises
    InputRefused if the line is not there any more.
    """
    with path.open("rb") as file:
        file.seek(line.offset)
        raw = file.read(line.length)
    try:
        data: Any = exact_json.loads(raw)
        custom_id, body = data["custom_id"], data["body"]
    except (ValueError, TypeError, KeyError):
        custom_id, body = "", {}
    if name_of(custom_id) != line.name:
        raise _fault("invalid_json_line", "This line has changed since it was checked.", line.number)
    return custom_id, body


def _lines(path: Path) -> Iterator[tuple[int, int, bytes]]:
    """Yields number, offset and bytes of each line. Only the beginning of a line that is too long is read into
    memory.
    """
    offset = 0
    with path.open("rb") as file:
        for number in range(1, 1 << 62):
            raw = file.readline(MAX_BODY_BYTES + 1)
            if not raw:
                return
            length = len(raw)
            while not raw.endswith(b"\n") and (rest := file.readline(MAX_BODY_BYTES)):
                length += len(rest)
                if rest.endswith(b"\n"):
                    break
            if raw.strip():
                yield number, offset, raw
            offset += length


def _checked(raw: bytes, endpoint: str, number: int, fields: FieldReport) -> str:
    """Returns the custom_id of a valid line; raises if it is not valid."""
    if len(raw) > MAX_BODY_BYTES:
        raise _fault("line_too_long", f"A line may have {MAX_BODY_BYTES} bytes.", number)
    try:
        data = exact_json.loads(raw)
    except InexactInteger as error:
        raise _fault("invalid_json_line", f"This line cannot be read as it is: {error}.", number) from None
    except orjson.JSONDecodeError as error:
        # The error's position is left out, because it would say "line 1" in every line.
        raise _fault("invalid_json_line", f"This line is not valid JSON: {error.msg}.", number) from None
    if not isinstance(data, dict):
        raise _fault("invalid_json_line", f"This line must be a JSON object, got {json_type(data)}.", number)
    if (brackets := raw.count(b"{") + raw.count(b"[")) > MAX_DEPTH and too_deep(data, brackets):
        raise _fault("invalid_json_line", f"This line is nested deeper than {MAX_DEPTH} levels.", number)
    for field in _FIELDS:
        if data.get(field) is None:
            raise _fault("missing_required_parameter", f"The field {field!r} is required.", number, field)
    for field in data:
        if field not in _FIELDS and not fields.unknown(field):
            raise _fault("unknown_parameter", f"{field}: this server does not know the field.", number, field)
    return _checked_values(data, endpoint, number)


def _checked_values(data: dict[str, object], endpoint: str, number: int) -> str:
    custom_id = data["custom_id"]
    if not isinstance(custom_id, str) or not 0 < len(custom_id) <= MAX_CUSTOM_ID:
        message = f"custom_id must be a string of 1 to {MAX_CUSTOM_ID} characters."
        raise _fault("invalid_custom_id", message, number, "custom_id")
    if data["method"] != "POST":
        raise _fault("invalid_method", "method must be 'POST'.", number, "method")
    if data["url"] != endpoint:
        raise _fault("mismatched_url", f"url must be {endpoint!r}, the endpoint of this batch.", number, "url")
    if not isinstance(data["body"], dict):
        message = f"body must be an object, got {json_type(data['body'])}."
        raise _fault("invalid_body", message, number, "body")
    return custom_id


def _fault(code: str, message: str, line: int, param: str | None = None) -> InputRefused:
    return InputRefused([BatchFault(code=code, message=message, param=param, line=line)])
