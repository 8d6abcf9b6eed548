"""A batch that waits for something is open all the same: its client cannot take away what it needs."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import openai
import pytest

from fixtures.batch_desk import desk_in, line
from fixtures.patience import until
from mysglang.srt.entrypoints.openai import batches_journal, batches_service


async def test_while_a_disk_is_waited_for_the_input_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A client that deleted it in this time would make its own batch fail."""

    def full(_path: Path, _data: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(batches_service, "DISK_RETRY_S", 3600.0)
    monkeypatch.setattr(batches_journal, "append_whole", full)
    async with desk_in(tmp_path) as desk:
        batch = await desk.begin(line("a"))
        await until(lambda: "No space left" in caplog.text)
        with pytest.raises(openai.BadRequestError, match="not complete"):
            await desk.api.files.delete(batch.input_file_id)


@pytest.mark.promise(50)
async def test_what_is_no_file_keeps_no_server_from_starting(tmp_path: Path) -> None:
    async with desk_in(tmp_path) as desk:
        kept, linked = await desk.upload(line("a")), await desk.upload(line("b"))
    content = tmp_path / "files" / f"{linked}.bin"
    content.rename(tmp_path / "elsewhere")
    content.symlink_to(tmp_path / "elsewhere")
    for name in ("files/odd.bin", "files/odd.bin.unfinished", "files/odd.json", "batches/odd.json.unfinished"):
        (tmp_path / name).mkdir()
    async with desk_in(tmp_path) as desk:
        assert [file.id async for file in await desk.api.files.list()] == [kept]
        batch = await desk.end_of(await desk.begin(line("a")))
        assert batch.status == "completed"


@pytest.mark.promise(50)
def test_a_pipe_in_place_of_a_journal_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "errors")
    with pytest.raises(OSError, match="Not a regular file"):
        batches_journal.Journal("batch_1", tmp_path / "output", tmp_path / "errors")
