"""The warm-up is one real request, and its failure is the launch's."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mysglang.srt.entrypoints.front import Front
from mysglang.srt.entrypoints.warmup import warm_up
from mysglang.srt.errors import Aborted, WorkerDied
from mysglang.srt.messages.generate import GenerateReqInput


class Recorder:
    """A manager that notes what it was asked, and may fail."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.asked: list[GenerateReqInput] = []

    async def generate_request(self, obj: GenerateReqInput) -> AsyncGenerator[Any, None]:
        self.asked.append(obj)
        if self.error is not None:
            raise self.error
        yield None


def front(manager: Recorder, tokenizer: object, *, is_embedding: bool = False, longest: int = 8191) -> Front:
    facts = SimpleNamespace(is_embedding=is_embedding, context_len=8192, max_req_input_len=longest)
    return cast("Front", SimpleNamespace(tokenizer_manager=manager, tokenizer=tokenizer, facts=facts))


async def test_asks_in_text_where_there_is_a_tokenizer() -> None:
    manager = Recorder()
    await warm_up(front(manager, object()))
    (asked,) = manager.asked
    assert asked.text and asked.input_ids is None
    assert asked.clip_max_new_tokens, "a context of a few tokens is warmed up too"


async def test_asks_in_ids_where_there_is_none() -> None:
    manager = Recorder()
    await warm_up(front(manager, None))
    assert manager.asked[0].input_ids == [0]


@pytest.mark.parametrize("is_embedding", [False, True])
async def test_asks_with_one_token_where_the_text_might_not_fit(is_embedding: bool) -> None:
    manager = Recorder()
    await warm_up(front(manager, object(), is_embedding=is_embedding, longest=1))
    (asked,) = manager.asked
    assert asked.text is None and asked.input_ids == [0]


@pytest.mark.parametrize("tokenizer", [object(), None])
async def test_asks_a_model_for_a_vector_that_gives_no_text(tokenizer: object) -> None:
    manager = Recorder()
    await warm_up(front(manager, tokenizer, is_embedding=True))
    (asked,) = manager.asked
    assert asked.pool and (asked.text is None) == (tokenizer is None)


@pytest.mark.parametrize("error", [Aborted("no room", status=500), WorkerDied("gone")])
async def test_failure(error: Exception) -> None:
    with pytest.raises(WorkerDied, match=str(error)):
        await warm_up(front(Recorder(error), None))
