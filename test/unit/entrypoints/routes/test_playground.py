"""The playground's routes: the page is for everybody, its figures are for clients, the tree is for the operator."""

import re

import msgspec
import pytest

from fixtures.scripted_engine import CACHE_TREE, Served, serve
from mysglang.srt.entrypoints.app_options import AppOptions
from mysglang.srt.entrypoints.playground_answers import CacheTree, LiveFigures
from mysglang.srt.entrypoints.routes.playground import FILES, PREVIEW_TOKENS
from mysglang.srt.mem_cache.tree_view import NodeView, TreeView
from mysglang.srt.messages.control import GetCacheTreeReq

LOCAL = AppOptions(loopback_only=True, local_pages=True)
BROWSER = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


async def test_a_browser_gets_the_page_and_a_probe_a_line_of_text() -> None:
    async with serve() as served:
        root, page = [await served.client.get(path, headers=BROWSER) for path in ("/", "/playground")]
        probe = await served.client.get("/")
        head = await served.client.head("/")
    assert root.content == page.content and page.text.startswith("<!doctype html>")
    assert page.headers["content-type"].startswith("text/html")
    assert (probe.text, probe.headers["vary"]) == ("mysglang is running\n", "accept")
    assert (head.status_code, head.content) == (200, b"")


async def test_everything_that_the_page_names_is_there_and_nothing_is_elsewhere() -> None:
    async with serve() as served:
        page = await served.client.get("/playground")
        named = re.findall(r'(?:src|href)="([^"#]+)"', page.text)
        files = {path: await served.client.get("/" + path) for path in named}
        modules = [
            path.name
            for file in FILES.glob("*.js")
            for path in map(FILES.joinpath, re.findall(r'from "\./([^"]+)"', file.read_text()))
        ]
        others = [await served.client.get(f"/playground/{name}") for name in modules]
        assert (await served.client.get("/playground/../pyproject.toml")).status_code == 404
        assert (await served.client.get("/playground/%2e%2e/tiny/config.json")).status_code == 404
    assert len(named) > 6 and not [path for path in named if not path.startswith("playground/")]
    assert {file.status_code for file in [*files.values(), *others]} == {200}
    for file in FILES.iterdir():
        text = file.read_text(encoding="utf-8")
        outside = set(re.findall(r"\b(?:https?:)?//[\w.-]+\.\w+[^\s\"'`)]*", text)) - {"http://www.w3.org/2000/svg"}
        assert not outside, (file.name, outside)


@pytest.mark.promise(38)
async def test_the_page_runs_nothing_but_its_own_files() -> None:
    async with serve() as served:
        page = await served.client.get("/playground")
        script = await served.client.get("/playground/app.js")
    for answer in (page, script):
        rules = dict(rule.strip().split(" ", 1) for rule in answer.headers["content-security-policy"].split(";"))
        assert rules["default-src"] == "'none'" and rules["script-src"] == rules["connect-src"] == "'self'"
        assert rules["require-trusted-types-for"] == "'script'" and rules["frame-ancestors"] == "'none'"
        assert answer.headers["x-content-type-options"] == "nosniff"
    assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\sstyle=|\son\w+=", page.text), "inline code"
    for file in FILES.glob("*.js"):
        assert not re.search(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function", file.read_text()
        )


async def test_a_page_that_did_not_change_is_not_sent_again() -> None:
    async with serve() as served:
        first = await served.client.get("/playground/app.js")
        same = await served.client.get("/playground/app.js", headers={"If-None-Match": first.headers["etag"]})
        other = await served.client.get("/playground/app.js", headers={"If-None-Match": '"other"'})
    assert (same.status_code, same.content) == (304, b"")
    assert other.content == first.content and first.headers["cache-control"] == "no-cache"


async def test_with_one_flag_nothing_of_it_is_there() -> None:
    async with serve(options=AppOptions(playground=False, loopback_only=True)) as served:
        for path in ("/playground", "/playground/app.js", "/playground/live", "/playground/cache_tree"):
            assert (await served.client.get(path, headers=BROWSER)).status_code == 404
        assert (await served.client.get("/", headers=BROWSER)).text == "mysglang is running\n"
        assert not [path for path in served.app.openapi()["paths"] if "playground" in path]


