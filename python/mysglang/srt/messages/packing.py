"""Token ids and vectors as bytes, the form in which they cross a socket, and back as arrays.

`codec.list_ids` makes a list of token ids without numpy, for the detokenizer.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

ID_BYTES = 4
"""Bytes of a token id, and of every other number that travels as int32."""


def pack_ids(ids: list[int] | npt.NDArray[np.int32]) -> bytes:
    """Packs token ids, or other small numbers, as int32 bytes, which cross a socket instead of a list."""
    return np.asarray(ids, dtype=np.int32).tobytes()


def unpack_ids(data: bytes) -> npt.NDArray[np.int32]:
    """Returns the read-only array over `data`; no copy."""
    return np.frombuffer(data, dtype=np.int32)


def unpack_vectors(data: bytes, count: int) -> npt.NDArray[np.float32]:
    """Returns the read-only [count, size] array over float32 bytes, row by row; no copy."""
    return np.frombuffer(data, dtype=np.float32).reshape(count, -1)
