"""Frames that go past the generator on a connection's wire are those that the generator would have sent."""

import asyncio
import re
import threading
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from fixtures.scripted_engine import Script, Step, Stop, endless, events, hello, logprob_row, serve, small
from fixtures.stream_folds import (
    Told,
    chat_stream,
    chat_whole,
    completion_stream,
    completion_whole,
    native_stream,
    native_whole,
)
from fixtures.stream_folds import events as data_of
from fixtures.wired import Wired
from mysglang.srt.entrypoints.app_options import AppOptions
from mysglang.srt.errors import WorkerDied
from mysglang.srt.managers import text_pool
from mysglang.srt.messages.outputs import Abort, Length, RowLogprobs
from mysglang.srt.messages.requests import TokenizedGenerateReqInput
from mysglang.srt.utils.tokenizer import Tokenizer

WORDS = ["Once", "", ' "quoted"', " \\ \n\u2028\u2029\x85", " é漢🙂", "\x00\x1f", " <think>", "x" * 300]


def story(_request: TokenizedGenerateReqInput) -> Iterable[Step]:
    steps = [Step(word, [number + 3]) for number, word in enumerate(WORDS)]
    return [*steps, Step("", [9, 2], Stop(2))]


def cut_short(_request: TokenizedGenerateReqInput) -> Iterable[Step]:
    return [Step("a"), Step("b"), Step("", [], Length(2))]


def aborted(_request: TokenizedGenerateReqInput) -> Iterable[Step]:
    return [Step("a"), Step("b"), Step("", [], Abort("Aborted by the client."))]


def broken(_request: TokenizedGenerateReqInput) -> Iterable[Step]:
    return [Step("a"), Step("b"), Step("", [], Abort("max_new_tokens is bad", status=400, param="max_new_tokens"))]


def with_logprobs(request: TokenizedGenerateReqInput) -> Iterable[Step]:
    for step in story(request):
        row = logprob_row(step.ids, [-0.5] * len(step.ids), [[(5, -0.5), (6, -1.5)]] * len(step.ids))
        yield Step(step.text, step.ids, step.finish, RowLogprobs(**row))


COMPLETION = {"prompt": "Hi", "rid": "r"}
CHAT = {"messages": [{"role": "user", "content": "Hi"}], "rid": "r"}
NATIVE = {"text": "Hi", "rid": "r"}
USAGE = {"stream_options": {"include_usage": True}}
EVERY_USAGE = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}
SEVERAL = {"prompt": ["a", "b"], "n": 2, "rid": "r"}

CASES: list[tuple[str, dict[str, Any], Script]] = [
    *(("/v1/completions", COMPLETION, script) for script in (hello, story, cut_short, aborted, broken)),
    ("/v1/completions", COMPLETION | USAGE, story),
    ("/v1/completions", COMPLETION | EVERY_USAGE, story),
    ("/v1/completions", COMPLETION | {"echo": True}, story),
    ("/v1/completions", COMPLETION | {"return_token_ids": True}, story),
    ("/v1/completions", COMPLETION | {"logprobs": 2}, with_logprobs),
    ("/v1/completions", SEVERAL, story),
    *(("/v1/chat/completions", CHAT, script) for script in (hello, story, cut_short, aborted, broken)),
    ("/v1/chat/completions", CHAT | USAGE, story),
    ("/v1/chat/completions", CHAT | EVERY_USAGE, story),
    ("/v1/chat/completions", CHAT | {"n": 3}, story),
    ("/v1/chat/completions", CHAT | {"logprobs": True, "top_logprobs": 2}, with_logprobs),
    *(("/generate", NATIVE, script) for script in (hello, story, cut_short, aborted, broken)),
    ("/generate", NATIVE | {"return_logprob": True, "top_logprobs_num": 2}, with_logprobs),
    ("/generate", {"text": ["a", "b"], "rid": ["r1", "r2"]}, story),
]


def told(body: bytes) -> list[bytes]:
    """The frames without what differs from one request to the next."""
    times = rb'"(created|e2e_latency|response_sent_to_client_ts|request_id|id)":("[^"]*"|[0-9.]+)'
    return [re.sub(times, rb'"\1":0', frame) for frame in events(body)]


