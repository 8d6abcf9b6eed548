"""/v1/responses, beside what all dialects do: golden events, conversations that go on, what is kept, the background."""

import asyncio
from itertools import groupby
from typing import Any

import orjson
import pytest

from fixtures.dialects import CALL, OPTIONS, RESPONSES, TEMPLATE, prompt_of, says
from fixtures.patience import PATIENCE_S, answered
from fixtures.scripted_engine import Length, Served, Step, Stop, serve, silent
from fixtures.stream_folds import response_output
from mysglang.srt.entrypoints.app_options import AppOptions
from mysglang.srt.entrypoints.openai.responses import serving as serving_module
from mysglang.srt.entrypoints.openai.responses.serving import OpenAIServingResponses
from mysglang.srt.entrypoints.openai.responses.store import ResponseStore, StoredResponse
from mysglang.srt.entrypoints.openai.serving_base import ServingOptions
from mysglang.srt.messages.outputs import Abort, FinishReason

PATH = RESPONSES.path
[WEATHER] = RESPONSES.weather["tools"]
asked, whole, streamed = RESPONSES.asked, RESPONSES.ask, RESPONSES.stream


async def test_a_whole_response() -> None:
    async with serve(options=AppOptions(served_model_name="tiny", serving=ServingOptions())) as served:
        response = await whole(served, temperature=0.5, metadata={"a": "b"})
    assert response["id"].startswith("resp_")
    (item,) = response["output"]
    assert item.pop("id").startswith("msg_")
    assert item == {
        "type": "message",
        "role": "assistant",
        "status": "completed",
        "content": [{"type": "output_text", "text": "Hello world", "annotations": [], "logprobs": []}],
    }
    expected = {"object": "response", "status": "completed", "error": None, "incomplete_details": None}
    assert expected.items() <= response.items()
    assert (response["temperature"], response["top_p"], response["metadata"]) == (0.5, 1.0, {"a": "b"})
    usage = response["usage"]
    assert (usage["output_tokens"], usage["total_tokens"]) == (4, usage["input_tokens"] + 4)


async def test_the_events() -> None:
    async with serve(says(CALL), OPTIONS, template=TEMPLATE) as served:
        events = await streamed(served, tools=[WEATHER])
    kinds = [event["type"].removeprefix("response.") for event in events]
    assert [kind for kind, _ in groupby(kinds)] == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "reasoning_text.delta",
        "reasoning_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
        "completed",
    ]
    created, in_progress, *between, completed = events
    assert created["response"] == in_progress["response"]
    assert created["response"]["status"] == "in_progress"
    thought, text, call = response_output(between)
    assert completed["response"]["output"] == [thought, text, call]
    assert (thought["content"], thought["summary"]) == ([{"type": "reasoning_text", "text": "Hm."}], [])
    assert text["content"][0]["text"] == "So:"
    assert (call["name"], orjson.loads(call["arguments"]), call["call_id"][:5]) == (
        "weather",
        {"city": "Köln"},
        "call_",
    )


@pytest.mark.parametrize("finish", [Stop(2), Length(9)], ids=["completed", "incomplete"])
@pytest.mark.parametrize("text", ["", "Hello.", CALL])
async def test_what_was_streamed_is_kept(text: str, finish: FinishReason) -> None:
    async with serve(says(text, 3, finish), OPTIONS, template=TEMPLATE) as served:
        last = (await streamed(served, tools=[WEATHER]))[-1]
        kept = (await served.client.get(f"{PATH}/{last['response']['id']}")).json()
    assert kept == last["response"]
    assert kept["status"] == ("completed" if isinstance(finish, Stop) else "incomplete")
    assert last["type"] == f"response.{kept['status']}"
    if kept["output"]:
        assert kept["output"][-1]["status"] == kept["status"]


async def test_a_conversation_goes_on() -> None:
    async with serve(says(CALL), OPTIONS, template=TEMPLATE) as served:
        first = await whole(served, input="a", instructions="not carried on", tools=[WEATHER])
        call_id = first["output"][-1]["call_id"]
        output = [{"type": "function_call_output", "call_id": call_id, "output": "warm"}]
        second = await whole(served, input=output, previous_response_id=first["id"])
        prompt = await prompt_of(served)
        items = (await served.client.get(f"{PATH}/{second['id']}/input_items?order=asc")).json()
        page = (await served.client.get(f"{PATH}/{second['id']}/input_items?limit=2")).json()
        rest = (await served.client.get(f"{PATH}/{second['id']}/input_items?after={page['last_id']}")).json()
    assert prompt == (
        '[user]a/[assistant]So:<think>Hm.</think><tool_call>weather {"city": "Köln"}/[tool]warm/[assistant]'
    )
    assert second["previous_response_id"] == first["id"]
    kinds = ["message", "reasoning", "message", "function_call", "function_call_output"]
    assert [item["type"] for item in items["data"]] == kinds
    assert items["data"][1:4] == first["output"]
    assert all(item["id"] for item in items["data"])
    assert (page["has_more"], rest["has_more"]) == (True, False)
    assert [*page["data"], *rest["data"]] == items["data"][::-1]


