"""RecordFolder: what is known of files and of batches, one JSON file for each record: FOLDER/ID.json."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Generic, Protocol, TypeVar

import msgspec

from mysglang.srt.errors import ConfigError
from mysglang.srt.utils.disk import remove_unfinished, write_atomically
from mysglang.srt.utils.plain_files import read_plain

logger = logging.getLogger(__name__)

MAX_RECORD_BYTES = 1 << 20
"""More than any record has. A larger file is none."""


class Record(Protocol):
    """A msgspec struct with an id that is safe as a file's name."""

    @property
    def id(self) -> str: ...


Kind = TypeVar("Kind", bound=Record)


class RecordFolder(Generic[Kind]):
    """Everything here blocks."""

    def __init__(self, path: Path, kind: type[Kind]) -> None:
        self.path = path
        self._kind = kind

    def load(self) -> tuple[list[Kind], set[str]]:
        """All records, in the order of their ids; and the ids of those that cannot be read. These are left alone, and
        said once. Raises OSError if the folder itself is not usable.
        """
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        remove_unfinished(self.path)
        records, damaged = [], set()
        for path in sorted(self.path.glob("*.json")):
            try:
                records.append(self._read(path))
            # Text that is no UTF-8 is a ValueError of Python's own, not msgspec's.
            except (ConfigError, ValueError) as error:
                logger.warning("%s is not readable and is left alone: %s", path, error)
                damaged.add(path.stem)
        return records, damaged

    def write(self, record: Kind) -> int:
        """Returns how many bytes the record has. Raises OSError; then the record is what it was."""
        data = msgspec.json.encode(record)
        write_atomically(self._path(record.id), data)
        return len(data)

    def remove(self, record_id: str) -> None:
        self._path(record_id).unlink(missing_ok=True)

    def _read(self, path: Path) -> Kind:
        record = msgspec.json.decode(read_plain(path, MAX_RECORD_BYTES), type=self._kind)
        if record.id != path.stem:
            raise ValueError("it is the record of something else")
        return record

    def _path(self, record_id: str) -> Path:
        return self.path / f"{record_id}.json"
