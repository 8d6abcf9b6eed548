"""OpenNames: under which names requests are open at the other fronts of a server, so that no two have the same.

    front 0   | bucket 0: 16 keys | bucket 1: 16 keys | ...        written by front 0 alone, read by all
    front 1   | ...

A table in memory that all fronts share. A key is eight bytes of a name's digest, and says its bucket; 0 is nobody's. A
name whose bucket is full is not noted: of ten thousand open ones hardly ever one.
"""

from __future__ import annotations

import hashlib
import mmap
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

BUCKETS, WAYS = 4096, 16
KEY_BYTES = 8

Keys = npt.NDArray[np.int64]


class OpenNames(Protocol):
    """What one front asks."""

    def note(self, names: Collection[str]) -> str | None:
        """Note that requests of these names, none of which is noted here, are open. One of them that is open at another
        front, if there is one: then none is noted.
        """
        ...

    def forget(self, names: Iterable[str]) -> None:
        """They are not open any more, if they were."""
        ...


class NoOthers:
    """The null object: of a server's only front, which knows its own names."""

    def note(self, names: Collection[str]) -> str | None:
        return None

    def forget(self, names: Iterable[str]) -> None:
        pass


class SharedNames:
    """Implements OpenNames."""

    def __init__(self, memory: mmap.mmap | bytearray, front: int) -> None:
        self._table: Keys = np.frombuffer(memory, dtype=np.int64).reshape(-1, BUCKETS, WAYS)
        self._own: Keys = self._table[front]
        self._others = np.delete(np.arange(len(self._table)), front)
        self._places: dict[str, tuple[int, int]] = {}
        """Bucket and way of what this front has noted."""

    @classmethod
    def at(cls, path: Path, num_fronts: int, front: int) -> SharedNames:
        """Those in the file `path`, which is made if it is not there. The file may be removed afterwards."""
        size = names_bytes(num_fronts)
        with path.open("a+b") as file:
            file.truncate(size)
            return cls(mmap.mmap(file.fileno(), size), front)

    def note(self, names: Collection[str]) -> str | None:
        keys = np.asarray([_key(name) for name in names], dtype=np.int64)
        buckets = keys % BUCKETS
        # Written down first: of two fronts that do so at the same moment, both may be refused, but never both let in.
        for name, key, bucket in zip(names, keys.tolist(), buckets.tolist(), strict=True):
            free = np.flatnonzero(self._own[bucket] == 0)
            if len(free):
                self._own[bucket, free[0]] = key
                self._places[name] = (bucket, int(free[0]))
        found = (self._table[self._others[:, None], buckets] == keys[:, None]).any(axis=(0, 2))
        if not found.any():
            return None
        self.forget(names)
        return list(names)[int(found.argmax())]

    def forget(self, names: Iterable[str]) -> None:
        for name in names:
            if (place := self._places.pop(name, None)) is not None:
                self._own[place] = 0


def _key(name: str) -> int:
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=KEY_BYTES).digest(), "little", signed=True) or 1


def names_bytes(num_fronts: int) -> int:
    return num_fronts * BUCKETS * WAYS * KEY_BYTES