async def test_what_was_not_stored_is_gone() -> None:
    async with serve() as served:
        kept, not_kept = await whole(served), await whole(served, store=False)
        assert (await served.client.get(f"{PATH}/{kept['id']}")).json() == kept
        for response_id in (not_kept["id"], "resp_0"):
            assert (await served.client.get(f"{PATH}/{response_id}")).status_code == 404
            refused = await served.post(PATH, asked(previous_response_id=response_id))
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, "previous_response_id")
        deleted = await served.client.delete(f"{PATH}/{kept['id']}")
        assert deleted.json() == {"id": kept["id"], "object": "response", "deleted": True}
        assert (await served.client.delete(f"{PATH}/{kept['id']}")).status_code == 404


async def until(served: Served, response_id: str, *states: str) -> dict[str, Any]:
    asked = await answered(
        lambda: served.client.get(f"{PATH}/{response_id}"), lambda found: found.json()["status"] in states
    )
    response: dict[str, Any] = asked.json()
    return response


async def test_in_the_background() -> None:
    async with serve() as served:
        begun = await whole(served, background=True)
        assert (begun["status"], begun["output"], begun["background"]) == ("in_progress", [], True)
        done = await until(served, begun["id"], "completed")
        assert done["output"][0]["content"][0]["text"] == "Hello world"
        assert (await served.post(f"{PATH}/{begun['id']}/cancel", {})).json() == done


@pytest.mark.promise(43)
@pytest.mark.parametrize("how", ["cancel", "delete"])
async def test_a_background_response_is_stopped(how: str) -> None:
    async with serve(silent) as served:
        begun = await whole(served, background=True)
        while not served.engine.requests:
            await asyncio.sleep(0)
        refused = await served.post(PATH, asked(previous_response_id=begun["id"]))
        assert "in_progress" in refused.json()["error"]["message"]
        if how == "cancel":
            stopped = (await served.post(f"{PATH}/{begun['id']}/cancel", {})).json()
            assert stopped == {**begun, "status": "cancelled"}
            assert (await served.client.get(f"{PATH}/{begun['id']}")).json() == stopped
        else:
            await served.client.delete(f"{PATH}/{begun['id']}")
            assert (await served.client.get(f"{PATH}/{begun['id']}")).status_code == 404
        for _ in range(20):
            await asyncio.sleep(0)
        assert served.engine.aborted == [served.engine.requests[0].rid]
        assert served.front.tokenizer_manager.open_requests == 0


@pytest.mark.promise(44)
async def test_events_in_the_background_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A response that was forgotten to make room for others of its key is not worked on any more."""
    monkeypatch.setattr(serving_module, "COUNTED_BYTES", 1)
    kept = iter([True, True])
    monkeypatch.setattr(ResponseStore, "grow", lambda store, response_id, size: next(kept, False))
    async with serve(lambda _: [Step("Hello"), Step(" world")]) as served:
        frames = await streamed(served, background=True)
        assert frames[-1]["type"] != "response.completed"
        async with asyncio.timeout(PATIENCE_S):
            while not served.engine.aborted:
                await asyncio.sleep(0)
        assert served.front.tokenizer_manager.open_requests == 0


async def test_a_response_that_is_complete_is_not_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even between the moment in which its answer is kept and the end of its job."""
    cancelled: list[dict[str, Any]] = []
    kept = ResponseStore.put

    def put_and_cancel(store: ResponseStore, stored: StoredResponse) -> None:
        kept(store, stored)
        if stored.response["status"] == "completed" and not cancelled:
            cancelled.append(serving[0].cancel(stored.response["id"]))

    serving: list[OpenAIServingResponses] = []
    made = OpenAIServingResponses.__init__
    monkeypatch.setattr(
        OpenAIServingResponses,
        "__init__",
        lambda self, *args, **named: (serving.append(self), made(self, *args, **named))[1],
    )
    monkeypatch.setattr(ResponseStore, "put", put_and_cancel)
    async with serve() as served:
        events = await streamed(served, background=True)
        done = (await served.client.get(f"{PATH}/{events[-1]['response']['id']}")).json()
    assert (events[-1]["type"], done["status"], cancelled) == ("response.completed", "completed", [done])


