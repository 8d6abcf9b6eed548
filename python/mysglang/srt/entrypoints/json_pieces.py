"""JSON that is long to write, written in pieces: between two of them another thread can go on.

orjson keeps all threads out while it writes. Called in a thread, this keeps the event loop's out for a moment only.
"""

from __future__ import annotations

from collections.abc import Iterator

import orjson

PIECE = 1 << 12
"""Numbers or texts that are written in one go: some tenths of a millisecond."""


def in_pieces(data: object) -> bytes:
    """Returns the JSON of `data`, encoded piece by piece. The elements of a list are assumed to be about as large as
    the first ones.
    """
    return b"".join(_pieces(data))


def _pieces(data: object) -> Iterator[bytes]:
    if _weight(data) <= PIECE:
        yield orjson.dumps(data)
    elif isinstance(data, dict):
        yield b"{"
        for place, (name, value) in enumerate(data.items()):
            yield (b"," if place else b"") + orjson.dumps(name) + b":"
            yield from _pieces(value)
        yield b"}"
    elif isinstance(data, list | tuple):
        yield b"["
        each = _weight_of_one(data)
        if each > PIECE:
            for place, value in enumerate(data):
                yield b"," if place else b""
                yield from _pieces(value)
        else:
            step = PIECE // each
            for start in range(0, len(data), step):
                yield (b"," if start else b"") + orjson.dumps(data[start : start + step])[1:-1]
        yield b"]"
    else:
        yield orjson.dumps(data)


def _weight(data: object) -> int:
    """Returns about how many numbers and strings a value has."""
    if isinstance(data, list | tuple):
        return len(data) * _weight_of_one(data)
    if isinstance(data, dict):
        return sum(map(_weight, data.values())) + 1
    return 1


def _weight_of_one(data: list[object] | tuple[object, ...]) -> int:
    # The first may be null, where nothing stood before it.
    return max((_weight(value) for value in data[:2]), default=1) or 1