@pytest.mark.parametrize(("path", "body", "script"), CASES)
async def test_the_wire_carries_what_the_generator_yields(path: str, body: dict[str, Any], script: Script) -> None:
    async with serve(script) as served:
        by_generator = await served.post(path, body | {"stream": True})
        wired = Wired(served.app)
        wired.post(path, body | {"stream": True})
        by_wire = await wired.answer()
        assert not served.front.tokenizer_manager.rid_to_state and not served.front.tokenizer_manager._named
    assert by_wire.status_code == by_generator.status_code == 200
    assert by_wire.headers["content-type"] == by_generator.headers["content-type"]
    assert wired.pieces > 0
    lines = by_wire.content.split(b"\n")
    assert by_wire.text.splitlines() == [line.decode() for line in lines[:-1]], "no line ends within a frame"
    found, wanted = told(by_wire.content), told(by_generator.content)
    assert len(wanted) > 2
    assert sorted(found) == sorted(wanted) if "n" in body or isinstance(body.get("text"), list) else found == wanted


TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}{{ tools }}"


def thoughtful(_request: TokenizedGenerateReqInput) -> Iterable[Step]:
    start, end = (small("byte_level").id_of(tag) for tag in ("<think>", "<|turn|>"))
    assert start is not None and end is not None
    thought = [Step("<think>", [start]), Step("Hm", [50]), Step(".<|turn|>", [51, end])]
    # Two tokens after the thought count as thought too: a tag in the answer is text, and its token a beginning.
    answer = [Step("Yes", [52]), Step("<think>", [start]), Step("", [53, end]), Step("so", [54, 55])]
    return [*thought, *answer, Step("!", [2], Stop(2))]


@pytest.mark.parametrize("tools", [{}, {"tools": [{"type": "function", "function": {"name": "f"}}]}])
@pytest.mark.parametrize("fields", [{}, {"return_token_ids": True}, {"stream_reasoning": False}])
async def test_text_behind_a_thought_goes_past_the_parsers(fields: dict[str, Any], tools: dict[str, Any]) -> None:
    options = AppOptions(tool_call_parser="hermes", reasoning_parser="<think>...<|turn|>")
    body = CHAT | USAGE | fields | tools | {"stream": True}
    async with serve(thoughtful, options, template=TEMPLATE) as served:
        by_generator = await served.post("/v1/chat/completions", body)
        wired = Wired(served.app)
        wired.post("/v1/chat/completions", body)
        by_wire = await wired.answer()
    assert told(by_wire.content) == told(by_generator.content)
    usage = data_of(by_wire.text)[-1]["usage"]
    assert usage["completion_tokens_details"]["reasoning_tokens"] == 7


@pytest.mark.parametrize(("path", "body"), [("/v1/completions", COMPLETION), ("/generate", NATIVE)])
async def test_who_leaves_is_aborted(path: str, body: dict[str, Any]) -> None:
    async with serve(endless) as served:
        wired = Wired(served.app)
        wired.post(path, body | {"stream": True})
        await wired.until(lambda: b"data: " in wired.transport.written)
        assert not served.engine.aborted
        wired.leave()
        await wired.until(lambda: bool(served.engine.aborted))
        await wired.until(lambda: not served.front.tokenizer_manager.rid_to_state)


async def test_who_does_not_read_gets_what_piled_up_in_one_frame() -> None:
    async with serve(endless) as served:
        wired, engine = Wired(served.app), served.engine
        wired.post("/v1/completions", COMPLETION | {"stream": True})
        await wired.until(lambda: b"data: " in wired.transport.written)
        wired.protocol.pause_writing()
        before = wired.transport.written
        for number in range(5):
            engine.say_step(engine.requests[0], Step(f" {number}"), 2 + number)
        for _ in range(1000):
            await asyncio.sleep(0)
        assert wired.transport.written == before
        wired.protocol.resume_writing()
        engine.say_step(engine.requests[0], Step(" end", [2], Stop(2)), 8)
        frames = events((await wired.answer()).content)
    assert sum(b'"text":" 0 1 2 3 4"' in frame for frame in frames) == 1
    assert frames[-1] == b"[DONE]"


