"""Records of files and batches survive a kill, a damaged disk, and an older version of the server."""

from __future__ import annotations

import itertools
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import openai
import pytest

from fixtures.batch_desk import CHAT, desk_in, line, records, remove_record
from fixtures.processes import running
from mysglang.srt.entrypoints.openai import record_tables
from mysglang.srt.entrypoints.openai.files_record import FileRecord
from mysglang.srt.entrypoints.openai.record_tables import DATABASE, Database, RecordTable
from mysglang.srt.errors import ConfigError

PAGE = 4096


def record(number: int, name: str = "a") -> FileRecord:
    return FileRecord(id=f"file-{number:05}", bytes=10, created_at=number, filename=name, purpose="batch", owner="k")


@contextmanager
def table_in(folder: Path) -> Iterator[RecordTable[FileRecord]]:
    database = Database(folder)
    with closing(database):
        database.open()
        table = RecordTable(database, "files", FileRecord)
        table.load(folder / "files")
        yield table


def names(table: RecordTable[FileRecord]) -> list[str]:
    return [found.id for found in table.select(oldest_first=True)]


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    with table_in(tmp_path) as table:
        for number in (3, 1, 2):
            table.write(record(number))
        table.write(record(1, "b"))
        table.remove("file-00002")
        assert table.get("file-00001") == record(1, "b")
        assert table.get("file-00002") is None
        table.hide("file-00003")
        assert (names(table), table.has("file-00003"), table.used()) == (["file-00001"], True, {"k": (1, 10)})
    with table_in(tmp_path) as table:
        assert list(table.select()) == [record(3), record(1, "b")]
        assert table.remove_oldest("owner = ?", "k") == 10
        assert table.remove_oldest("owner = ?", "other") is None
        assert names(table) == ["file-00003"]


WRITER = """
import sys
from pathlib import Path
from unit.entrypoints.openai.test_record_tables import record, table_in
with table_in(Path(sys.argv[1])) as table:
    for number in range(100_000):
        table.write(record(number))
        print(number, flush=True)
"""


@pytest.mark.promise(50)
def test_a_kill_in_the_middle_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    path = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", WRITER, str(tmp_path)]
    with running(command, stdout=subprocess.PIPE, text=True, env=path) as writer:
        assert writer.stdout is not None
        told = [int(next(writer.stdout)) for _ in range(20)]
        writer.send_signal(signal.SIGKILL)
        told += map(int, writer.stdout)
    with table_in(tmp_path) as table:
        found = names(table)
    # The last write may have been done without a word of it.
    assert len(told) <= len(found) <= len(told) + 1
    assert found == [record(number).id for number in range(len(found))]


