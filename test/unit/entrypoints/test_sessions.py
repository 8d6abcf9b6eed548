"""Sessions over a scripted engine, which answers with the tokens 7, 8, 9 and 2: what comes before a new prompt."""

import contextlib
from typing import Any

import httpx
import pytest

from fixtures.callers import asked_by
from fixtures.scripted_engine import Served, serve, small
from mysglang.srt.entrypoints import sessions as module
from mysglang.srt.entrypoints.sessions import Sessions
from mysglang.srt.errors import InvalidRequest, Overloaded
from mysglang.srt.managers.caller import Caller
from mysglang.srt.messages.generate import GenerateReqInput, SessionParams
from mysglang.srt.messages.packing import unpack_ids

ANSWER = [7, 8, 9, 2]


async def ask(served: Served, session: dict[str, Any], prompt: list[int], rid: str, **more: Any) -> httpx.Response:
    return await served.post("/generate", {"input_ids": prompt, "rid": rid, "session_params": session, **more})


def last_prompt(served: Served) -> list[int]:
    return unpack_ids(served.engine.requests[-1].input_ids).tolist()


@pytest.mark.parametrize("stream", [False, True])
async def test_a_prompt_stands_behind_what_it_refers_to(stream: bool) -> None:
    async with serve() as served:
        session = (await served.post("/open_session", {"capacity_of_str_len": 1000})).json()
        assert isinstance(session, str)
        first = await ask(served, {"id": session}, [3, 4], "a", stream=stream)
        assert (first.status_code, last_prompt(served)) == (200, [3, 4])
        await ask(served, {"id": session, "rid": "a"}, [5], "b", stream=stream)
        assert last_prompt(served) == [3, 4, *ANSWER, 5]
        await ask(served, {"id": session, "rid": "b"}, [6], "c")
        assert last_prompt(served) == [3, 4, *ANSWER, 5, *ANSWER, 6]
        await ask(served, {"id": session, "rid": "a", "offset": 3}, [6], "d")
        assert last_prompt(served) == [3, 4, 7, 6]
        await ask(served, {"id": session, "rid": "b", "drop_previous_output": True}, [6], "e")
        assert last_prompt(served) == [3, 4, *ANSWER, 5, 6]
        await ask(served, {"id": session, "rid": None}, [6], "f")
        assert last_prompt(served) == [6]


async def test_text_goes_on_without_a_second_beginning() -> None:
    async with serve() as served:
        session = (await served.post("/open_session", {})).json()
        await served.post("/generate", {"text": "Hi", "rid": "a", "session_params": {"id": session}})
        first = last_prompt(served)
        await served.post("/generate", {"text": " you", "session_params": {"id": session, "rid": "a"}})
        own = small("byte_level").encode(" you", add_special_tokens=False)
        assert last_prompt(served) == [*first, *ANSWER, *own]


async def test_the_engine_is_told_how_much_of_a_prompt_the_session_has_computed() -> None:
    async with serve() as served:
        await served.post("/open_session", {"session_id": "s"})
        await ask(served, {"id": "s"}, [3, 4], "a")
        await ask(served, {"id": "s", "rid": "a"}, [5], "b")
        await ask(served, {"id": "s", "rid": "b", "offset": -1}, [5], "c")
        await ask(served, {"id": "s", "rid": "a", "drop_previous_output": True}, [5], "d")
        await served.post("/generate", {"input_ids": [3]})
    # The last token of an answer is not computed.
    assert [request.tail_end for request in served.engine.requests] == [0, 5, 10, 5, None]
    assert unpack_ids(served.engine.requests[2].input_ids).tolist() == [3, 4, *ANSWER, 5, *ANSWER[:-1], 5]


async def test_replacing_forgets_what_grew_there() -> None:
    async with serve() as served:
        session = (await served.post("/open_session", {"session_id": "mine"})).json()
        assert session == "mine"
        await ask(served, {"id": session}, [3], "a")
        await ask(served, {"id": session, "rid": "a"}, [4], "b")
        await ask(served, {"id": session, "rid": "b"}, [4], "c")
        await ask(served, {"id": session, "rid": "a", "replace": True}, [5], "d")
        for gone in "bc":
            refused = await ask(served, {"id": session, "rid": gone}, [6], "x")
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, "session_params")
        assert (await ask(served, {"id": session, "rid": "d"}, [6], "e")).status_code == 200
        await ask(served, {"id": session, "replace": True}, [6], "f")
        assert (await ask(served, {"id": session, "rid": "a"}, [6], "g")).status_code == 400
        assert (await served.post("/close_session", {"session_id": session})).status_code == 200
        assert "no session 'mine' is open" in (await ask(served, {"id": session}, [6], "h")).json()["error"]["message"]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"session_params": {"id": "s", "rid": "nobody"}, "text": "a"}, "no finished request 'nobody'"),
        ({"session_params": {"id": "s"}, "text": ["a", "b"]}, "only for one prompt"),
        ({"session_params": {"id": "s"}, "text": "a", "sampling_params": {"n": 2}}, "only for one prompt"),
        ({"session_params": {}, "text": "a"}, "missing required field `id`"),
        ({"session_params": {"id": "s", "if": 1}, "text": "a"}, "unknown field `if`"),
    ],
)
async def test_refusals(body: dict[str, Any], words: str) -> None:
    async with serve() as served:
        await served.post("/open_session", {"session_id": "s"})
        response = await served.post("/generate", body)
        assert not served.engine.sent
    assert (response.status_code, words in response.json()["error"]["message"]) == (400, True), response.text


