"""Numbers that several fronts write down for each other."""

from __future__ import annotations

from pathlib import Path

from mysglang.srt.managers.fronts import Board, Column


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