async def test_figures_come_from_what_is_known_without_asking_the_scheduler() -> None:
    async with serve() as served:
        await served.post("/generate", {"text": "Hi"})
        sent = len(served.engine.sent)
        told = (await served.client.get("/playground/live")).json()
        assert len(served.engine.sent) == sent
    figures = msgspec.convert(told, LiveFigures)
    assert (figures.kv_total, figures.max_running, figures.open_requests) == (1000, 8, 0)
    for histogram in (figures.time_to_first_token, figures.inter_token_latency):
        assert len(histogram.counts) == len(histogram.bounds) + 1
    assert sum(figures.time_to_first_token.counts) == 1
    assert sum(figures.inter_token_latency.counts) == 3


def asked(served: Served) -> list[int]:
    """For how many tokens of each run the scheduler was asked."""
    return [message.preview_tokens for message in served.engine.sent if isinstance(message, GetCacheTreeReq)]


async def test_a_machine_of_ones_own_shows_what_is_cached() -> None:
    async with serve(options=LOCAL) as served:
        answer = await served.client.get("/playground/cache_tree")
        assert asked(served) == [PREVIEW_TOKENS]
        assert served.front.tokenizer is not None
        text = served.front.tokenizer.decode([68, 69, 70], skip_special_tokens=False)
    tree = msgspec.convert(answer.json(), CacheTree)
    assert [node.text for node in tree.nodes] == [None, text] and text and tree.shows_text
    told = {name: value for name, value in answer.json()["nodes"][1].items() if name != "text"}
    assert told == {name: value for name, value in CACHE_TREE["nodes"][1].items() if name != "ids"}


def test_what_is_described_is_what_the_scheduler_sends() -> None:
    assert {*TreeView.__dataclass_fields__, "shows_text"} == set(CacheTree.__struct_fields__)
    node = CacheTree.__annotations__["nodes"]
    assert node == "list[CacheNode]"
    described = set(msgspec.inspect.type_info(CacheTree).fields[-1].type.item_type.cls.__struct_fields__)  # type: ignore[attr-defined]
    assert (set(NodeView.__dataclass_fields__) - {"ids", "last_use"}) | {"text", "idle_s"} == described


@pytest.mark.parametrize(
    ("site", "shown"), [("same-origin", True), ("none", True), ("same-site", False), ("cross-site", False)]
)
async def test_a_page_of_another_origin_sees_no_text(site: str, shown: bool) -> None:
    """Pages that this machine serves on other ports are let in, but what others asked is none of their business."""
    async with serve(options=LOCAL) as served:
        headers = {"Origin": "http://localhost:3000", "Sec-Fetch-Site": site}
        tree = (await served.client.get("/playground/cache_tree", headers=headers)).json()
    assert tree["shows_text"] is shown
    assert any(node["text"] for node in tree["nodes"]) is shown


@pytest.mark.promise(38)
@pytest.mark.parametrize(
    ("options", "sent", "status"),
    [
        (AppOptions(loopback_only=True, admin_key="a"), None, 401),
        (AppOptions(loopback_only=True, admin_key="a"), "a", 200),
        (AppOptions(api_keys=("k", "l")), None, 401),
        (AppOptions(api_keys=("k", "l")), "k", 403),
        (AppOptions(api_keys=("k", "l"), admin_key="a"), "k", 403),
        (AppOptions(api_keys=("k", "l"), admin_key="a"), "a", 200),
        (AppOptions(strangers_may_ask=True), None, 403),
        (AppOptions(strangers_may_ask=True, admin_key="a"), "a", 200),
        (AppOptions(), None, 403),
    ],
)
async def test_where_clients_may_be_several_the_tree_is_the_operators_and_has_no_text(
    options: AppOptions, sent: str | None, status: int
) -> None:
    async with serve(options=options) as served:
        headers = {} if sent is None else bearer(sent)
        answer = await served.client.get("/playground/cache_tree", headers=headers)
        assert answer.status_code == status
        if status == 200 and not options.loopback_only:
            assert asked(served) == [0], "tokens do not even leave the scheduler"
            assert not answer.json()["shows_text"]
        elif status != 200:
            assert asked(served) == []


async def test_figures_need_the_key_of_a_client() -> None:
    async with serve(options=AppOptions(api_keys=("k",), admin_key="a")) as served:
        statuses = [
            (await served.client.get("/playground/live", headers=headers)).status_code
            for headers in ({}, bearer("k"), bearer("a"))
        ]
    assert statuses == [401, 200, 403]
