"""Messages for several readers: every row arrives once, whole, where it belongs."""

from __future__ import annotations

import random

from mysglang.srt.messages.codec import ToDetokenizer, ToTokenizer
from mysglang.srt.messages.control import DetokenizerBeat, FlushCacheReqOutput
from mysglang.srt.messages.fanout import ToDetokenizers, ToFronts, split
from mysglang.srt.messages.outputs import (
    BatchStrOutput,
    BatchTokenIDOutput,
    Counters,
    FinishReason,
    Length,
    RowLogprobs,
)
from mysglang.srt.messages.packing import pack_ids, unpack_ids
from mysglang.srt.messages.wire_names import front_of, wire_rid


class Kept:
    """A link that keeps what goes in."""

    def __init__(self) -> None:
        self.messages: list[ToTokenizer | ToDetokenizer] = []

    def send(self, message: ToTokenizer | ToDetokenizer) -> None:
        self.messages.append(message)


def tokens(rids: list[str], rng: random.Random, *, one_each: bool = False) -> BatchTokenIDOutput:
    """A batch in which every number tells its row."""
    counts = [1 if one_each else rng.randrange(4) for _ in rids]
    rows = range(len(rids))
    finished: dict[int, FinishReason] = {row: Length(row) for row in rows if row % 3 == 0}
    return BatchTokenIDOutput(
        rids=rids,
        token_ids=pack_ids([row for row, count in enumerate(counts) for _ in range(count)]),
        token_counts=pack_ids(counts),
        decode_flags=bytes(row % 4 for row in rows),
        counters=Counters(*(pack_ids([10 * column + row for row in rows]) for column in range(4))),
        finished=finished,
        logprobs={row: RowLogprobs(output_vals=bytes([row])) for row in rows if row % 4 == 1},
        vectors={row: bytes([row]) for row in rows if row % 5 == 2},
        stops={row: [str(row)] for row in rows if row % 2},
    )


def rows(batch: BatchTokenIDOutput) -> dict[str, object]:
    """Content of a batch, by request."""
    found: dict[str, object] = {}
    start = 0
    counters = [unpack_ids(getattr(batch.counters, name)).tolist() for name in batch.counters.__struct_fields__]
    for row, (rid, count) in enumerate(zip(batch.rids, unpack_ids(batch.token_counts).tolist(), strict=True)):
        ids = unpack_ids(batch.token_ids).tolist()[start : start + count]
        start += count
        maps = [mapping.get(row) for mapping in (batch.finished, batch.logprobs, batch.vectors, batch.stops)]
        found[rid] = (ids, batch.decode_flags[row], [column[row] for column in counters], maps)
    assert start * 4 == len(batch.token_ids)
    return found


def test_each_row_goes_to_its_owner_as_it_was() -> None:
    rng = random.Random(0)
    for turn in range(50):
        batch = tokens([f"r{i}" for i in range(rng.randrange(1, 12))], rng, one_each=turn % 2 == 0)
        owners = [rng.randrange(3) for _ in batch.rids]
        parts = split(batch, owners)
        assert [owner for owner, _ in parts] == sorted(set(owners))
        together: dict[str, object] = {}
        for owner, part in parts:
            assert part.rids == [rid for rid, of in zip(batch.rids, owners, strict=True) if of == owner]
            together |= rows(part)
        assert together == rows(batch)


def test_whose_a_name_is() -> None:
    for front in (0, 7, 9, 10, 123):
        assert front_of(wire_rid("a.1@2", 35, front)) == front


def test_of_one_owner_the_batch_itself() -> None:
    batch = tokens(["a", "b"], random.Random(0))
    [(owner, part)] = split(batch, [1, 1])
    assert owner == 1 and part is batch


def test_a_request_has_one_detokenizer() -> None:
    links = [Kept() for _ in range(3)]
    sender = ToDetokenizers(links)
    rids = [wire_rid(f"r{i}", i, 0) for i in range(30)]
    for _ in range(2):
        sender.send(tokens(rids, random.Random(0)))
    seen = [[rid for message in link.messages for rid in message.rids] for link in links]  # type: ignore[union-attr]
    assert sorted(rid for of in seen for rid in of) == sorted(2 * rids)
    assert all(of.count(rid) == 2 for of in seen for rid in of)
    assert sum(map(bool, seen)) == 3


def test_texts_replies_and_signs_of_life() -> None:
    links = [Kept(), Kept()]
    sender = ToFronts(links)
    rids = [wire_rid("a.1@2.1", 5, 0), wire_rid("b", 6, 1)]
    assert [front_of(rid) for rid in rids] == [0, 1]
    column = pack_ids([1, 1])
    sender.send(
        BatchStrOutput(
            rids=rids,
            texts=["x", "y"],
            token_ids=pack_ids([7, 8]),
            token_counts=column,
            counters=Counters(column, column, column, column),
        )
    )
    assert [link.messages[0].texts for link in links] == [["x"], ["y"]]  # type: ignore[union-attr]
    sender.send(FlushCacheReqOutput(id=3, success=True))
    sender.send(DetokenizerBeat())
    assert [len(link.messages) for link in links] == [2, 3]
