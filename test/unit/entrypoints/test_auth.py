"""Access: every path but the named ones needs a key, however it is spelled; and no foreign name on the loopback."""

import asyncio
from collections.abc import Iterator

import httpx
import pytest
from fastapi.routing import APIRoute

from fixtures.patience import until
from fixtures.scripted_engine import Served, endless, serve
from mysglang.srt.entrypoints.app_options import AppOptions
from mysglang.srt.entrypoints.auth import is_loopback
from mysglang.srt.entrypoints.routes.playground import FILES

PAGE = {"/", "/playground", *(f"/playground/{path.name}" for path in FILES.iterdir())}
OPEN = {"/ping", "/health", "/health_generate", "/ready", *PAGE}
ADMIN = {"/flush_cache", "/abort_request"}


def bearer(key: str) -> dict[bytes, bytes]:
    return {b"Authorization": f"Bearer {key}".encode()}


def routes(served: Served) -> Iterator[tuple[str, str]]:
    """(method, path) of all there is, docs included."""
    for route in served.app.routes:
        path = route.path.replace("{model:path}", "x")
        for method in route.methods if isinstance(route, APIRoute) else ("GET",):
            yield method, path


def spellings(path: str) -> list[str]:
    ways = [path + "/", "/" + path, path + "x", path.upper(), path + "/x", path.replace("/", "/%2e/", 1), path + "%2f"]
    return [way for way in ways if way not in OPEN]


@pytest.mark.promise(38)
async def test_only_named_paths_are_open() -> None:
    async with serve(options=AppOptions(api_keys=("k",))) as served:
        opened = set()
        for method, path in routes(served):
            response = await served.client.request(method, path)
            if response.status_code != 401:
                opened.add(path)
                continue
            assert response.headers["www-authenticate"] == "Bearer"
            assert method == "HEAD" or b"Unauthorized" in response.content
        assert opened == OPEN
        for _, path in routes(served):
            for way in spellings(path):
                response = await served.client.get(httpx.URL("http://127.0.0.1:30000" + way))
                assert response.status_code == 401, way
        for method in ("OPTIONS", "DELETE", "TRACE"):
            assert (await served.client.request(method, "/generate")).status_code == 401


async def test_without_the_playground_the_root_needs_a_key_too() -> None:
    async with serve(options=AppOptions(api_keys=("k",), playground=False)) as served:
        statuses = {path: (await served.client.get(path)).status_code for path in PAGE}
    assert set(statuses.values()) == {401}


@pytest.mark.parametrize(
    ("api_key", "admin_key", "sent", "normal", "admin"),
    [
        (None, None, None, 200, 200),
        ("k", None, None, 401, 401),
        ("k", None, "k", 200, 200),
        ("k", None, "K", 401, 401),
        ("k", None, "", 401, 401),
        ("schlüssel", None, "schlüssel", 200, 200),
        ("schlüssel", None, "schlussel", 401, 401),
        (None, "a", None, 200, 401),
        (None, "a", "a", 200, 200),
        (None, "a", "wrong", 200, 401),
        ("k", "a", "k", 200, 403),
        ("k", "a", "a", 403, 200),
        ("k", "a", "wrong", 401, 401),
    ],
)
async def test_which_key_opens_what(
    api_key: str | None, admin_key: str | None, sent: str | None, normal: int, admin: int
) -> None:
    options = AppOptions(api_keys=() if api_key is None else ("other", api_key), admin_key=admin_key)
    headers = {} if sent is None else bearer(sent)
    async with serve(options=options) as served:
        assert (await served.client.get("/v1/models", headers=headers)).status_code == normal
        assert (await served.client.post("/flush_cache", headers=headers)).status_code == admin
        assert (await served.client.get("/health", headers=headers)).status_code == 200


@pytest.mark.parametrize("header", ["Basic k", "k", "Bearer", "bearerk", "Token k", "Bearer k k"])
async def test_only_bearer_counts(header: str) -> None:
    async with serve(options=AppOptions(api_keys=("k",))) as served:
        assert (await served.client.get("/v1/models", headers={"Authorization": header})).status_code == 401


