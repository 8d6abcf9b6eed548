"""Fanout: a link with several readers. All messages of one request go to the same reader.

The name of a request between processes ends in the number of the front that sent it, so its answers return to that
front. The hash of the name chooses one of several detokenizers. With a single reader, this module is not imported.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from mysglang.srt.messages.channels import Sender
from mysglang.srt.messages.codec import ToDetokenizer, ToTokenizer
from mysglang.srt.messages.control import DetokenizerBeat, HeartBeat
from mysglang.srt.messages.outputs import BatchStrOutput, BatchTokenIDOutput, Counters
from mysglang.srt.messages.packing import ID_BYTES, unpack_ids
from mysglang.srt.messages.wire_names import front_of

Rows = npt.NDArray[np.intp]
Batch = TypeVar("Batch", BatchTokenIDOutput, BatchStrOutput)


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
