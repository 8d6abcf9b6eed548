"""State that the fronts of a server share: numbers that each front records for the others, and the names of open
requests.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from mysglang.srt.managers import fronts
from mysglang.srt.managers.fronts import Board, Column, NoOthers, SharedNames, names_bytes


def test_each_writes_its_row_and_reads_all(tmp_path: Path) -> None:
    path = tmp_path / "board"
    boards = [Board.at(path, 3, front) for front in range(3)]
    path.unlink()
    for front, board in enumerate(boards):
        board.write(Column.OPEN_ANSWERS, 10**front)
        board.write(Column.REFUSED, 1)
    assert [board.total(Column.OPEN_ANSWERS) for board in boards] == [111] * 3
    boards[1].write(Column.OPEN_ANSWERS, 0)
    assert boards[0].total(Column.OPEN_ANSWERS) == 101
    assert boards[2].total(Column.REFUSED) == 3
    assert boards[2].total(Column.ACCEPTED) == 0


def test_alone() -> None:
    board = Board.alone()
    board.write(Column.FINISHED, 5)
    assert board.total(Column.FINISHED) == 5
    assert Board.alone().total(Column.FINISHED) == 0


def made(count: int) -> list[SharedNames]:
    memory = bytearray(names_bytes(count))
    return [SharedNames(memory, front) for front in range(count)]


def test_in_a_file(tmp_path: Path) -> None:
    here, there = (SharedNames.at(tmp_path / "names", 2, front) for front in range(2))
    assert here.note("k", ["a"]) is None
    assert there.note("k", ["b", "a", "c"]) == "a"
    assert here.note("k", ["b", "c"]) is None, "of those that were refused nothing stays"
    here.forget("k", ["a", "never there"])
    assert there.note("k", ["a"]) is None


def test_whatever_is_opened_and_closed_where() -> None:
    rng, known = random.Random(5), made(3)
    opened: dict[str, int] = {}
    for _ in range(3000):
        front, name = rng.randrange(3), f"r{rng.randrange(40)}"
        if name not in opened:
            others = rng.sample([f"r{number}" for number in range(40)], rng.randrange(3))
            names = list(dict.fromkeys([name, *(other for other in others if opened.get(other) != front)]))
            clash = {other for other in names if other in opened}
            found = known[front].note("k", names)
            assert (found in clash) if clash else (found is None)
            opened |= {} if clash else dict.fromkeys(names, front)
        elif rng.random() < 0.7:
            known[opened.pop(name)].forget("k", [name])
        else:
            elsewhere = (opened[name] + 1 + rng.randrange(2)) % 3
            assert known[elsewhere].note("k", [name]) == name


def test_a_full_bucket_costs_nothing_but_the_check(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fronts, "BUCKETS", 1)
    here, there = made(2)
    names = [f"r{number}" for number in range(fronts.WAYS + 3)]
    assert here.note("k", names) is None
    refused = [name for name in names if there.note("k", [name]) is not None]
    assert len(refused) == fronts.WAYS
    here.forget("k", names)
    there.forget("k", names)
    assert there.note("k", names[: fronts.WAYS]) is None


def test_a_server_with_one_front() -> None:
    alone = NoOthers()
    assert alone.note("k", ["a"]) is None
    alone.forget("k", ["a"])
    assert alone.note("k", ["a"]) is None