async def test_scheme_in_any_case() -> None:
    async with serve(options=AppOptions(api_keys=("k",))) as served:
        assert (await served.client.get("/v1/models", headers={"Authorization": "bearer k"})).status_code == 200


async def test_paths_below_a_proxys_root() -> None:
    async with serve(options=AppOptions(api_keys=("k",))) as served:
        transport = httpx.ASGITransport(served.app, root_path="/llm")
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:30000") as client:
            assert (await client.get("/llm/health")).status_code == 200
            assert (await client.get("/llm/v1/models")).status_code == 401
            assert (await client.get("/llm/v1/models", headers=bearer("k"))).status_code == 200


async def test_nothing_changes_by_get() -> None:
    async with serve() as served:
        for path in ADMIN:
            response = await served.client.get(path)
            assert response.status_code == 405
            assert response.headers["allow"] == "POST"
        deleted = await served.client.delete("/")
        assert (deleted.status_code, deleted.headers["allow"]) == (405, "GET, HEAD")
        assert not served.engine.sent


async def test_no_other_site_is_invited() -> None:
    async with serve() as served:
        response = await served.client.get("/v1/models", headers={"Origin": "https://example.com"})
        assert not [name for name in response.headers if name.startswith("access-control")]


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "127.0.0.1:30000"}, 200),
        ({"Host": "localhost"}, 200),
        ({"Host": "[::1]:30000"}, 200),
        ({"Host": "a.localhost:1"}, 200),
        ({"Host": "host.docker.internal:30000"}, 200),
        ({"Host": "host.containers.internal"}, 200),
        ({"Host": "host.docker.internal", "Origin": "http://host.docker.internal"}, 403),
        ({"Host": "host.docker.internal.evil.example"}, 403),
        ({"Host": "evil.example"}, 403),
        ({"Host": "127.0.0.1.evil.example"}, 403),
        ({"Host": "192.168.1.7:30000"}, 403),
        ({"Host": "localhost@evil.example"}, 403),
        ({"Host": ""}, 403),
        ({"Host": "[::1"}, 403),
        ({"Origin": "http://localhost:3000"}, 200),
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "null"}, 403),
    ],
)
async def test_loopback_hears_only_its_own_name(headers: dict[str, str], status: int) -> None:
    async with serve(options=AppOptions(loopback_only=True)) as served:
        assert (await served.client.get("/v1/models", headers=headers)).status_code == status
    async with serve(options=AppOptions(loopback_only=False)) as served:
        assert (await served.client.get("/v1/models", headers=headers)).status_code == 200


@pytest.mark.parametrize("name", ["127.0.0.1", "127.8.9.1", "::1", "[::1]", "localhost", "LOCALHOST.", "x.localhost"])
def test_loopback_names(name: str) -> None:
    assert is_loopback(name)


@pytest.mark.parametrize("name", ["", "0.0.0.0", "::", "10.0.0.1", "localhost.example", "128.0.0.1", "xlocalhost"])
def test_other_names(name: str) -> None:
    assert not is_loopback(name)


@pytest.mark.promise(38)
@pytest.mark.parametrize(("admin_key", "sent", "status"), [(None, None, 403), ("a", None, 401), ("a", "a", 200)])
async def test_strangers_without_a_key_change_nothing_for_others(
    admin_key: str | None, sent: str | None, status: int
) -> None:
    """On an address that other machines reach."""
    async with serve(options=AppOptions(strangers_may_ask=True, admin_key=admin_key)) as served:
        headers = {} if sent is None else bearer(sent)
        assert (await served.client.post("/flush_cache", headers=headers)).status_code == status
        aborted = await served.client.post("/abort_request", json={"abort_all": True}, headers=headers)
        assert aborted.status_code == status
        assert bool(served.engine.sent) == (status == 200)
        assert (await served.client.post("/generate", json={"text": "a"})).status_code == 200


