"""Fronts: one front among those of its server, and what all fronts of a server share.

    Board        numbers that each front writes down for the others: open answers above all
    OpenNames    the names under which requests are open at the other fronts, so that no two have the same
    FrontHeld    what one front holds for its requests, as plain numbers for those who look for a leak
    Fronts       the number of a TokenizerManager's front, and its access to the others

The board and the names are in memory that all fronts share. So limits and counts of the whole server hold for all
fronts together, and fronts need not send messages to each other for them:

    board     front 0   | a number for each Column |           written by front 0 alone, read by all
              front 1   | ...
    names     front 0   | bucket 0: 16 keys | bucket 1: 16 keys | ...
              front 1   | ...
"""

from __future__ import annotations

import hashlib
import mmap
from array import array
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from mysglang.srt.managers.request_metrics import NoMetrics, RequestMetrics
from mysglang.srt.messages.channels import Sender
from mysglang.srt.messages.codec import ToTokenizer
from mysglang.srt.utils.disk import map_shared

NUMBER_BYTES = 8
BUCKETS, WAYS = 4096, 16
KEY_BYTES = 8
Keys = npt.NDArray[np.int64]


class Column(IntEnum):
    """A column of the board: a number that each front records."""

    OPEN_ANSWERS = 0
    """Answers that are not complete."""
    OPEN_REQUESTS = 1
    """Requests by HTTP that are not answered to their end."""
    SLOW_CLIENTS_CUT = 2
    ACCEPTED = 3
    """The columns from here to REFUSED are those of FrontCounters, and are written together with NAMES."""
    FINISHED = 4
    ABORTED = 5
    TIMED_OUT = 6
    REFUSED = 7
    NAMES = 8
    """Number of open requests by the names that clients gave them."""


NUM_COLUMNS = len(Column)


class Board:
    """One front's view of the board: it writes its own row and reads all rows. A server with one front has one row."""

    def __init__(self, memory: mmap.mmap | bytearray, front: int) -> None:
        self._cells = memoryview(memory).cast("q")
        self._first = front * NUM_COLUMNS

    @classmethod
    def alone(cls) -> Board:
        """Returns the board of a server with a single front."""
        return cls(bytearray(board_bytes(1)), 0)

    @classmethod
    def at(cls, path: Path, num_fronts: int, front: int) -> Board:
        """Returns the board in the file `path`, which is created if it does not exist. The file may be removed
        afterwards.
        """
        return cls(map_shared(path, board_bytes(num_fronts)), front)

    def write(self, column: Column, number: int) -> None:
        """Writes a number into this front's row."""
        self._cells[self._first + column] = number

    def write_all(self, first: Column, *numbers: int) -> None:
        """Writes numbers into the columns of this front's row from `first` on."""
        start = self._first + first
        self._cells[start : start + len(numbers)] = array("q", numbers)

    def total(self, column: Column) -> int:
        """Returns the sum of a column over all fronts."""
        return sum(self._cells[column::NUM_COLUMNS])


def board_bytes(num_fronts: int) -> int:
    return num_fronts * NUM_COLUMNS * NUMBER_BYTES


class OpenNames(Protocol):
    """The names of all open requests, as one front reads and writes them."""

    def note(self, owner: str, names: Collection[str]) -> str | None:
        """Records that requests of `owner` with these names, none of which is recorded here, are open. If one of the
        names is open at another front, records none, and returns that name.
        """
        ...

    def forget(self, owner: str, names: Collection[str]) -> None:
        """Removes names of requests that are no longer open."""
        ...


class NoOthers:
    """A null object for a server with one front, which knows its own names."""

    def note(self, owner: str, names: Collection[str]) -> str | None:
        return None

    def forget(self, owner: str, names: Collection[str]) -> None:
        pass


class SharedNames:
    """Implements OpenNames as a table in memory that all fronts share.

    A key is eight bytes of the digest of an owner and a name, and says its bucket; 0 stands for no name. A name whose
    bucket is full is not noted: of ten thousand open names hardly ever one.
    """

    def __init__(self, memory: mmap.mmap | bytearray, front: int) -> None:
        self._table: Keys = np.frombuffer(memory, dtype=np.int64).reshape(-1, BUCKETS, WAYS)
        self._own: Keys = self._table[front]
        self._others = np.delete(np.arange(len(self._table)), front)
        self._places: dict[tuple[str, str], tuple[int, int]] = {}
        """Owner and name -> bucket and way, for the names that this front has noted."""

    @classmethod
    def at(cls, path: Path, num_fronts: int, front: int) -> SharedNames:
        """Returns the table in the file `path`, which is made if it does not exist. The file may be removed
        afterwards.
        """
        return cls(map_shared(path, names_bytes(num_fronts)), front)

    def note(self, owner: str, names: Collection[str]) -> str | None:
        keys = np.asarray([_key(owner, name) for name in names], dtype=np.int64)
        buckets = keys % BUCKETS
        # Written down first: of two fronts that do so at the same moment, both may be refused, but never both let in.
        for name, key, bucket in zip(names, keys.tolist(), buckets.tolist(), strict=True):
            free = np.flatnonzero(self._own[bucket] == 0)
            if len(free):
                self._own[bucket, free[0]] = key
                self._places[owner, name] = (bucket, int(free[0]))
        found = (self._table[self._others[:, None], buckets] == keys[:, None]).any(axis=(0, 2))
        if not found.any():
            return None
        self.forget(owner, names)
        return list(names)[int(found.argmax())]

    def forget(self, owner: str, names: Collection[str]) -> None:
        for name in names:
            if (place := self._places.pop((owner, name), None)) is not None:
                self._own[place] = 0


def _key(owner: str, name: str) -> int:
    # Names of API keys have a fixed length, so no two of them share an entry.
    digest = hashlib.blake2b(f"{owner}/{name}".encode(), digest_size=KEY_BYTES).digest()
    return int.from_bytes(digest, "little", signed=True) or 1


def names_bytes(num_fronts: int) -> int:
    return num_fronts * BUCKETS * WAYS * KEY_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontHeld:
    """Objects that one front holds for its requests. All fields except the last two are 0 when no request is open."""

    open_requests: int
    names: int
    """Names by which clients know open requests."""
    questions: int
    """Questions of this front that the scheduler has not answered yet."""
    open_texts: int
    """Requests of which the detokenizer holds text, as of its last sign of life."""
    open_texts_known_at: float
    """Seconds of the AWAKE clock at that moment; 0 before the first."""
    counters: Mapping[str, int]
    """Answers asked for since the start, by what became of them."""


@dataclass(frozen=True, slots=True)
class Fronts:
    """One front among the fronts of its server, as its TokenizerManager knows them. The default is a server's only
    front.
    """

    index: int = 0
    """Number of this front; 0 is the server's main process."""
    count: int = 1
    others: Sequence[Sender[ToTokenizer]] = ()
    board: Board = field(default_factory=Board.alone)
    names: OpenNames = field(default_factory=NoOthers)
    """Under which requests are open at other fronts."""
    metrics: RequestMetrics = field(default_factory=NoMetrics)
    """Receives the events of this front's requests, and reports the totals of all fronts."""

    def notify(self, message: ToTokenizer) -> None:
        """Sends the message to all other fronts."""
        for other in self.others:
            other.send(message)
