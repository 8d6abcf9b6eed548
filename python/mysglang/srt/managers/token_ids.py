"""Lists of token ids -> int32 bytes, checked on the way.

A batch may hold half a million ids, each an object somewhere in memory: they are gone through once. Knows no request.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from mysglang.srt.utils.tokenizer import IDS_PIECE

Ints = npt.NDArray[np.int32]


def packed_ids(ids: Sequence[int]) -> bytes:
    """`ids` as int32 bytes; in pieces, between which other threads can run. Raises struct.error for what is no integer,
    or too large.
    """
    if len(ids) <= IDS_PIECE:
        return struct.pack(f"{len(ids)}i", *ids)
    starts = range(0, len(ids), IDS_PIECE)
    return b"".join([packed_ids(ids[start : start + IDS_PIECE]) for start in starts])


def packed_prompts(rows: Sequence[Sequence[int]], last: int) -> list[bytes] | None:
    """Each row as int32 bytes; None if anything in them is no token id from 0 to `last`."""
    try:
        packed = list(map(packed_ids, rows))
    except struct.error:
        return None
    whole: Ints = np.frombuffer(b"".join(packed), dtype=np.int32)
    if not within(whole, last):
        return None
    # True packs like 1, and is no token id.
    if (whole <= 1).any() and any(map(_has_bools, rows, packed)):
        return None
    return packed


def within(ids: Ints, last: int) -> bool:
    """Whether all are from 0 to `last`."""
    return bool(ids.min(initial=0) >= 0 and ids.max(initial=0) <= last)


def _has_bools(ids: Sequence[int], packed: bytes) -> bool:
    """In pieces, between which other threads can run."""
    small = np.flatnonzero(np.frombuffer(packed, dtype=np.int32) <= 1)
    for start in range(0, len(small), IDS_PIECE):
        if any(isinstance(ids[at], bool) for at in small[start : start + IDS_PIECE].tolist()):
            return True
    return False
