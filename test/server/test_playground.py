"""The playground in a real Chromium: on the embedded model, and on a scripted engine for what no model would say."""

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from fixtures.chromium import chromium, opened
from fixtures.patience import PATIENCE_S, wait_until
from fixtures.scripted_engine import Script, Step, Stop, endless
from fixtures.scripted_server import scripted_server
from fixtures.server_process import ServerProcess
from mysglang.srt.entrypoints.app_options import AppOptions

playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright, of the extra dev")
expect = playwright.expect

LOCAL = AppOptions(served_model_name="tiny", loopback_only=True, local_pages=True)
ATTACK = (
    '<img src=x onerror="document.title=1"><script>document.title=1</script> '
    "[click](javascript:document.title=1) ![pic](http://evil.example/x.png) [data](data:text/html,<b>x</b>) "
    '<a href="javascript:1">a</a> **<b>bold</b>** `<i>code</i>`\n\n<iframe src="http://evil.example"></iframe>\n'
)


SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["Rome", "Oslo"]}},
    "required": ["city"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as browser:
        yield browser


@pytest.fixture
def page(browser: Any, tiny_server: ServerProcess) -> Iterator[Any]:
    """On the embedded model, whose cache is empty."""
    httpx.post(f"{tiny_server.url}/flush_cache", params={"timeout": 30}).raise_for_status()
    with opened(browser, tiny_server.url) as page:
        yield page


@pytest.fixture
def scripted(browser: Any, request: pytest.FixtureRequest) -> Iterator[Any]:
    """On an engine that says what the test's parameter scripts."""
    # What the server refuses, the browser logs.
    with scripted_server(LOCAL, request.param) as url, opened(browser, url, known_errors="status of 400") as page:
        page.locator("#tokens").uncheck()  # a script has no log-probabilities
        yield page


def ask(page: Any, text: str) -> Any:
    """Asks and waits for the whole answer; returns it."""
    page.fill("#message", text)
    page.press("#message", "Enter")
    expect(page.locator("#chat")).to_have_attribute("aria-busy", "false")
    return page.locator(".message.assistant").last


def says(*texts: str) -> Script:
    """An engine that says these texts, one token each."""
    return lambda _request: [*(Step(text) for text in texts), Step("", [2], Stop(2))]


def test_an_answer_streams_in_and_is_kept(page: Any, tiny_server: ServerProcess) -> None:
    expect(page.locator("#message")).to_be_focused()
    answer = ask(page, "What is the capital of France?")
    expect(answer).to_contain_text("Paris")
    expect(answer.locator(".figures")).to_contain_text("tokens")
    expect(page.locator("#spoken")).to_contain_text("Paris")
    page.reload()
    expect(page.locator(".message.user")).to_contain_text("capital of France")
    expect(page.locator(".message.assistant")).to_contain_text("Paris")
    expect(page.locator(".chat-title")).to_have_text(["What is the capital of France?"])
    page.click("#new-chat")
    expect(page.locator(".welcome")).to_be_visible()
    ask(page, "What is 2 + 3?")
    page.locator(".chat-title", has_text="France").click()
    expect(page.locator(".message.assistant")).to_contain_text("Paris")
    page.get_by_role("button", name="Delete What is the capital of France?").click()
    expect(page.locator(".chat-title")).to_have_text(["What is 2 + 3?"])


def test_questions_are_edited_and_answers_made_again(page: Any) -> None:
    ask(page, "What is the capital of France?")
    ask(page, "What is 2 + 3?")
    first = page.locator(".message.user").first
    first.hover()
    first.get_by_role("button", name="Edit").click()
    box = page.get_by_label("Edit the message")
    expect(box).to_be_focused()
    box.press("Escape")
    expect(first).to_contain_text("France")
    first.get_by_role("button", name="Edit").click()
    box.fill("What is the capital of Italy?")
    box.press("Enter")
    expect(page.locator(".message")).to_have_count(2)
    expect(page.locator(".message.assistant")).to_contain_text("Rome")
    page.get_by_role("button", name="Regenerate").click()
    expect(page.locator("#chat")).to_have_attribute("aria-busy", "false")
    expect(page.locator(".message")).to_have_count(2)
    expect(page.locator(".message.assistant")).to_contain_text("Rome")


def test_tokens_show_how_likely_they_were(page: Any) -> None:
    page.fill("#field-temperature", "1.5")
    page.fill("#field-seed", "4")
    answer = ask(page, "Tell me a story about a dragon and a bridge.")
    answer.get_by_role("button", name="Tokens").click()
    tokens = answer.locator(".tokens .token")
    shown = "".join(tokens.all_text_contents()).replace("↵\n", "\n")
    answer.get_by_role("button", name="Tokens").click()
    text = page.evaluate("JSON.parse(localStorage['mysglang.chats'])[0].messages[1]")
    assert shown == "".join(token["text"] for token in text["tokens"]) and shown.startswith(text["content"])
    assert all(len(token["top"]) == 5 for token in text["tokens"])
    answer.get_by_role("button", name="Tokens").click()
    tokens.first.focus()
    expect(page.locator("#alternatives tr")).to_have_count(5)
    page.keyboard.press("ArrowRight")
    expect(tokens.nth(1)).to_be_focused()
    rows = page.locator("#alternatives")
    expect(rows).to_contain_text("log-probability")
    expect(rows.locator(".chosen code")).to_have_text(re.compile(re.escape(text["tokens"][1]["text"].strip())))
    page.keyboard.press("Escape")
    expect(rows).to_be_hidden()


def test_a_tool_is_called_and_its_result_typed_in(page: Any) -> None:
    page.click("#tab-tools")
    page.fill("#tools-json", "[{]")
    expect(page.locator("#panel-tools .verdict")).to_contain_text("not JSON")
    page.click("#panel-tools button:has-text('example')")
    page.locator("#tools-on").check()
    answer = ask(page, "What is the weather in Paris?")
    expect(answer.locator(".call")).to_contain_text("get_weather")
    expect(answer.locator(".call pre")).to_contain_text("Paris")
    result = page.get_by_label("What get_weather returns")
    expect(result).to_be_focused()
    result.fill('{"temperature": 21, "condition": "sunny"}')
    page.get_by_role("button", name="Send results").click()
    expect(page.locator(".message.assistant")).to_have_count(2)
    expect(page.locator(".message.assistant").last).to_contain_text("21")
    expect(page.locator(".message.tool")).to_contain_text("sunny")
    expect(page.locator("form.results")).to_have_count(0)


def test_an_answer_is_held_to_a_schema(page: Any) -> None:
    page.click("#tab-schema")
    page.locator("#schema-on").check()
    page.fill("#message", "What is the capital of France?")
    page.press("#message", "Enter")
    expect(page.locator("#problem")).to_contain_text("Schema: nothing is written there")
    page.click("#panel-schema button:has-text('example')")
    expect(page.locator("#panel-schema .verdict")).to_have_text("A schema, well formed.")
    # The embedded model would write any other text without an end.
    page.fill("#schema-json", json.dumps(SCHEMA))
    answer = ask(page, "What is the capital of France?")
    told = json.loads(answer.locator("pre").inner_text())
    assert told in ({"city": "Rome"}, {"city": "Oslo"}), "unlike what the model would say"
    expect(page.locator("#active")).to_have_text("With JSON schema")


def test_a_setting_out_of_range_is_named_and_not_sent(page: Any) -> None:
    page.fill("#field-top_p", "3")
    page.fill("#message", "Hello")
    page.press("#message", "Enter")
    expect(page.locator("#problem")).to_contain_text("Top p must be a number from 0.01 to 1")
    expect(page.locator("#message")).to_have_value("Hello")
    expect(page.locator("#field-top_p")).to_have_attribute("aria-invalid", "true")
    page.fill("#field-top_p", "")
    expect(ask(page, "Hello!")).not_to_be_empty()
    expect(page.locator("#problem")).to_be_hidden()


def test_the_tree_grows_and_shows_who_shares_it(page: Any, tiny_server: ServerProcess) -> None:
    page.click("a[href='#cache']")
    expect(page.locator("#cache")).to_contain_text("Nothing is cached yet")
    url, body = f"{tiny_server.url}/generate", {"sampling_params": {"temperature": 0, "max_new_tokens": 4}}
    httpx.post(url, json=body | {"text": "The quick brown fox"}).raise_for_status()
    expect(page.locator(".node", has_text="The quick brown fox")).to_be_visible()
    httpx.post(url, json=body | {"text": "The quick brown cat"}).raise_for_status()
    httpx.post(url, json=body | {"text": "Nobody may read this", "cache_salt": "s"}).raise_for_status()
    expect(page.locator(".node", has_text="A namespace of its own")).to_be_visible()
    shared = page.locator(".node", has_text=re.compile("The quick brown(?! fox| cat)"))
    expect(shared).to_have_attribute("aria-expanded", "true")
    expect(page.locator("#cache")).not_to_contain_text("Nobody")
    long = {
        "sampling_params": {"max_new_tokens": 7000, "ignore_eos": True},
        "text": "The quick brown fox",
        "stream": True,
    }
    page.click("a[href='#server']")
    running = page.locator(".tile", has_text="Running").locator(".value")
    expect(running).to_have_text("0")
    with ThreadPoolExecutor(2) as pool:
        asked = [pool.submit(httpx.post, url, json=long | {"rid": rid}, timeout=PATIENCE_S) for rid in ("a", "b")]
        try:
            expect(running).to_have_text("2")
            for name in ("Time to first token", "Between tokens"):
                tile = page.locator(".tile", has_text=name)
                expect(tile.locator(".value")).to_have_text(re.compile(r"\d\sm?s$"))
                expect(tile).to_contain_text("p99")
            page.click("a[href='#cache']")
            expect(shared.locator(".locks")).to_have_text("2 requests")
        finally:
            httpx.post(f"{tiny_server.url}/abort_request", json={"abort_all": True}).raise_for_status()
        assert {answer.result().status_code for answer in asked} == {200}
    expect(shared.locator(".locks")).to_have_text("")
    shared.focus()
    page.keyboard.press("ArrowLeft")
    expect(shared).to_have_attribute("aria-expanded", "false")
    expect(shared).to_be_focused()
    page.keyboard.press("ArrowDown")
    expect(shared).not_to_be_focused()


@pytest.mark.parametrize("scripted", [endless], indirect=True)
@pytest.mark.parametrize("how", ["Escape", "button"])
def test_what_streams_can_be_stopped(scripted: Any, how: str) -> None:
    scripted.fill("#message", "Go on")
    scripted.press("#message", "Enter")
    answer = scripted.locator(".message.assistant")
    expect(answer).to_contain_text("Hello")
    url = scripted.url.split("#")[0]
    assert httpx.get(f"{url}server_info").json()["frontend_state"]["open_requests"] == 1
    if how == "Escape":
        scripted.keyboard.press("Escape")
    else:
        scripted.get_by_role("button", name="Stop").click()
    expect(answer.locator(".note")).to_have_text("Stopped.")
    expect(scripted.get_by_role("button", name="Send")).to_be_visible()
    # The server hears of it as of a client that left.
    scripted.click("a[href='#server']")
    expect(scripted.locator("#chat")).to_be_hidden()
    wait_until(lambda: not httpx.get(f"{url}server_info").json()["frontend_state"]["open_requests"])
    scripted.reload()
    expect(answer).to_contain_text("Hello")


@pytest.mark.parametrize("scripted", [says(*re.findall(".{1,7}", ATTACK, re.S))], indirect=True)
def test_what_a_model_writes_is_no_markup(scripted: Any) -> None:
    title = scripted.title()
    answer = ask(scripted, ATTACK[:60])
    expect(answer).to_contain_text('<img src=x onerror="document.title=1">')
    expect(answer).to_contain_text("<script>document.title=1</script>")
    expect(answer).to_contain_text("[click](javascript:document.title=1)")
    expect(answer.locator("strong")).to_have_text("<b>bold</b>")
    expect(answer.locator("code")).to_have_text("<i>code</i>")
    thread = scripted.locator("#thread")
    expect(thread.locator("img, script, iframe, b, i")).to_have_count(0)
    # Pictures and addresses are links, and links lead to the web alone.
    links = {link.get_attribute("href") for link in thread.locator("a").all()}
    assert links == {"http://evil.example/x.png", "http://evil.example"}
    assert thread.locator("a").first.get_attribute("rel") == "noopener noreferrer nofollow"
    scripted.reload()
    expect(scripted.locator(".chat-title")).to_contain_text("<img src=x")
    expect(scripted.locator(".message.assistant")).to_contain_text("<script>")
    expect(scripted.locator("#thread, #chats").locator("img, script, iframe")).to_have_count(0)
    assert scripted.title() == title


MARKS = ("`", "**", "*a ", "_", "_a", "[", "![", "~~", "[a](", "# ", "> ", "- ", "| ", "|-", "```\n", "<", "http://")


RENDER = """async (marks) => {
  const { markdown } = await import(new URL("playground/markdown.js", document.baseURI));
  const told = (text) => markdown(text).map((node) => node.textContent).join("");
  return marks.map((mark) => told(mark.repeat(4000)).length);
}"""


def test_thousands_of_marks_do_not_stop_the_page(browser: Any, tiny_server: ServerProcess) -> None:
    """Patterns that went back and forth in such texts would take minutes."""
    with opened(browser, tiny_server.url) as page:
        sizes = page.evaluate(RENDER, MARKS)
    assert len(sizes) == len(MARKS) and sum(size > 3000 for size in sizes) > len(MARKS) / 2


@pytest.mark.parametrize("scripted", [says("Hello")], indirect=True)
def test_what_the_server_refuses_is_said_below_the_question(browser: Any, scripted: Any) -> None:
    answer = ask(scripted, "far too long " * 300)
    expect(answer.locator(".note.wrong")).to_contain_text("longer than the model's context length")
    expect(scripted.get_by_role("button", name="Regenerate")).to_be_visible()


def test_a_key_is_asked_for_and_kept_in_this_tab_alone(browser: Any) -> None:
    keys = AppOptions(served_model_name="tiny", api_keys=("sesame",), reasoning_parser="deepseek-r1")
    thoughts = says("It is <i>", "easy</i>.</think>", "Forty", "-two.")
    with scripted_server(keys, thoughts) as url, opened(browser, url, known_errors="status of 40") as page:
        dialog = page.locator("#keys")
        expect(dialog).to_contain_text("asks for an API key")
        page.keyboard.type("wrong")
        page.keyboard.press("Enter")
        expect(dialog).to_contain_text("not one of the server's")
        page.fill("#api-key", "sesame")
        page.keyboard.press("Enter")
        expect(dialog).to_be_hidden()
        expect(page.locator("#model")).to_have_text("tiny")
        page.locator("#tokens").uncheck()
        answer = ask(page, "What is the answer?")
        expect(answer.locator(":scope > .prose")).to_have_text("Forty-two.")
        expect(answer.locator(".thought .prose")).to_be_hidden()
        answer.locator("summary").click()
        expect(answer.locator(".thought .prose")).to_have_text("It is <i>easy</i>.")
        page.reload()
        expect(page.locator("#model")).to_have_text("tiny")
        kept = page.evaluate("[JSON.stringify(sessionStorage), JSON.stringify(localStorage), location.href]")
        assert ["sesame" in place for place in kept] == [True, False, False]
        page.click("a[href='#server']")
        expect(page.locator(".tile", has_text="Running").locator(".value")).to_have_text("0")
        page.click("a[href='#cache']")
        expect(page.locator("#cache")).to_contain_text("This view is for the operator")
        page.get_by_role("button", name="Use an admin key").click()
        expect(page.locator("#admin-key")).to_be_focused()
        page.keyboard.press("Escape")
        expect(dialog).to_be_hidden()


CONTRASTS = """() => {
  const parse = (text) => (text.match(/[\\d.]+/g) ?? []).map(Number);
  const srgb = (text) => parse(text).map((part, at) => text.startsWith("color(") && at < 3 ? part * 255 : part);
  const light = ([r, g, b]) => [r, g, b].map((part) => part / 255)
    .map((part) => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4)
    .reduce((sum, part, at) => sum + part * [0.2126, 0.7152, 0.0722][at], 0);
  const ground = (node) => {
    for (; node; node = node.parentElement) {
      const colour = srgb(getComputedStyle(node).backgroundColor);
      if (colour.length === 3 || colour[3] === 1) return colour;
    }
    return [255, 255, 255];
  };
  const low = [];
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  let seen = 0;
  while (walk.nextNode()) {
    const node = walk.currentNode.parentElement;
    const shown = node.checkVisibility({ visibilityProperty: true, opacityProperty: true });
    if (!walk.currentNode.data.trim() || !shown) continue;
    seen += 1;
    const [a, b] = [light(srgb(getComputedStyle(node).color)), light(ground(node))];
    const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (contrast < 4.5) low.push(`${node.className || node.tagName}: ${contrast.toFixed(2)}`);
  }
  return { seen, low };
}"""

NAMELESS = """() => [...document.querySelectorAll("button, input, select, textarea, a")]
  .filter((node) => !(node.ariaLabel || node.textContent.trim() || node.labels?.length))
  .map((node) => node.id || node.className)"""


# Contrasts do not depend on the width, nor does what fits into it on the colours.
@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 360)])
def test_it_can_be_read_in_every_colour_and_width(
    browser: Any, tiny_server: ServerProcess, scheme: str, width: int
) -> None:
    size = {"width": width, "height": 740}
    with opened(browser, tiny_server.url, viewport=size, color_scheme=scheme) as page:
        answer = ask(page, "Hello!")
        answer.get_by_role("button", name="Tokens").click()
        for view in ("chat", "server", "cache"):
            page.click(f"a[href='#{view}']")
            expect(page.locator(f"#{view}")).to_be_visible()
            if view == "cache":
                expect(page.locator(".node").first).to_be_visible()
            told = page.evaluate(CONTRASTS)
            assert told["seen"] > 8 and not told["low"], (view, told)
            assert page.evaluate("document.documentElement.scrollWidth") <= width, view
        assert not page.evaluate(NAMELESS)
        if width == 360:
            page.click("#open-settings")
            expect(page.locator("#system")).to_be_visible()
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            page.keyboard.press("Escape")
            expect(page.locator("#system")).to_be_hidden()
            expect(page.locator("#open-settings")).to_be_focused()


def test_colours_follow_the_switch_and_are_kept(browser: Any, tiny_server: ServerProcess) -> None:
    with opened(browser, tiny_server.url, color_scheme="light") as page:
        button = page.locator("#switch-theme")
        expect(button).to_have_attribute("aria-label", "Colours: as the system")
        button.click()
        button.click()
        expect(button).to_have_attribute("aria-label", "Colours: dark")
        page.reload()
        expect(page.locator("html")).to_have_css("color-scheme", "dark")
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.matches(':focus-visible')")
