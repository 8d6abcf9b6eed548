"""RecordTables: what is known of files and of batches, in one SQLite database: FOLDER/records.sqlite3.

    files      id, owner, created_at, size, ends_at, hidden, record     batches      the same columns

`record` is the JSON of a FileRecord or BatchRecord; the other columns repeat the parts that queries need. A write is on
the disk when it returns: each commit syncs the log, and SQLite finishes or drops a torn commit at the next start.

Two connections. The event loop reads through one of them, and never waits for a disk's sync. Threads write through the
other one, one at a time. Every sqlite3.Error leaves this module as an OSError.
"""

from __future__ import annotations

import errno
import logging
import os
import sqlite3
import threading
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Generic, Protocol, TypeVar

import msgspec

from mysglang.srt.errors import ConfigError
from mysglang.srt.utils.disk import remove_unfinished
from mysglang.srt.utils.plain_files import is_there, read_plain

logger = logging.getLogger(__name__)

DATABASE = "records.sqlite3"

VERSION = 1
"""Version of the tables. A database of another version is refused."""

MAX_RECORD_BYTES = 1 << 20
"""More than any record has. A larger JSON file is not a record."""

_TABLES = ("files", "batches")

_SCHEMA = """
CREATE TABLE {table} (
    number INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    owner TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    size INTEGER NOT NULL,
    ends_at INTEGER,
    hidden INTEGER NOT NULL DEFAULT 0,
    record TEXT NOT NULL
);
CREATE INDEX {table}_by_owner ON {table} (owner, created_at, id, size, hidden);
CREATE INDEX {table}_by_end ON {table} (ends_at);
"""

_REPLACE = """DO UPDATE SET
    owner = excluded.owner, created_at = excluded.created_at, size = excluded.size, ends_at = excluded.ends_at,
    hidden = 0, record = excluded.record"""

_DAMAGED = ".damaged"
"""Part of the name of a damaged database that was set aside."""

_NO_ROOM = frozenset({sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_WRITE})
"""SQLite reports a full disk as the first, and an exceeded quota or limit of a file's size as the second."""


class Record(Protocol):
    """A msgspec struct that is stored as a row."""

    @property
    def id(self) -> str: ...
    @property
    def owner(self) -> str: ...
    @property
    def created_at(self) -> int: ...
    @property
    def size(self) -> int | None:
        """Bytes that count against the limit of the table; None: the bytes of the record's JSON."""
        ...

    @property
    def ends_at(self) -> int | None:
        """Unix seconds from which on the record may be removed; None while it must stay."""
        ...


Kind = TypeVar("Kind", bound=Record)


