"""/v1/files through OpenAI's client: what is kept is told back, bounded, and found again after a restart."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import openai
import orjson
import pytest

from fixtures.batch_desk import OpenDesk, desk_in, line
from fixtures.scripted_engine import Served, serve
from mysglang.srt.entrypoints.app_options import AppOptions
from mysglang.srt.entrypoints.openai import files_record, files_store
from mysglang.srt.entrypoints.openai.files_desk import DeskOptions
from mysglang.srt.entrypoints.openai.files_upload import MAX_FILE_BYTES

FORM = {"purpose": (None, "batch"), "file": ("a.jsonl", b"{}")}


async def post(desk: OpenDesk, fields: dict[str, object]) -> httpx.Response:
    return await desk.served.client.post("/v1/files", files=fields)  # type: ignore[arg-type]


async def test_a_file_is_told_back(tmp_path: Path) -> None:
    async with desk_in(tmp_path) as desk:
        content = bytes(range(256)) * 20_000
        file = await desk.api.files.create(file=("../../etc/passwd", content), purpose="user_data")
        assert (file.bytes, file.filename, file.purpose) == (len(content), "../../etc/passwd", "user_data")
        assert file.expires_at is None
        assert await desk.api.files.retrieve(file.id) == file
        answer = await desk.api.files.content(file.id)
        assert answer.content == content
        assert answer.response.headers["x-content-type-options"] == "nosniff"
        assert (await desk.api.files.delete(file.id)).deleted
        with pytest.raises(openai.NotFoundError):
            await desk.api.files.retrieve(file.id)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["batches", "files", "lock"]


async def test_lists_in_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter(range(100, 200))
    monkeypatch.setattr(files_store, "now", lambda: next(ticks))
    async with desk_in(tmp_path) as desk:
        purposes = ["batch", "vision", "batch", "evals", "batch"]
        life = {"expires_after[anchor]": (None, "created_at"), "expires_after[seconds]": (None, "3600")}
        ids = []
        for purpose in purposes:
            answer = await post(desk, {**FORM, **life, "purpose": (None, purpose)})
            ids.append(answer.raise_for_status().json()["id"])
        assert [file.id async for file in await desk.api.files.list(limit=2)] == ids[::-1]
        assert [file.id async for file in await desk.api.files.list(order="asc", limit=1, purpose="batch")] == ids[::2]
        first = await desk.api.files.list(limit=2)
        assert first.has_more
        with pytest.raises(openai.BadRequestError, match="after"):
            await desk.api.files.list(after="file-x")


async def test_found_again_after_a_restart(tmp_path: Path) -> None:
    async with desk_in(tmp_path) as desk:
        file_id = await desk.upload(line("a"))
        known = await desk.api.files.retrieve(file_id)
    # What a crash leaves behind: bytes without a record, and something half written.
    (tmp_path / "files" / "file-1.bin").write_bytes(b"x")
    (tmp_path / "files" / "file-2.bin.unfinished").write_bytes(b"x")
    (tmp_path / "files" / "file-3.json").write_bytes(b"{")
    async with desk_in(tmp_path) as desk:
        assert [file async for file in await desk.api.files.list()] == [known]
    there = {path.name for path in (tmp_path / "files").iterdir()}
    assert there == {f"{file_id}.json", f"{file_id}.bin", "file-3.json"}


async def test_time_removes_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with desk_in(tmp_path) as desk:
        answer = await post(
            desk,
            {**FORM, "expires_after[anchor]": (None, "created_at"), "expires_after[seconds]": (None, "3600")},
        )
        brief = answer.json()
        month = await desk.api.files.retrieve(await desk.upload(line("a")))
        assert brief["expires_at"] == brief["created_at"] + 3600
        assert month.expires_at == month.created_at + files_record.MONTH_S
        monkeypatch.setattr(files_store, "now", lambda: brief["expires_at"])
        with pytest.raises(openai.NotFoundError):
            await desk.api.files.retrieve(brief["id"])
        await desk.upload(line("b"))
    assert not (tmp_path / "files" / f"{brief['id']}.bin").exists()


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"file": FORM["file"]}, "purpose"),
        ({"purpose": FORM["purpose"]}, "file"),
        ({**FORM, "purpose": (None, "fun")}, "purpose"),
        ({**FORM, "file": (None, "text")}, "must be a file"),
        ({**FORM, "file": ("a\u202eb", b"x")}, "printable"),
        ({**FORM, "file": ("a" * 300, b"x")}, "255"),
        ({**FORM, "color": (None, "red")}, "color"),
        ({**FORM, "expires_after[seconds]": (None, "3600")}, "anchor"),
        ({**FORM, "expires_after[anchor]": (None, "created_at"), "expires_after[seconds]": (None, "60")}, "3600"),
    ],
)
async def test_what_is_refused_is_named(tmp_path: Path, fields: dict[str, object], word: str) -> None:
    async with desk_in(tmp_path) as desk:
        answer = await post(desk, fields)
    assert answer.status_code == 400
    assert word in answer.json()["message"]
    assert not list((tmp_path / "files").iterdir())


async def test_bodies_that_are_no_form(tmp_path: Path) -> None:
    async with desk_in(tmp_path) as desk:
        client = desk.served.client
        answers = [
            await client.post("/v1/files", json={"purpose": "batch"}),
            await client.post("/v1/files", content=b"--x", headers={"content-type": "multipart/form-data"}),
            await client.post("/v1/files", content=b"no", headers={"content-type": "multipart/form-data; boundary=x"}),
        ]
    assert [answer.status_code for answer in answers] == [400] * 3


async def test_sizes_are_bounded(tmp_path: Path) -> None:
    async with desk_in(tmp_path, max_total_bytes=1000) as desk:
        headers = {"content-type": "multipart/form-data; boundary=x", "content-length": str(MAX_FILE_BYTES * 2)}
        too_large = await desk.served.client.post("/v1/files", content=b"--x", headers=headers)
        assert too_large.status_code == 413
        await post(desk, {**FORM, "file": ("a", b"x" * 600)})
        full = await post(desk, {**FORM, "file": ("b", b"x" * 600)})
        assert full.status_code == 400
        assert "1000 bytes in all" in full.json()["message"]


async def test_ids_are_never_paths(tmp_path: Path) -> None:
    (tmp_path / "secret.json").write_text("{}")
    async with desk_in(tmp_path) as desk:
        for name in ("..%2Fsecret", "../secret", "%2Fetc%2Fpasswd", "lock"):
            for path in (f"/v1/files/{name}", f"/v1/files/{name}/content", f"/v1/batches/{name}"):
                assert (await desk.served.client.get(path)).status_code == 404


async def test_without_a_folder_it_says_so() -> None:
    async with serve() as served:
        answers = [
            await served.client.post("/v1/files", files=FORM),  # type: ignore[arg-type]
            await served.client.get("/v1/files"),
            await served.client.get("/v1/files/x/content"),
            await served.client.delete("/v1/files/x"),
            await served.post("/v1/batches", {}),
            await served.client.get("/v1/batches"),
            await served.post("/v1/batches/x/cancel", {}),
        ]
    assert [answer.status_code for answer in answers] == [404] * 7
    assert all("--file-storage-path" in answer.json()["message"] for answer in answers)


@asynccontextmanager
async def keyed(folder: Path) -> AsyncIterator[Served]:
    """A server with two keys that keeps files."""
    desk = DeskOptions(folder=folder, max_total_bytes=1 << 20, max_in_flight=2)
    options = AppOptions(served_model_name="tiny", api_keys=("one", "two"), desk=desk)
    async with serve(options=options) as served, served.app.router.lifespan_context(served.app):
        yield served


async def test_a_key_sees_only_what_came_with_it(tmp_path: Path) -> None:
    async with keyed(tmp_path) as served:
        one, two = ({"Authorization": f"Bearer {key}"} for key in ("one", "two"))
        line = {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"model": "tiny", "prompt": "x"}}
        form = {"data": {"purpose": "batch"}, "files": {"file": ("in.jsonl", orjson.dumps(line) + b"\n")}}
        mine = (await served.client.post("/v1/files", **form, headers=one)).json()["id"]
        body = {"input_file_id": mine, "endpoint": "/v1/completions", "completion_window": "24h"}
        assert (await served.post("/v1/batches", body, headers=two)).status_code == 404
        batch = (await served.post("/v1/batches", body, headers=one)).json()["id"]
        for method, path in (
            ("GET", f"/v1/files/{mine}"),
            ("GET", f"/v1/files/{mine}/content"),
            ("DELETE", f"/v1/files/{mine}"),
            ("GET", f"/v1/batches/{batch}"),
            ("POST", f"/v1/batches/{batch}/cancel"),
        ):
            assert (await served.client.request(method, path, headers=two)).status_code == 404, path
        async with asyncio.timeout(10):
            known = {"status": ""}
            while known["status"] != "completed":
                await asyncio.sleep(0.01)
                known = (await served.client.get(f"/v1/batches/{batch}", headers=one)).json()
        # Its answers belong to whoever asked for them, after a restart too.
        for path, count in (("/v1/files", 2), ("/v1/batches", 1)):
            assert len((await served.client.get(path, headers=one)).json()["data"]) == count
            assert (await served.client.get(path, headers=two)).json()["data"] == []
        output = f"/v1/files/{known['output_file_id']}/content"
        assert (await served.client.get(output, headers=two)).status_code == 404
        assert (await served.client.get(output, headers=one)).status_code == 200
    async with keyed(tmp_path) as served:
        assert (await served.client.get(output, headers=two)).status_code == 404
        assert (await served.client.get(output, headers=one)).status_code == 200
    assert b"one" not in b"".join(path.read_bytes() for path in (tmp_path / "files").glob("*.json"))
