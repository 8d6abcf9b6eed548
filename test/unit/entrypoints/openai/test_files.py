"""/v1/files through OpenAI's client: what is kept is told back, bounded, and found again after a restart."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import httpx
import openai
import orjson
import pytest

from fixtures.batch_desk import OpenDesk, desk_in, line, records
from fixtures.patience import answered, until
from fixtures.scripted_engine import Script, Served, endless, hello, serve
from mysglang.srt.entrypoints.app_options import AppOptions
from mysglang.srt.entrypoints.openai import batches_service, batches_store, files_record, files_store
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
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["batches", "files", "lock", "records.sqlite3"]


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
    assert there == {f"{file_id}.bin", "file-3.json"}


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
        ({**FORM, "expires_after[seconds]": (None, "3600")}, "anchor"),
        ({**FORM, "expires_after[anchor]": (None, "created_at"), "expires_after[seconds]": (None, "60")}, "3600"),
    ],
)
async def test_what_is_refused_is_named(tmp_path: Path, fields: dict[str, object], word: str) -> None:
    async with desk_in(tmp_path) as desk:
        answer = await post(desk, fields)
    assert answer.status_code == 400
    assert word in answer.json()["error"]["message"]
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
        assert "1000 bytes in all" in full.json()["error"]["message"]


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
    assert all("--file-storage-path" in answer.json()["error"]["message"] for answer in answers)


@asynccontextmanager
async def keyed(
    folder: Path, keys: tuple[str, ...] = ("one", "two"), *, max_total_bytes: int = 1 << 20, script: Script = hello
) -> AsyncIterator[Served]:
    """A server with two keys that keeps files."""
    desk = DeskOptions(folder=folder, max_total_bytes=max_total_bytes, max_in_flight=2)
    options = AppOptions(served_model_name="tiny", api_keys=keys, desk=desk)
    async with serve(script, options) as served, served.app.router.lifespan_context(served.app):
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
        done = await answered(
            lambda: served.client.get(f"/v1/batches/{batch}", headers=one),
            lambda found: found.json()["status"] == "completed",
        )
        known = done.json()
        # Its answers belong to the owner that asked for them, after a restart too.
        for path, count in (("/v1/files", 2), ("/v1/batches", 1)):
            assert len((await served.client.get(path, headers=one)).json()["data"]) == count
            assert (await served.client.get(path, headers=two)).json()["data"] == []
        output = f"/v1/files/{known['output_file_id']}/content"
        assert (await served.client.get(output, headers=two)).status_code == 404
        assert (await served.client.get(output, headers=one)).status_code == 200
    async with keyed(tmp_path) as served:
        assert (await served.client.get(output, headers=two)).status_code == 404
        assert (await served.client.get(output, headers=one)).status_code == 200
    assert b"one" not in b"".join(records(tmp_path, "files").values())


def key(name: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {name}"}


async def upload(served: Served, owner: str, content: bytes, purpose: str = "batch") -> httpx.Response:
    form = {"data": {"purpose": purpose}, "files": {"file": ("a.jsonl", content)}}
    return await served.client.post("/v1/files", headers=key(owner), **form)  # type: ignore[arg-type]


@pytest.mark.promise(44)
async def test_a_flood_of_files_leaves_another_key_its_part(tmp_path: Path) -> None:
    async with keyed(tmp_path, max_total_bytes=8000) as served:
        statuses = [(await upload(served, "one", b"x" * 1000)).status_code for _ in range(8)]
        assert statuses == [200] * 6 + [400] * 2
        assert [(await upload(served, "two", b"x" * 1000)).status_code for _ in range(3)] == [200, 200, 400]
        # What is deleted makes room again, for the one who deletes.
        mine = (await served.client.get("/v1/files", headers=key("one"))).json()["data"]
        await served.client.delete(f"/v1/files/{mine[0]['id']}", headers=key("one"))
        assert (await upload(served, "one", b"x" * 1000)).status_code == 200
    async with keyed(tmp_path, max_total_bytes=8000) as served:
        assert (await upload(served, "one", b"x" * 1000)).status_code == 400


@pytest.mark.promise(44)
async def test_a_flood_of_tiny_files_leaves_another_key_its_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files_store, "MAX_FILES", 4)
    async with keyed(tmp_path) as served:
        assert [(await upload(served, "one", b"x")).status_code for _ in range(4)] == [200] * 3 + [400]
        assert [(await upload(served, "two", b"x")).status_code for _ in range(2)] == [200, 400]


@pytest.mark.promise(50)
async def test_uploads_on_their_way_count(tmp_path: Path) -> None:
    """Ten at once find room for no more of them than one after the other would."""
    size, go_on, waiting = 300_000, asyncio.Event(), 0

    async def body() -> AsyncIterator[bytes]:
        nonlocal waiting
        yield b'--x\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--x\r\n'
        yield b'Content-Disposition: form-data; name="file"; filename="a"\r\n\r\n'
        yield b"x" * size
        waiting += 1
        await go_on.wait()
        yield b"\r\n--x--\r\n"

    async with keyed(tmp_path, ("one",), max_total_bytes=4 * size) as served:
        headers = {"content-type": "multipart/form-data; boundary=x", **key("one")}
        asked = [
            asyncio.create_task(served.client.post("/v1/files", content=body(), headers=headers)) for _ in range(10)
        ]
        # The transport may take a body to its end although it is not read.
        await until(lambda: waiting + sum(task.done() for task in asked) >= 10)
        refused_at_once = sum(task.done() for task in asked)
        go_on.set()
        statuses = sorted([(await task).status_code for task in asked])
        assert sum(path.stat().st_size for path in (tmp_path / "files").glob("*.bin")) <= 4 * size
        assert statuses.count(200) in (4, 5)
        assert refused_at_once >= 5 - 1
        # Nothing of them is counted any more.
        for file in (await served.client.get("/v1/files", headers=key("one"))).json()["data"]:
            await served.client.delete(f"/v1/files/{file['id']}", headers=key("one"))
        assert (await upload(served, "one", b"x" * 4 * size)).status_code == 200


@pytest.mark.promise(50)
async def test_an_upload_that_cannot_fit_is_refused_before_it_comes(tmp_path: Path) -> None:
    async with keyed(tmp_path, ("one",), max_total_bytes=1000) as served:
        headers = {"content-type": "multipart/form-data; boundary=x", "content-length": "1000000", **key("one")}
        answer = await served.client.post("/v1/files", content=b"--x", headers=headers)
    assert (answer.status_code, "1000 bytes in all" in answer.json()["error"]["message"]) == (400, True)


def batch_of(file_id: str) -> dict[str, str]:
    return {"input_file_id": file_id, "endpoint": "/v1/completions", "completion_window": "24h"}


LINE = {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"model": "tiny", "prompt": "x"}}


@pytest.mark.promise(44)
async def test_a_flood_of_batches_leaves_another_key_its_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches_service, "MAX_OPEN", 4)
    async with keyed(tmp_path, script=endless) as served:
        statuses: dict[str, list[int]] = {}
        for owner, count in (("one", 4), ("two", 2)):
            file_id = (await upload(served, owner, orjson.dumps(LINE))).json()["id"]
            answers = [await served.post("/v1/batches", batch_of(file_id), headers=key(owner)) for _ in range(count)]
            statuses[owner] = [answer.status_code for answer in answers]
        assert statuses == {"one": [200, 200, 200, 429], "two": [200, 429]}


@pytest.mark.promise(44)
async def test_batches_that_are_over_are_forgotten_key_by_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches_store, "MAX_BYTES", 8000)
    async with keyed(tmp_path) as served:
        known: dict[str, list[str]] = {}
        for owner, count in (("two", 2), ("one", 30)):
            # No input of a batch: it fails at once.
            file_id = (await upload(served, owner, b"no")).json()["id"]
            for _ in range(count):
                answer = await served.post("/v1/batches", batch_of(file_id), headers=key(owner))
                known.setdefault(owner, []).append(answer.json()["id"])
                batch = f"/v1/batches/{known[owner][-1]}"
                await answered(
                    partial(served.client.get, batch, headers=key(owner)),
                    lambda found: found.json()["status"] == "failed",
                )
        listed = {
            owner: [
                batch["id"] for batch in (await served.client.get("/v1/batches", headers=key(owner))).json()["data"]
            ]
            for owner in known
        }
    assert set(listed["two"]) == set(known["two"])
    assert 2 < len(listed["one"]) < 20 and set(listed["one"]) == set(known["one"][-len(listed["one"]) :])
    kept = records(tmp_path, "batches").values()
    assert len(kept) == len(listed["one"]) + 2
    assert sum(map(len, kept)) <= 8000 + 1000


async def test_a_batch_of_a_key_that_is_gone_asks_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with keyed(tmp_path, script=endless) as served:
        file_id = (await upload(served, "two", orjson.dumps(LINE))).json()["id"]
        batch = (await served.post("/v1/batches", batch_of(file_id), headers=key("two"))).json()["id"]
        await until(lambda: served.engine.requests)
    async with keyed(tmp_path, ("one",)) as served:
        assert f"{batch} waits: this server does not have the API key" in caplog.text
        for _ in range(20):
            await asyncio.sleep(0)
        assert not served.engine.requests
    async with keyed(tmp_path) as served:
        await answered(
            lambda: served.client.get(f"/v1/batches/{batch}", headers=key("two")),
            lambda found: found.json()["status"] == "completed",
        )