@pytest.mark.promise(50)
async def test_records_of_an_older_version_are_taken_over(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with desk_in(tmp_path) as desk:
        batch = await desk.end_of(await desk.begin(line("a")))
        files = [file async for file in desk.api.files.list()]
        assert len(files) == 2
    for table in ("files", "batches"):
        for record_id, data in records(tmp_path, table).items():
            (tmp_path / table / f"{record_id}.json").write_bytes(data)
    for path in tmp_path.glob(f"{DATABASE}*"):
        path.unlink()
    torn = tmp_path / "files" / "file-torn.json"
    torn.write_bytes(b"{")
    torn.with_suffix(".bin").write_bytes(b"x")
    os.mkfifo(tmp_path / "files" / "pipe.json")
    for _ in range(2):
        async with desk_in(tmp_path) as desk:
            assert [file async for file in desk.api.files.list()] == files
            assert await desk.api.batches.retrieve(batch.id) == batch
            assert set(await desk.entries(batch.output_file_id)) == {"a"}
    assert caplog.text.count("2 records of an older version were moved") == 1
    assert caplog.text.count("1 records of an older version were moved") == 1
    assert {path.name for path in tmp_path.rglob("*.json")} == {"file-torn.json", "pipe.json"}
    assert torn.with_suffix(".bin").exists()
    assert f"{torn} cannot be read, so it was not moved" in caplog.text


def pages_of(folder: Path) -> list[bytes]:
    data = (folder / DATABASE).read_bytes()
    return [data[start : start + PAGE] for start in range(0, len(data), PAGE)]


@pytest.mark.promise(50)
@pytest.mark.parametrize("how", ["zeros", "foreign", "doubled"])
def test_a_damaged_page_costs_only_its_own_records(tmp_path: Path, how: str, caplog: pytest.LogCaptureFixture) -> None:
    """Every page of the list of records in turn, but for its first ones, without which there is no list."""
    with table_in(tmp_path) as table:
        for number in range(50):
            table.write(record(number, "n" * 200))
    sound = pages_of(tmp_path)
    leaves = [at for at, page in enumerate(sound) if page[0] == 0x0D and b'"filename"' in page]
    assert len(leaves) >= 4
    for leaf in leaves:
        other = sound[leaves[0] if leaf != leaves[0] else leaves[1]]
        bad = {"zeros": bytes(PAGE), "foreign": os.urandom(PAGE), "doubled": other}[how]
        lost = sound[leaf].count(b'"filename"')
        for path in tmp_path.glob(f"{DATABASE}*"):
            path.unlink()
        (tmp_path / DATABASE).write_bytes(b"".join([*sound[:leaf], bad, *sound[leaf + 1 :]]))
        caplog.clear()
        with table_in(tmp_path) as table:
            found = names(table)
            table.write(record(1000))
        assert 50 - lost <= len(found) < 50
        assert set(found) <= {record(number).id for number in range(50)}
        assert caplog.text.count("is damaged") == 1
        assert len(list(tmp_path.glob(f"{DATABASE}.damaged-*"))) >= 1


@pytest.mark.promise(50)
async def test_bytes_without_a_record_stay_beside_a_damaged_database(tmp_path: Path) -> None:
    async with desk_in(tmp_path) as desk:
        file_id = await desk.upload(line("a"))
    (tmp_path / DATABASE).write_bytes(b"")
    async with desk_in(tmp_path) as desk:
        assert not [file async for file in desk.api.files.list()]
        other = await desk.upload(line("b"))
    assert {path.stem for path in (tmp_path / "files").iterdir()} == {file_id, other}
    assert len(list(tmp_path.glob(f"{DATABASE}.damaged-*"))) == 1
    for path in tmp_path.glob(f"{DATABASE}.damaged-*"):
        path.unlink()
    remove_record(tmp_path, other)
    async with desk_in(tmp_path):
        assert not list((tmp_path / "files").iterdir())


@pytest.mark.parametrize("data", [b"\0" * PAGE, b"no database", b"\xff" * 3 * PAGE])
async def test_a_database_of_which_nothing_is_left_is_refused(tmp_path: Path, data: bytes) -> None:
    async with desk_in(tmp_path) as desk:
        await desk.upload(line("a"))
    (tmp_path / DATABASE).write_bytes(data)
    with pytest.raises(ConfigError, match=r"--file-storage-path .*damaged.*\.recover"):
        async with desk_in(tmp_path):
            pass
    assert (tmp_path / DATABASE).read_bytes() == data
    assert len(list((tmp_path / "files").iterdir())) == 1


async def test_what_is_no_database_of_this_version_is_refused(tmp_path: Path) -> None:
    for kind in itertools.count():
        path = tmp_path / str(kind) / DATABASE
        path.parent.mkdir()
        match kind:
            case 0:
                os.mkfifo(path)
            case 1:
                path.mkdir()
            case 2:
                with closing(sqlite3.connect(path)) as db:
                    db.execute("PRAGMA user_version = 7")
            case _:
                break
        with pytest.raises(ConfigError, match=r"^--file-storage-path .*(Not a regular file|version 7)"):
            async with desk_in(path.parent):
                pass


async def test_no_room_for_a_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    connections: list[sqlite3.Connection] = []
    connect = record_tables._connect
    monkeypatch.setattr(record_tables, "_connect", lambda path: connections.append(connect(path)) or connections[-1])
    async with desk_in(tmp_path) as desk:
        input_file_id = await desk.upload(line("a"), "{")
        # The last bytes of the pages that there are can still be used.
        connections[0].execute("PRAGMA max_page_count = 1")
        with pytest.raises(openai.InternalServerError, match="no room for this file") as refused:
            while True:
                await desk.upload(line("a"))
        assert refused.value.status_code == 507
        with pytest.raises(openai.InternalServerError, match="no room for this batch"):
            while True:
                await desk.api.batches.create(input_file_id=input_file_id, endpoint=CHAT, completion_window="24h")
        connections[0].execute("PRAGMA max_page_count = 1000000")
        await desk.upload(line("a"))
        batch = await desk.end_of(await desk.begin(line("a")))
        assert batch.status == "completed"
        listed = [file.id async for file in await desk.api.files.list()]
    assert set(listed) == {path.stem for path in (tmp_path / "files").glob("*.bin")}