class Database:
    """The connections to the database. Every call blocks; only reading is quick enough for an event loop."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / DATABASE
        self._writing = threading.Lock()
        self._connections = ExitStack()

    def open(self) -> None:
        """Creates the tables where there are none. Raises OSError, also for a database of which nothing can be read."""
        with _os_errors(self._path):
            if is_there(self._path):
                if not self._path.is_file():
                    # SQLite would wait for the other end of a pipe.
                    raise OSError(errno.EINVAL, "Not a regular file", str(self._path))
                if self._path.stat().st_size == 0:
                    # SQLite would take a file that was cut to nothing for a new database.
                    _set_aside(self._path)
            try:
                self._writer = _checked(self._path)
            except sqlite3.DatabaseError as error:
                if _code(error) not in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
                    raise
                _salvage(self._path, error)
                self._writer = _checked(self._path)
            self._connections.enter_context(closing(self._writer))
            self._reader = self._connections.enter_context(closing(_connect(self._path)))

    @property
    def whole(self) -> bool:
        """False if a damaged database is beside this one: then there may have been records that it lacks."""
        return not any(self._path.parent.glob(f"{DATABASE}{_DAMAGED}*"))

    def close(self) -> None:
        # A thread may be in the middle of a write whose result no caller waits for any more.
        with self._writing:
            self._connections.close()

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        with _os_errors(self._path):
            yield self._reader

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """Opens a transaction: on exit all changes are on the disk, or none is. Raises OSError."""
        with self._writing, _os_errors(self._path):
            self._writer.execute("BEGIN IMMEDIATE")
            try:
                yield self._writer
                self._writer.execute("COMMIT")
            except BaseException:
                # A full disk may have ended the transaction already.
                if self._writer.in_transaction:
                    self._writer.execute("ROLLBACK")
                raise


class RecordTable(Generic[Kind]):
    """One of the two tables. `load` must be called first."""

    def __init__(self, database: Database, name: str, kind: type[Kind]) -> None:
        assert name in _TABLES, "the name becomes part of statements"
        self._database = database
        self._name = name
        self._decoder = msgspec.json.Decoder(kind)

    def load(self, folder: Path) -> None:
        """Takes over the records that an older version kept as FOLDER/ID.json, and hides rows that cannot be read. Such
        rows and files are left alone, and logged once. Raises OSError if the folder is not usable.
        """
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        remove_unfinished(folder)
        self._take_over(folder)
        with self._database.writing() as db:
            db.execute(f"UPDATE {self._name} SET hidden = 0 WHERE hidden")
            for record_id in self._unreadable(db):
                self._hide(db, record_id)

    def get(self, record_id: str) -> Kind | None:
        with self._database.reading() as db:
            query = f"SELECT record FROM {self._name} WHERE id = ? AND NOT hidden"
            row = db.execute(query, (record_id,)).fetchone()
        return None if row is None else self._decoder.decode(row[0])

    def has(self, record_id: str) -> bool:
        """True if there is a row, whether or not it can be read."""
        with self._database.reading() as db:
            return db.execute(f"SELECT 1 FROM {self._name} WHERE id = ?", (record_id,)).fetchone() is not None

    def select(self, where: str = "", *values: object, oldest_first: bool = False) -> Iterator[Kind]:
        """Yields the records for which the condition holds, the newest first. Rows are read one by one as the caller
        asks.
        """
        order = "created_at, id" if oldest_first else "created_at DESC, id DESC"
        condition = f"NOT hidden AND {where}" if where else "NOT hidden"
        with self._database.reading() as db:
            for (text,) in db.execute(f"SELECT record FROM {self._name} WHERE {condition} ORDER BY {order}", values):
                yield self._decoder.decode(text)

    def used(self) -> dict[str, tuple[int, int]]:
        """Returns the number of rows and the sum of their sizes, for each owner."""
        with self._database.reading() as db:
            query = f"SELECT owner, count(*), sum(size) FROM {self._name} WHERE NOT hidden GROUP BY owner"
            return {owner: (count, size) for owner, count, size in db.execute(query)}

    def write(self, record: Kind) -> None:
        """Insert the record, or replace the one of this id. Raises OSError; then everything is as it was."""
        with self._database.writing() as db:
            self._put(db, record, _REPLACE)

    def hide(self, record_id: str) -> None:
        """Hides the record until the next `load`, as if it did not exist."""
        with self._database.writing() as db:
            self._hide(db, record_id)

    def remove(self, record_id: str) -> None:
        with self._database.writing() as db:
            db.execute(f"DELETE FROM {self._name} WHERE id = ?", (record_id,))

    def remove_oldest(self, where: str, *values: object) -> int | None:
        """Remove the oldest record for which the condition holds, and return its size; None if there is none."""
        oldest = f"SELECT id FROM {self._name} WHERE NOT hidden AND {where} ORDER BY created_at, number LIMIT 1"
        with self._database.writing() as db:
            removed = db.execute(f"DELETE FROM {self._name} WHERE id = ({oldest}) RETURNING size", values).fetchall()
        return removed[0][0] if removed else None

    def _unreadable(self, db: sqlite3.Connection) -> list[str]:
        """Returns the ids of rows that are not valid records, and logs each."""
        ids = []
        for record_id, text in db.execute(f"SELECT id, record FROM {self._name}"):
            try:
                self._read(text, record_id)
            except ValueError as error:
                logger.warning(
                    "The record of %s cannot be read: clients cannot use it, and it is kept on disk. %s",
                    record_id,
                    error,
                )
                ids.append(record_id)
        return ids

    def _hide(self, db: sqlite3.Connection, record_id: str) -> None:
        db.execute(f"UPDATE {self._name} SET hidden = 1 WHERE id = ?", (record_id,))

    def _put(self, db: sqlite3.Connection, record: Kind, or_else: str) -> None:
        data = msgspec.json.encode(record)
        size = len(data) if record.size is None else record.size
        row = (record.id, record.owner, record.created_at, size, record.ends_at, data.decode())
        columns = "id, owner, created_at, size, ends_at, record"
        db.execute(f"INSERT INTO {self._name} ({columns}) VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (id) {or_else}", row)

    def _take_over(self, folder: Path) -> None:
        taken = []
        with self._database.writing() as db:
            for path in sorted(folder.glob("*.json")):
                try:
                    record = self._read(read_plain(path, MAX_RECORD_BYTES), path.stem)
                # Text that is not UTF-8 is a ValueError of Python's own, not msgspec's.
                except (ConfigError, ValueError) as error:
                    logger.warning("%s cannot be read, so it was not moved into the database: %s", path, error)
                    continue
                self._put(db, record, "DO NOTHING")
                taken.append(path)
        # After a crash here the next start finds these files again, and their rows, which are the same.
        for path in taken:
            path.unlink()
        if taken:
            logger.warning(
                "%d records of an older version were moved from %s to %s. Older versions cannot read them there.",
                len(taken),
                folder / "*.json",
                DATABASE,
            )

    def _read(self, text: str | bytes, record_id: str) -> Kind:
        record = self._decoder.decode(text)
        if record.id != record_id:
            raise ValueError("it is the record of something else")
        return record


def _connect(path: Path) -> sqlite3.Connection:
    # The lock of `Database`, and the event loop, see to it that each connection has one user at a time.
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    # Text that is not UTF-8 must come as far as the check of `load`, which names the record.
    connection.text_factory = lambda data: data.decode(errors="replace")
    return connection


def _checked(path: Path) -> sqlite3.Connection:
    """Opens the database, and checks that it is not damaged. Raises sqlite3.Error if it is, and OSError if another
    version of the server wrote it.
    """
    # SQLite would let everybody on this machine read the file.
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    connection = _connect(path)
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        # Damage to the log is silent: commits behind it are lost. So the log is emptied after each commit.
        connection.execute("PRAGMA wal_autocheckpoint = 1")
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version == 0:
            schema = "".join(_SCHEMA.format(table=table) for table in _TABLES)
            connection.executescript(f"BEGIN; {schema} PRAGMA user_version = {VERSION}; COMMIT;")
        elif version != VERSION:
            reason = f"its tables are of version {version}, and this server knows version {VERSION}"
            raise OSError(errno.EINVAL, reason, str(path))
        (found,) = connection.execute("PRAGMA integrity_check(1)").fetchone()
        if found != "ok":
            damage = sqlite3.DatabaseError(found)
            damage.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
            raise damage
    except BaseException:
        connection.close()
        raise
    return connection


def _salvage(path: Path, damage: sqlite3.Error) -> None:
    """Replaces a damaged database by a new one, with every row that can still be read. The damaged one stays beside it.
    Raises OSError if nothing can be read, and changes nothing then, so that the old one may be repaired by hand.
    """
    rows = {}
    with closing(_connect(path)) as old:
        for table in _TABLES:
            try:
                rows[table] = _readable(old, table)
            except sqlite3.DatabaseError:
                reason = f"it is damaged ({damage}). Try 'sqlite3 {path} .recover', or put a copy in its place"
                raise OSError(errno.EIO, reason, str(path)) from None
    aside = _set_aside(path)
    with closing(_checked(path)) as new:
        new.execute("BEGIN")
        for table, found in rows.items():
            new.executemany(f"INSERT OR IGNORE INTO {table} VALUES (?, ?, ?, ?, ?, ?, ?, ?)", found)
        new.execute("COMMIT")
    number = sum(map(len, rows.values()))
    logger.warning(
        "%s is damaged (%s). %d records could be saved; the damaged file was moved to %s.", path, damage, number, aside
    )


def _set_aside(path: Path) -> Path:
    aside = path.with_name(f"{path.name}{_DAMAGED}-{uuid.uuid4().hex}")
    for suffix in ("-wal", "-shm", ""):
        part = path.with_name(path.name + suffix)
        if part.exists():
            part.replace(aside.with_name(aside.name + suffix))
    return aside


def _readable(old: sqlite3.Connection, table: str) -> set[tuple[object, ...]]:
    """Returns the rows that are not on damaged pages. Raises sqlite3.DatabaseError if there are none."""
    found: set[tuple[object, ...]] = set()
    # A table is a list of pages in the order of its rows. Read from both ends, a damaged page costs its own rows alone.
    for number, step, further, order in ((-1, 1, ">", "ASC"), (1 << 62, -1, "<", "DESC")):
        # One row for each statement: a cursor reads one row ahead, and if that fails it forgets the row that it has.
        query = f"SELECT * FROM {table} NOT INDEXED WHERE number {further} ? ORDER BY number {order} LIMIT 1"
        try:
            while row := old.execute(query, (number,)).fetchone():
                found.add(row)
                # A page in the place of another one has rows out of order, and would be read for ever.
                if (row[0] - number) * step <= 0:
                    break
                number = row[0]
        except sqlite3.DatabaseError:
            if not found and order == "DESC":
                raise
    return found


def _code(error: sqlite3.Error) -> int:
    """Returns SQLite's primary error code; 0 for errors that Python's module raises by itself."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


@contextmanager
def _os_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        number = errno.ENOSPC if getattr(error, "sqlite_errorcode", 0) in _NO_ROOM else errno.EIO
        raise OSError(number, f"{os.strerror(number)}: {error}", str(path)) from error
