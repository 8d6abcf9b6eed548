"""Ten thousand bodies with something wrong in them, sent to every route that clients may use: each is answered by a 2xx
or a 4xx, and none of it stays in memory.
"""

import random
from typing import Any

import psutil
import pytest

from fixtures.scripted_engine import Served, hello, serve

BODIES, WARM_UP = 10_000, 3000
GROWTH = 50 << 20
"""Bytes that the process may take more at the end than after the warm-up."""

MESSAGES = [{"role": "user", "content": "Hello"}]
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
SOUND: dict[str, dict[str, Any]] = {
    "/generate": {"text": "Hi", "sampling_params": {"max_new_tokens": 2, "stop": ["x"]}, "return_logprob": True},
    "/v1/completions": {"prompt": ["Hi", "Ho"], "max_tokens": 2, "n": 2, "logprobs": 1, "logit_bias": {"5": 1}},
    "/v1/chat/completions": {"messages": MESSAGES, "max_tokens": 2, "tools": TOOLS, "top_p": 0.5},
    "/v1/responses": {"input": MESSAGES, "max_output_tokens": 2, "store": False},
    "/v1/responses/input_tokens": {"input": "Hi"},
    "/v1/messages": {"messages": MESSAGES, "max_tokens": 2, "model": "m", "system": "Be brief."},
    "/v1/messages/count_tokens": {"messages": MESSAGES, "model": "m"},
    "/api/chat": {"messages": MESSAGES, "model": "m", "stream": False, "options": {"num_predict": 2}},
    "/api/generate": {"prompt": "Hi", "model": "m", "stream": False},
    "/tokenize": {"prompt": "Hi"},
    "/detokenize": {"tokens": [5, 6]},
    "/v1/embeddings": {"input": "Hi"},
    "/v1/rerank": {"query": "a", "documents": ["b"]},
    "/parse_function_call": {"text": "x", "tools": TOOLS, "tool_call_parser": "hermes"},
    "/vertex_generate": {"instances": [{"text": "Hi"}]},
    "/open_session": {"timeout": 1.0},
}
"""Valid bodies of some routes; a body for any other begins empty."""

WRONG: list[Any] = [
    None, True, False, 0, -1, 1 << 31, 1 << 63, 1 << 70, 1e308, -1e-300, 0.5, 5_000_000, "", "x", "\x00", "\ufffd", [],
    [None], [[]], [-1], [1 << 40], {}, {"a": {"b": [{}]}}, {"-1": 1}, {"5": None}, ["a"] * 1000, "x" * 10_000,
    [[1], "a"], [{"role": "user"}], [{"type": "text", "text": 3}],
    {"type": "json_schema", "json_schema": {"schema": {"$ref": "#"}}},
]  # fmt: skip


def mutated(draw: random.Random, value: Any, fields: list[str]) -> Any:
    """The value with one fault: replaced, taken away, doubled, or one more."""
    if isinstance(value, dict) and draw.random() < 0.9:
        changed = dict(value)
        name = draw.choice(sorted(changed) or fields)
        match draw.randrange(4):
            case 0:
                changed[name] = mutated(draw, changed.get(name), fields)
            case 1:
                changed.pop(name, None)
            case _:
                changed[draw.choice(fields)] = draw.choice([*WRONG, changed.get(name)])
        return changed
    if isinstance(value, list) and value and draw.random() < 0.8:
        return [mutated(draw, value[0], fields), *value]
    return draw.choice(WRONG)


def routes(served: Served) -> list[tuple[str, list[str]]]:
    """Path and names of fields of every body in JSON, but for those of operators, and of scores: the scripted engine
    has none.
    """
    document = served.app.openapi()
    found = []
    for path, operations in document["paths"].items():
        operation = operations.get("post", {})
        content = operation.get("requestBody", {}).get("content", {}).get("application/json")
        if content is not None and "control" not in operation["tags"] and path != "/v1/score":
            model = document["components"]["schemas"][content["schema"]["$ref"].rpartition("/")[2]]
            found.append((path, [*model["properties"], "unheard_of"]))
    return found


@pytest.mark.slow
@pytest.mark.promise(32)
async def test_promise_32_ten_thousand_mutated_bodies() -> None:
    draw = random.Random(32)
    process, before = psutil.Process(), 0
    good = 0
    async with serve(hello) as served:
        known = routes(served)
        assert len(known) > 25 and SOUND.keys() <= {path for path, _ in known}
        for number in range(BODIES):
            if number == WARM_UP:
                before = process.memory_info().rss
            path, fields = draw.choice(known)
            body = SOUND.get(path, {})
            for _ in range(draw.randint(1, 3)):
                body = mutated(draw, body, fields)
            answer = await served.post(path, body)
            good += answer.status_code == 200
            assert answer.status_code == 200 or 400 <= answer.status_code < 500, (path, body, answer.text)
            assert answer.status_code == 200 or answer.text, (path, body)
        assert (await served.post("/generate", {"text": "Hi"})).json()["text"] == "Hello world"
        assert not served.front.tokenizer_manager.rid_to_state
    assert BODIES / 20 < good < BODIES / 2
    assert process.memory_info().rss - before < GROWTH