async def test_the_engines_death_is_the_last_frame() -> None:
    async with serve(endless) as served:
        wired = Wired(served.app)
        wired.post("/v1/completions", COMPLETION | {"stream": True})
        await wired.until(lambda: b"data: " in wired.transport.written)
        served.front.tokenizer_manager.fail_all(WorkerDied("the scheduler was killed"))
        frames = events((await wired.answer()).content)
    assert b"engine_dead" in frames[-1] and b"[DONE]" not in frames


LOGPROBS = {"return_logprob": True, "top_logprobs_num": 2, "return_text_in_logprobs": True}
BOTH = {"text": ["a", "b"], "rid": ["r1", "r2"]} | LOGPROBS

WHOLE: list[tuple[str, dict[str, Any], Callable[[Any], list[Told]]]] = [
    ("/generate", NATIVE | LOGPROBS, native_whole),
    ("/generate", BOTH, native_whole),
    (
        "/vertex_generate",
        {"instances": [{"text": "a"}], "parameters": LOGPROBS},
        lambda a: native_whole(a["predictions"]),
    ),
    ("/v1/completions", SEVERAL | {"logprobs": 2}, completion_whole),
    ("/v1/chat/completions", CHAT | {"n": 2, "logprobs": True, "top_logprobs": 2}, chat_whole),
]
STREAMS: list[tuple[str, dict[str, Any], Callable[[Any], list[Told]]]] = [
    ("/generate", NATIVE | LOGPROBS, lambda frames: native_stream(frames, 1, incremental=False)),
    ("/generate", BOTH, lambda frames: native_stream(frames, 2, incremental=False)),
    ("/v1/completions", SEVERAL | USAGE | {"logprobs": 2}, lambda frames: completion_stream(frames, 4)),
    (
        "/v1/chat/completions",
        CHAT | USAGE | {"n": 2, "logprobs": True, "top_logprobs": 2},
        lambda frames: chat_stream(frames, 2),
    ),
]


class Whereabouts:
    """In which threads tokens become text."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.threads: set[str] = set()
        token_bytes = Tokenizer.token_bytes

        def noting(tokenizer: Tokenizer, token: int) -> bytes:
            self.threads.add(threading.current_thread().name.partition("_")[0])
            return token_bytes(tokenizer, token)

        monkeypatch.setattr(Tokenizer, "token_bytes", noting)
        self._patch = monkeypatch

    def expect(self, *, many: bool) -> None:
        """Let none be many numbers, or each."""
        self._patch.setattr(text_pool, "NUMBER", text_pool.LONG_TEXT if many else 1)
        self.threads.clear()

    def check(self, *, many: bool) -> None:
        assert self.threads == ({"long-text"} if many else {"MainThread"})


@pytest.mark.parametrize(("path", "body", "fold"), WHOLE)
async def test_a_whole_answer_that_is_long_to_tell_is_told_in_a_thread(
    path: str, body: dict[str, Any], fold: Callable[[Any], list[Told]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def at_once(_request: TokenizedGenerateReqInput) -> Iterable[Step]:
        row = logprob_row([3, 2], [-0.5] * 2, [[(5, -0.5), (6, -1.5)]] * 2)
        return [Step("Once", [3, 2], Stop(2), RowLogprobs(**row))]

    where, answers = Whereabouts(monkeypatch), []
    for many in (False, True):
        where.expect(many=many)
        async with serve(at_once) as served:
            answers.append(fold((await served.post(path, body)).json()))
        where.check(many=many)
    assert answers[0][0].text == "Once" and answers[0][0].logprobs
    assert answers[1] == answers[0]


@pytest.mark.parametrize(("path", "body", "fold"), STREAMS)
async def test_a_stream_that_is_long_to_tell_is_told_in_a_thread(
    path: str, body: dict[str, Any], fold: Callable[[Any], list[Told]], monkeypatch: pytest.MonkeyPatch
) -> None:
    where, answers = Whereabouts(monkeypatch), []
    for many in (False, True):
        where.expect(many=many)
        async with serve(with_logprobs) as served:
            answers.append((await served.post(path, body | {"stream": True})).text)
            wired = Wired(served.app)
            wired.post(path, body | {"stream": True})
            answers.append((await wired.answer()).text)
            assert wired.pieces
        where.check(many=many)
    told = [fold(data_of(answer)) for answer in answers]
    assert told[0][0].text == "".join(WORDS) and told[0][0].logprobs
    assert told == told[:1] * 4
