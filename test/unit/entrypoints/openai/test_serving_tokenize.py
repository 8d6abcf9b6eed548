"""/tokenize and /detokenize, and their aliases: one prompt, several, a conversation, and back."""

import asyncio
from collections.abc import Awaitable, Sequence
from typing import Any

import pytest

from fixtures.scripted_engine import CONTEXT_LEN, serve, small
from mysglang.srt.utils import fair_turns
from mysglang.srt.utils.text import IncrementalDecoder
from mysglang.srt.utils.tokenizer import IDS_PIECE

HI = [{"role": "user", "content": "Hi"}]


@pytest.mark.parametrize("prefix", ["", "/v1"])
async def test_there_and_back(prefix: str) -> None:
    tokenizer = small("byte_level")
    ids = tokenizer.encode("The quick fox")
    async with serve() as served:
        there = (await served.post(f"{prefix}/tokenize", {"prompt": "The quick fox", "model": "tiny"})).json()
        back = (await served.post(f"{prefix}/detokenize", {"tokens": ids})).json()
    assert there == {"tokens": ids, "count": len(ids), "max_model_len": CONTEXT_LEN}
    assert back == {"text": "The quick fox"}


async def test_several_at_once() -> None:
    tokenizer = small("byte_level")
    texts = ["The", "", "quick fox"]
    lists = [tokenizer.encode(text) for text in texts]
    async with serve() as served:
        there = (await served.post("/tokenize", {"prompt": texts})).json()
        back = (await served.post("/detokenize", {"tokens": lists})).json()
        nothing = (await served.post("/detokenize", {"tokens": []})).json()
    assert there["tokens"] == lists
    assert there["count"] == [len(ids) for ids in lists]
    assert back == {"text": texts}
    assert nothing == {"text": ""}


async def turns_during(work: Awaitable[object]) -> int:
    """Turns of the event loop until `work` is done."""
    task, turns = asyncio.ensure_future(work), 0
    while not task.done():
        await asyncio.sleep(0)
        turns += 1
    await task
    return turns


async def test_many_at_once_let_others_have_their_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of them is too short for a thread: sixty thousand would keep the event loop for half a second."""
    monkeypatch.setattr(fair_turns, "HELD_S", 0.0)
    async with serve() as served:
        assert await turns_during(served.post("/tokenize", {"prompt": ["The"] * 3000})) > 3000
        assert await turns_during(served.post("/detokenize", {"tokens": [[1, 2]] * 3000})) > 3000


async def test_ids_are_bounded_and_their_text_is_made_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = small("byte_level")
    ids = tokenizer.encode("The quick fox ")
    fed: list[int] = []
    feed = IncrementalDecoder.feed

    def watched(self: IncrementalDecoder, some: Sequence[int]) -> str:
        fed.append(len(some))
        return feed(self, some)

    async with serve() as served:
        monkeypatch.setattr(IncrementalDecoder, "feed", watched)
        text = (await served.post("/detokenize", {"tokens": ids * 10_000})).json()["text"]
        refused = await served.post("/detokenize", {"tokens": [ids, [1] * (1 << 20)]})
    assert text == "The quick fox " * 10_000
    assert len(fed) > 1 and max(fed) <= IDS_PIECE
    assert refused.status_code == 400 and refused.json()["error"]["param"] == "tokens"


async def test_special_tokens_by_wish() -> None:
    async with serve(kind="metaspace") as served:
        framed = (await served.post("/tokenize", {"prompt": "The"})).json()["tokens"]
        bare = (await served.post("/tokenize", {"prompt": "The", "add_special_tokens": False})).json()["tokens"]
        shown = (await served.post("/detokenize", {"tokens": framed, "skip_special_tokens": False})).json()["text"]
        hidden = (await served.post("/detokenize", {"tokens": framed})).json()["text"]
    assert framed[1:] == bare
    assert shown.startswith("<s>")
    assert hidden == "The"


async def test_a_conversation_is_what_chat_would_send() -> None:
    async with serve() as served:
        await served.post("/v1/chat/completions", {"messages": HI})
        counted = (await served.post("/tokenize", {"messages": HI})).json()
        prompt = len(served.engine.requests[0].input_ids) // 4
        open_end = {"messages": HI, "add_generation_prompt": False}
        shorter = (await served.post("/tokenize", open_end)).json()
        neutral = {"messages": HI, "add_special_tokens": False}
        assert (await served.post("/tokenize", neutral)).json() == counted
        neutral = {"prompt": "a", "tools": [], "add_generation_prompt": True}
        assert (await served.post("/tokenize", neutral)).status_code == 200
    assert counted["count"] == prompt
    assert shorter["count"] < prompt


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": HI}, "prompt"),
        ("/tokenize", {"prompt": 5}, "prompt"),
        ("/tokenize", {"prompt": "a", "continue_final_message": True}, "continue_final_message"),
        ("/tokenize", {"prompt": "a", "add_generation_prompt": False}, "add_generation_prompt"),
        ("/tokenize", {"prompt": "a", "chat_template_kwargs": {"a": 1}}, "chat_template_kwargs"),
        ("/tokenize", {"messages": HI, "add_special_tokens": True}, "add_special_tokens"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": "a"}, "tokens"),
        ("/detokenize", {"tokens": [1, "a"]}, "tokens"),
        ("/detokenize", {"tokens": [1, [2]]}, "tokens"),
        ("/detokenize", {"tokens": [600]}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens"),
    ],
)
async def test_refusals(path: str, body: dict[str, Any], param: str) -> None:
    async with serve() as served:
        response = await served.post(path, body)
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)


async def test_without_a_tokenizer() -> None:
    async with serve(with_tokenizer=False) as served:
        for path, body in (("/tokenize", {"prompt": "a"}), ("/detokenize", {"tokens": [1]})):
            response = await served.post(path, body)
            assert response.status_code == 400
            assert "tokenizer" in response.json()["error"]["message"]
            assert response.json()["error"]["param"] in body