async def test_a_background_response_that_fails() -> None:
    script = [Step("Hello"), Step("", [], Abort("no memory", status=500))]
    async with serve(lambda _: script) as served:
        begun = await whole(served, background=True)
        failed = await until(served, begun["id"], "failed")
        refused = await served.post(f"{PATH}/{(await whole_of(served))['id']}/cancel", {})
    assert failed["error"] == {"code": "server_error", "message": "no memory"}
    assert refused.status_code == 400


async def whole_of(served: Served) -> dict[str, Any]:
    """A response that is not in the background."""
    served.engine.script = says("Yes.")
    return await whole(served)


@pytest.mark.parametrize("abort", [Abort("no memory", status=500), Abort("Aborted by the client.")])
async def test_an_answer_that_fails_is_kept_with_what_it_has(abort: Abort) -> None:
    async with serve(lambda _: [Step("Hello"), Step("", [], abort)]) as served:
        *before, failed = await streamed(served)
        kept = (await served.client.get(f"{PATH}/{failed['response']['id']}")).json()
    assert failed["type"] == "response.failed"
    assert failed["response"]["output"] == response_output(before[2:])
    assert failed["response"]["output"][0]["status"] == "incomplete"
    assert kept == failed["response"]


async def test_a_query_is_refused_by_name() -> None:
    async with serve() as served:
        response_id = (await whole(served))["id"]
        for path, name in ((response_id, "stream"), (f"{response_id}/input_items", "include")):
            response = await served.client.get(f"{PATH}/{path}?{name}=true")
            assert (response.status_code, response.json()["error"]["param"]) == (400, name)
        assert (await served.client.get(f"{PATH}/{response_id}/input_items?limit=0")).status_code == 400
        assert (await served.client.get(f"{PATH}/{response_id}/input_items?after=x")).status_code == 400


@pytest.mark.parametrize(
    "fields",
    [{}, {"instructions": "Be brief.", "tools": [WEATHER]}, {"input": [{"role": "user", "content": "Köln?"}]}],
)
async def test_the_tokens_of_a_prompt_are_counted(fields: dict[str, Any]) -> None:
    """As many as the response to the same says, without one being made."""
    async with serve(says("Hm."), OPTIONS, template=TEMPLATE) as served:
        first = await whole(served)
        more = {**fields, "previous_response_id": first["id"]}
        counted = await served.post(f"{PATH}/input_tokens", asked(**more))
        assert len(served.engine.requests) == 1
        answered = await whole(served, **more)
        refused = await served.post(f"{PATH}/input_tokens", asked(personality="friendly"))
    usage = answered["usage"]
    assert counted.json() == {"object": "response.input_tokens", "input_tokens": usage["input_tokens"]}
    assert usage["input_tokens_details"] == {"cached_tokens": 0, "cache_write_tokens": 0}
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "personality")


@pytest.mark.parametrize(
    ("metadata", "words"),
    [
        ({str(number): "" for number in range(17)}, "16"),
        ({"k" * 65: ""}, "64"),
        ({"k": "v" * 513}, "512"),
    ],
)
async def test_metadata_is_bounded(metadata: dict[str, str], words: str) -> None:
    most = {str(number).zfill(64): "v" * 512 for number in range(16)}
    async with serve() as served:
        refused = await served.post(PATH, asked(metadata=metadata))
        assert (await whole(served, metadata=most))["metadata"] == most
    error = refused.json()["error"]
    assert refused.status_code == 400 and error["param"].startswith("metadata") and words in error["message"]


async def test_an_id_names_one_item() -> None:
    """Pages of a conversation go on after an id: with two of the same, they would never end."""
    message = {"role": "user", "content": "a", "id": "msg_1"}
    async with serve() as served:
        first = await whole(served, input=[message])
        twice = [message, {**message, "content": "b"}]
        for more in ({"input": twice}, {"input": [message], "previous_response_id": first["id"]}):
            refused = await served.post(PATH, asked(**more))
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, "input")
            assert "'msg_1'" in refused.json()["error"]["message"]
        last = await whole(served, input=[{**message, "id": f"msg_{number}"} for number in range(5)])
        seen: list[str] = []
        page = {"has_more": True, "last_id": ""}
        while page["has_more"]:
            after = f"&after={page['last_id']}" if seen else ""
            page = (await served.client.get(f"{PATH}/{last['id']}/input_items?limit=2{after}")).json()
            seen += [item["id"] for item in page["data"]]
    assert seen == [f"msg_{number}" for number in reversed(range(5))]
