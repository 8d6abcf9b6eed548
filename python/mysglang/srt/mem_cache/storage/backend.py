"""StorageBackend: blocks of keys and values outside of this process, by name. What stands behind it may be slow, full,
damaged or gone: then there is less to find, and nothing else happens.

A block is a fixed number of pages. Its name is a hash of its tokens and of the name before it, and the first one goes
on from what the bytes depend on beside: the model, its dtype, the layout of a page, the namespace. So equal names mean
equal bytes, on any server. Seam for other stores (Mooncake, NIXL, 3FS): one class with these verbs.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from typing import Protocol

import numpy as np

from mysglang.srt.forward.worker_batch import Ints


class StorageBackend(Protocol):
    """Stores blocks of pages under keys. Called on threads that may wait; each method is called by one thread at a
    time.
    """

    def exists(self, keys: Sequence[str]) -> int:
        """Returns how many of the first keys are there, up to the first that is not."""
        ...

    def read(self, key: str) -> bytes | None:
        """Returns the data that was written under the key; None if it is absent, incomplete or damaged."""
        ...

    def write(self, key: str, data: bytes) -> bool:
        """Stores the data completely or not at all; returns True if it was stored. Existing data may stay as it is."""
        ...


def block_keys(identity: str, namespace: str, ids: Ints, block_tokens: int) -> list[str]:
    """Returns names of the whole blocks of `ids`, the first of which begins a prompt."""
    before = sha256(repr((identity, namespace)).encode()).digest()
    data = np.ascontiguousarray(ids, dtype="<i4").tobytes()
    width = 4 * block_tokens
    keys = []
    for start in range(0, len(data) // width * width, width):
        before = sha256(before + data[start : start + width]).digest()
        keys.append(before.hex())
    return keys
