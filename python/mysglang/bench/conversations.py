"""Files of conversations: ShareGPT's JSON list, and the user's own JSON lines."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from mysglang.bench.refused import Refused


@dataclass(frozen=True, slots=True)
class Exchange:
    """A question with its answer, or with the length of one in tokens."""

    prompt: str
    answer: str
    output_len: int | None = None


def read_sharegpt(path: str) -> list[Exchange]:
    """Returns the first two turns of each conversation; shorter ones are left out. Raises Refused."""
    entries = _json(_read(path), path)
    if not isinstance(entries, list):
        raise Refused(f"{path} is not a list of conversations.")
    return list(_first_exchanges(entries))


def read_custom(path: str) -> list[Exchange]:
    """Reads a file of JSON lines, {"prompt": …, "output_len": …} or {"conversations": [question, answer]}. Raises
    Refused.
    """
    exchanges = []
    for number, line in enumerate(_read(path).splitlines(), 1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        entry = _json(line, where)
        found = _plain(entry) or next(_first_exchanges([entry]), None)
        if found is None:
            raise Refused(f"{where} has neither prompt (with output_len) nor two conversations.")
        exchanges.append(found)
    return exchanges


def _plain(entry: Any) -> Exchange | None:
    match entry:
        case {"prompt": str(prompt), "output_len": int(output_len)}:
            return Exchange(prompt, "", output_len)
        case {"prompt": str(prompt), "completion": str(answer)}:
            return Exchange(prompt, answer)
        case _:
            return None


def _first_exchanges(entries: list[Any]) -> Iterator[Exchange]:
    for entry in entries:
        match entry:
            case {"conversations": [first, second, *_]} | {"conversation": [first, second, *_]}:
                question, answer = _said(first), _said(second)
                if question is not None and answer is not None:
                    yield Exchange(question, answer)


def _said(turn: Any) -> str | None:
    match turn:
        case {"value": str(text)} | {"content": str(text)}:
            return text
        case _:
            return None


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise Refused(f"{path} cannot be read: {error.strerror}.") from None


def _json(text: bytes, where: str) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise Refused(f"{where} is not JSON: {error}.") from None
