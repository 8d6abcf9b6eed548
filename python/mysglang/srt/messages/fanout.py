"""Fanout: a link with several readers. All messages of one request go to the same reader.

The name of a request between processes ends in the number of the front that sent it, so its answers return to that
front. The hash of the name chooses one of several detokenizers. With a single reader, this module is not used.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from mysglang.srt.messages.channels import Push, Sender
from mysglang.srt.messages.codec import (
    ID_BYTES,
    ToDetokenizer,
    ToTokenizer,
    detokenizer_codec,
    tokenizer_codec,
    unpack_ids,
)
from mysglang.srt.messages.control import DetokenizerBeat, HeartBeat
from mysglang.srt.messages.outputs import BatchStrOutput, BatchTokenIDOutput, Counters

Rows = npt.NDArray[np.intp]
Batch = TypeVar("Batch", BatchTokenIDOutput, BatchStrOutput)


def wire_rid(rid: str, serial: int, front: int) -> str:
    """Returns the name of a request between the processes. `serial` distinguishes two requests to which a client gave
    the same name.
    """
    return f"{rid}@{serial}.{front}"


def rid_of(name: str) -> str:
    """Returns the name by which the client knows the request with this wire name."""
    return name[: name.rindex("@")]


def call_of(name: str) -> str:
    """Returns the part of a request's wire name that all requests of one call share."""
    return name[name.rfind("@") + 1 :]


def front_of(name: str) -> int:
    """Returns the number of the front that sent the request. It is the end of `name`, the request's name between
    processes.
    """
    # Few servers have more than ten.
    return int(name[-1]) if name[-2] == "." else int(name[name.rindex(".") + 1 :])


def to_fronts(endpoints: Sequence[str]) -> Sender[ToTokenizer]:
    """Returns the sending end of a link to all fronts."""
    pushes: list[Push[ToTokenizer]] = [Push(endpoint, tokenizer_codec()) for endpoint in endpoints]
    return pushes[0] if len(pushes) == 1 else ToFronts(pushes)


def to_detokenizers(endpoints: Sequence[str]) -> Sender[ToDetokenizer]:
    """Returns the sending end of a link to all detokenizers."""
    pushes: list[Push[ToDetokenizer]] = [Push(endpoint, detokenizer_codec()) for endpoint in endpoints]
    return pushes[0] if len(pushes) == 1 else ToDetokenizers(pushes)


class ToFronts:
    """Sends answers to the front that asked for them, replies to the front that sent the control request, and signs of
    life to all.
    """

    def __init__(self, fronts: Sequence[Sender[ToTokenizer]]) -> None:
        self._fronts = fronts

    def send(self, message: ToTokenizer) -> None:
        match message:
            case BatchStrOutput():
                for front, part in split(message, [front_of(rid) for rid in message.rids]):
                    self._fronts[front].send(part)
            case HeartBeat() | DetokenizerBeat():
                for each in self._fronts:
                    each.send(message)
            case _:
                # A question's number contains the front that asked it, see ControlClient.
                number: int = getattr(message, "id")  # noqa: B009  # of every reply, of no message of a front
                self._fronts[number % len(self._fronts)].send(message)


class ToDetokenizers:
    """Sends all tokens of a request to the same detokenizer. The hash is local to this process."""

    def __init__(self, detokenizers: Sequence[Sender[ToDetokenizer]]) -> None:
        self._detokenizers = detokenizers

    def send(self, message: ToDetokenizer) -> None:
        count = len(self._detokenizers)
        # A string keeps its hash, and a running request its string.
        for index, part in split(message, [hash(rid) % count for rid in message.rids]):
            self._detokenizers[index].send(part)


def split(batch: Batch, owners: Sequence[int]) -> list[tuple[int, Batch]]:
    """Returns the rows of each owner as a batch of their own; the whole batch if all have the same owner."""
    found = sorted(set(owners))
    if len(found) == 1:
        return [(found[0], batch)]
    column = np.asarray(owners)
    return [(owner, take(batch, np.flatnonzero(column == owner))) for owner in found]


def take(batch: Batch, rows: Rows) -> Batch:
    """Returns a batch with these rows only."""
    kept = rows.tolist()
    cut = _Columns(len(batch.rids), rows)
    fields: dict[str, Any] = {}
    for name in batch.__struct_fields__:
        value = getattr(batch, name)
        match value:
            case Counters():
                fields[name] = Counters(*(cut(getattr(value, column)) for column in value.__struct_fields__))
            case dict():
                fields[name] = _renumbered(value, kept) if value else value
            case list():
                fields[name] = [value[row] for row in kept]
            case bytes() if name != "token_ids":
                fields[name] = cut(value)
            case _:
                fields[name] = value
    fields["token_ids"] = _tokens(batch.token_ids, batch.token_counts, rows, cut)
    return type(batch)(**fields)


class _Columns:
    """Cuts columns of `count` items, of one or four bytes each, down to some rows."""

    def __init__(self, count: int, rows: Rows) -> None:
        self._count = count
        self._rows = rows

    def __call__(self, column: bytes) -> bytes:
        kind = np.uint8 if len(column) == self._count else np.int32
        return np.frombuffer(column, kind).take(self._rows).tobytes()


def _renumbered(values: dict[int, Any], kept: Sequence[int]) -> dict[int, Any]:
    place = {row: new for new, row in enumerate(kept)}
    return {place[row]: item for row, item in values.items() if row in place}


def _tokens(token_ids: bytes, token_counts: bytes, rows: Rows, cut: _Columns) -> bytes:
    counts = unpack_ids(token_counts)
    if len(token_ids) == len(token_counts) and (counts == 1).all():
        return cut(token_ids)
    ends = np.cumsum(counts, dtype=np.int64) * ID_BYTES
    starts = np.concatenate([[0], ends[:-1]])
    return b"".join(token_ids[start:end] for start, end in zip(starts[rows].tolist(), ends[rows].tolist(), strict=True))
