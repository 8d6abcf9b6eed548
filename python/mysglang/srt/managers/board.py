"""Board: numbers that each front of a server writes down for the others, in memory that all of them share.

A row for each front, written by that front alone; whoever reads adds the rows up. So what is bounded or counted for the
whole server (open answers above all) holds for all fronts together, without asking anybody. A server with one front has
a board of one row.
"""

from __future__ import annotations

import mmap
from enum import IntEnum
from pathlib import Path

NUMBER_BYTES = 8


class Column(IntEnum):
    """What a front writes down."""

    OPEN_ANSWERS = 0
    """Answers that are not complete."""
    OPEN_REQUESTS = 1
    """Requests by HTTP that are not answered to their end."""
    SLOW_CLIENTS_CUT = 2
    ACCEPTED = 3
    """From here on to REFUSED as in FrontCounters."""
    FINISHED = 4
    ABORTED = 5
    TIMED_OUT = 6
    REFUSED = 7
    NAMES = 8
    """By which clients know open requests."""


class Board:
    """One front's view: it writes its own row and reads all."""

    def __init__(self, memory: mmap.mmap | bytearray, front: int) -> None:
        self._cells = memoryview(memory).cast("q")
        self._first = front * len(Column)

    @classmethod
    def alone(cls) -> Board:
        """Of the only front of a server."""
        return cls(bytearray(board_bytes(1)), 0)

    @classmethod
    def at(cls, path: Path, num_fronts: int, front: int) -> Board:
        """The one in the file `path`, which is made if it is not there. The file may be removed afterwards."""
        with path.open("a+b") as file:
            file.truncate(board_bytes(num_fronts))
            return cls(mmap.mmap(file.fileno(), board_bytes(num_fronts)), front)

    def write(self, column: Column, number: int) -> None:
        """In this front's row."""
        self._cells[self._first + column] = number

    def total(self, column: Column) -> int:
        """Of all fronts."""
        return sum(self._cells[column :: len(Column)])


def board_bytes(num_fronts: int) -> int:
    return num_fronts * len(Column) * NUMBER_BYTES