async def test_sessions_are_few_and_may_expire(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_SESSIONS", 2)
    now = [0.0]
    async with serve() as served:
        found = Sessions(served.front.tokenizer_manager, clock=lambda: now[0])
        brief = found.open(idle_s=10)
        found.open("long")
        with pytest.raises(Overloaded):
            found.open()
        now[0] = 11
        assert found.open() != brief
        with pytest.raises(InvalidRequest, match="is open already"):
            found.open("long")


async def test_names_that_are_used_again_make_no_circle() -> None:
    async with serve() as served:
        session = (await served.post("/open_session", {})).json()
        await ask(served, {"id": session}, [3], "a")
        await ask(served, {"id": session, "rid": "a"}, [4], "b")
        await ask(served, {"id": session, "rid": "b"}, [5], "a")
        again = await ask(served, {"id": session, "rid": "a", "replace": True}, [6], "a")
        assert again.status_code == 200
        assert last_prompt(served) == [3, *ANSWER, 4, *ANSWER, 5, *ANSWER, 6]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_streaming_session_only_grows(stream: bool) -> None:
    async with serve() as served:
        session = {"id": (await served.post("/open_session", {"streaming": True})).json()}
        grown: list[int] = []
        for turn in ([3, 4], [5], [6]):
            assert (await ask(served, session, turn, "the same", stream=stream)).status_code == 200
            grown += turn
            assert last_prompt(served) == grown
            grown += ANSWER
        # As in SGLang, the rid says nothing here.
        assert (await ask(served, {**session, "rid": "unknown"}, [9], "x", stream=stream)).status_code == 200
        assert last_prompt(served) == [*grown, 9]
        for more in ({"offset": 2}, {"replace": True}, {"drop_previous_output": True}):
            refused = await ask(served, {**session, **more}, [7], "x")
            assert refused.status_code == 400 and refused.json()["error"]["param"] == "session_params"


async def test_a_streaming_session_takes_one_request_at_a_time() -> None:
    async with serve() as served:
        sessions = Sessions(served.front.tokenizer_manager)
        session = sessions.open(streaming=True)
        obj = GenerateReqInput(input_ids=[3], session_params=SessionParams(id=session), stream=True)
        first = sessions.generate_request(obj)
        await anext(first)
        with pytest.raises(InvalidRequest, match="one at a time"):
            await anext(sessions.generate_request(obj))
        # A departed client gives its turn back.
        await first.aclose()
        chunks = [chunk async for chunk in sessions.generate_request(obj)]
        assert chunks[-1].finish_reason is not None
        assert last_prompt(served) == [3]


async def turn(sessions: Sessions, key: str, session: str, rid: str, length: int, after: str | None = None) -> None:
    """One request of that many tokens."""
    with asked_by(Caller(api_key=key)):
        params = SessionParams(id=session, rid=after)
        obj = GenerateReqInput(input_ids=[3] * length, rid=rid, session_params=params)
        async with contextlib.aclosing(sessions.generate_request(obj)) as chunks:
            async for _ in chunks:
                pass


def opened(sessions: Sessions, key: str, name: str, **options: Any) -> str:
    with asked_by(Caller(api_key=key)):
        return sessions.open(name, **options)


@pytest.mark.promise(44)
async def test_a_flood_of_sessions_leaves_other_keys_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_SESSIONS", 8)
    async with serve() as served:
        sessions = Sessions(served.front.tokenizer_manager, 2)
        for number in range(6):
            opened(sessions, "flood", f"s{number}")
        with pytest.raises(Overloaded):
            opened(sessions, "flood", "one more")
        # Names are each key's own, so that none can be found out.
        assert [opened(sessions, "b", f"s{number}") for number in range(2)] == ["s0", "s1"]
        with asked_by(Caller(api_key="flood")):
            sessions.close("s0")
        opened(sessions, "flood", "one more")
        await turn(sessions, "b", "s0", "a", 2)


@pytest.mark.promise(44)
async def test_sessions_are_bounded_in_bytes_and_the_largest_key_gives_way(monkeypatch: pytest.MonkeyPatch) -> None:
    room = 8 * (module.TURN_BYTES + 4 * 104)
    monkeypatch.setattr(module, "MAX_BYTES", room)
    async with serve() as served:
        sessions = Sessions(served.front.tokenizer_manager, 2)
        opened(sessions, "b", "mine")
        await turn(sessions, "b", "mine", "first", 100)
        for number in range(30):
            opened(sessions, "flood", f"s{number}")
            await turn(sessions, "flood", f"s{number}", "first", 100)
        assert 0 < sessions._bytes.used <= room
        await turn(sessions, "b", "mine", "second", 1, after="first")
        assert last_prompt(served) == [3] * 100 + ANSWER + [3]
        await turn(sessions, "flood", "s29", "second", 1, after="first")
        with pytest.raises(InvalidRequest, match="no session 's0'"):
            await turn(sessions, "flood", "s0", "second", 1, after="first")
        for name in [name for _, name in sessions._sessions]:
            for key in ("b", "flood"):
                with asked_by(Caller(api_key=key)):
                    sessions.close(name)
        assert sessions._bytes.used == sessions._number.used == 0


async def test_a_session_alone_loses_its_oldest_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_BYTES", 3 * (module.TURN_BYTES + 4 * 104))
    async with serve() as served:
        sessions = Sessions(served.front.tokenizer_manager)
        opened(sessions, "", "s")
        for number in range(5):
            await turn(sessions, "", "s", f"r{number}", 100)
        await turn(sessions, "", "s", "x", 1, after="r4")
        with pytest.raises(InvalidRequest, match="no finished request 'r0'"):
            await turn(sessions, "", "s", "y", 1, after="r0")