async def test_each_of_several_keys_counts() -> None:
    async with serve(options=AppOptions(api_keys=("k", "l"), admin_key="a")) as served:
        statuses = [(await served.client.get("/v1/models", headers=bearer(key))).status_code for key in "klam"]
    assert statuses == [200, 200, 403, 401]


@pytest.mark.promise(44)
@pytest.mark.parametrize(("admin_key", "sender", "ended"), [(None, "l", 0), (None, "k", 1), ("a", "a", 1)])
@pytest.mark.parametrize("what", [{"rid": "mine"}, {"abort_all": True}])
async def test_a_key_aborts_no_request_of_another(
    admin_key: str | None, sender: str, ended: int, what: dict[str, object]
) -> None:
    async with serve(endless, AppOptions(api_keys=("k", "l"), admin_key=admin_key)) as served:
        asked = asyncio.create_task(
            served.client.post("/generate", json={"text": "a", "rid": "mine"}, headers=bearer("k"))
        )
        await until(lambda: served.engine.requests)
        answer = await served.client.post("/abort_request", json=what, headers=bearer(sender))
        assert (answer.status_code, answer.content) == (200, b"")
        assert len(served.engine.aborted) == ended
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)


@pytest.mark.parametrize(
    ("origin", "welcome"),
    [
        ("http://localhost:3000", True),
        ("https://localhost", True),
        ("http://app.localhost:5173", True),
        ("http://127.0.0.1:8080", True),
        ("http://[::1]:8080", True),
        ("http://localhost.evil.example", False),
        ("http://evil.example/localhost", False),
        ("http://127.0.0.1.evil.example", False),
        ("http://localhost@evil.example", False),
        ("http://localhost:3000.evil.example", False),
        ("http://192.168.1.7:3000", False),
        ("null", False),
    ],
)
async def test_pages_of_this_machine_may_ask_a_server_on_it(origin: str, welcome: bool) -> None:
    asks = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "content-type, authorization"}
    allowed = "access-control-allow-origin"
    async with serve(options=AppOptions(local_pages=True, loopback_only=True)) as served:
        preflight = await served.client.options("/generate", headers={"Origin": origin, **asks})
        answer = await served.client.get("/v1/models", headers={"Origin": origin})
        plain = {"Origin": origin, "Content-Type": "text/plain"}
        assert (await served.client.post("/generate", content=b'{"text": "a"}', headers=plain)).status_code in (
            400,
            403,
        )
        assert not served.engine.sent
    assert (preflight.status_code, answer.status_code) == ((200, 200) if welcome else (400, 403))
    for response in (preflight, answer):
        assert response.headers.get(allowed) == (origin if welcome else None)
    async with serve() as served:
        answer = await served.client.get("/v1/models", headers={"Origin": origin})
        assert allowed not in answer.headers


async def test_invited_sites_may_ask_and_others_may_not() -> None:
    options = AppOptions(cors_allow_origins=("https://a.example",), api_keys=("k",), loopback_only=True)
    preflight = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
    async with serve(options=options) as served:
        asked = await served.client.options("/v1/models", headers={"Origin": "https://a.example", **preflight})
        invited = await served.client.get("/v1/models", headers={"Origin": "https://a.example", "x-api-key": "k"})
        keyless = await served.client.get("/v1/models", headers={"Origin": "https://a.example"})
        stranger = await served.client.get("/v1/models", headers={"Origin": "https://b.example", "x-api-key": "k"})
        strange = await served.client.options("/v1/models", headers={"Origin": "https://b.example", **preflight})
    allowed = "access-control-allow-origin"
    assert (asked.status_code, asked.headers[allowed]) == (200, "https://a.example")
    assert (invited.status_code, invited.headers[allowed]) == (200, "https://a.example")
    assert "access-control-allow-credentials" not in invited.headers
    assert keyless.status_code == 401
    assert (stranger.status_code, strange.status_code) == (403, 400)
    assert allowed not in stranger.headers
