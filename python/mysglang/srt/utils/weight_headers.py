"""Tensors as the headers of weight files describe them, whatever the format, and limits for reading. No torch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from mysglang.srt.errors import ConfigError
from mysglang.srt.utils.plain_files import MIB

MAX_TENSORS = 1 << 17
"""Limit for one checkpoint. The largest known one has about 92,000."""

MAX_HEADERS = 128 * MIB
"""Bytes of all headers of a checkpoint. The largest known one has about 12 MiB, for 92,000 tensors."""

MAX_DIMS = 8
"""Limit for one tensor."""


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """Header entry of one tensor."""

    name: str
    """Name in Hugging Face's checkpoints, by which the model knows it."""
    shape: tuple[int, ...]
    file: str
    """The name of its file."""

    @property
    def num_values(self) -> int:
        return math.prod(self.shape)


class HeaderRoom:
    """How many bytes the headers of one checkpoint may still have. `limit` is all of them."""

    def __init__(self, limit: int = MAX_HEADERS) -> None:
        self._limit = limit
        self._left = limit

    def take(self, path: Path, num_bytes: int) -> None:
        """A header of the file at `path` is about to be read. Raises ConfigError if it is too long."""
        if num_bytes > self._left:
            raise ConfigError(
                f"{path}: its header would have {num_bytes} bytes, and the headers of a checkpoint have at most "
                f"{self._limit} together; download it again"
            )
        self._left -= num_bytes


def damaged(path: Path, why: str) -> ConfigError:
    return ConfigError(f"{path} is damaged or incomplete ({why}); download it again")
