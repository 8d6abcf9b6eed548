"""Bodies that are wrong in every way, sent to a whole server: each is answered by a 2xx or a 4xx. Requests beside them
get the bits that they get alone, and the processes take no more memory in the end.
"""

import asyncio
import json
import random
from collections import Counter
from typing import Any

import httpx
import pytest

from fixtures.oracle import assert_quiet, debug_state
from fixtures.patience import PATIENCE_S
from fixtures.warm_start import WarmServer

ADMIN_KEY = "for the tests"
OPTIONS = ("--log-level", "error", "--admin-api-key", ADMIN_KEY, "--enable-deterministic-inference")
BODIES, WARM = 400, 100
"""Drawn bodies, and those of the storm before, which leaves the processes warm."""
AT_ONCE = 6
GROWTH = 128 << 20
"""Bytes that a process may take more than before, warm as it is: a few of the largest bodies."""

MESSAGES = [{"role": "user", "content": "Hello"}]
SOUND: dict[str, dict[str, Any]] = {
    "/generate": {"text": "Hi", "sampling_params": {"max_new_tokens": 2, "stop": ["x"]}, "return_logprob": True},
    "/v1/completions": {"prompt": "Hi", "max_tokens": 2, "n": 2, "logprobs": 1, "logit_bias": {"5": 1}},
    "/v1/chat/completions": {"messages": MESSAGES, "max_tokens": 2, "stream_options": None, "top_p": 0.5},
    "/v1/responses": {"input": "Hi", "max_output_tokens": 2, "store": False},
    "/v1/messages": {"messages": MESSAGES, "max_tokens": 2, "model": "m", "system": "Be brief."},
    "/api/chat": {"messages": MESSAGES, "model": "m", "stream": False, "options": {"num_predict": 2}},
    "/tokenize": {"prompt": "Hi"},
    "/v1/score": {"query": "a", "items": ["b"], "label_token_ids": [5]},
    "/parse_function_call": {"text": "x", "tools": [], "tool_call_parser": "hermes"},
}
WRONG: list[Any] = [
    None, True, -1, 1 << 31, 1 << 63, 1 << 70, 1e308, -1e-300, 0.5, "", "x", "\x00", "\uffff", [], [[]], [None], {},
    {"a": {"b": [{}]}}, ["a"] * 2000, [-1], "x" * 300_000, list(range(20_000)), {str(i): i for i in range(3000)},
    {"type": "image_url", "image_url": {"url": "file:///etc/passwd"}},
    [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://127.0.0.1:1/"}}]}],
    {"type": "json_schema", "json_schema": {"name": "x", "schema": {"$ref": "file:///etc/passwd"}}},
]  # fmt: skip
FIELDS = (
    "stream", "rid", "n", "stop", "regex", "json_schema", "ebnf", "response_format", "tools", "tool_choice", "seed",
    "temperature", "top_k", "extra_key", "cache_salt", "input_embeds", "chat_template_kwargs", "custom_logit_processor",
    "image_data", "lora_path", "chat_template", "model", "logprobs", "top_logprobs", "unheard_of", "suffix", "echo",
)  # fmt: skip
RAW = (
    b"", b"{", b"\xff\xfe", b"null", b"[]", b'{"text": "\\ud800"}', b"[" * 400, b'{"a":' * 400, b"[" * 2_000_000,
    b"0" * 5_000_000, b'{"text": NaN}',
    b'{"text": "a", "text": "b"}', b"\x80\x04\x95\x1d\x00\x00\x00\x00\x00\x00\x00\x8c\x05posix.",
)  # fmt: skip


def mutated(draw: random.Random, value: Any) -> Any:
    """The value with one fault: replaced, taken away, doubled, or one more."""
    if isinstance(value, dict) and value and draw.random() < 0.8:
        fields = dict(value)
        name = draw.choice(sorted(fields))
        match draw.randrange(4):
            case 0:
                fields[name] = mutated(draw, fields[name])
            case 1:
                del fields[name]
            case 2:
                fields[draw.choice(FIELDS)] = draw.choice(WRONG)
            case _:
                fields[draw.choice(FIELDS)] = fields[name]
        return fields
    if isinstance(value, list) and value and draw.random() < 0.8:
        return [mutated(draw, value[0]), *value]
    return draw.choice(WRONG)


async def send_all(client: httpx.AsyncClient, seed: int, drawn: int) -> Counter[int]:
    """Statuses of the answers to many bodies, all of which must be good or name what is wrong."""
    draw = random.Random(seed)
    paths = sorted(SOUND)
    bodies: list[tuple[str, bytes]] = [(path, raw) for path in paths for raw in RAW]
    for _ in range(drawn):
        path = draw.choice(paths)
        body = SOUND[path]
        for _ in range(draw.randint(1, 3)):
            body = mutated(draw, body)
        bodies.append((path, json.dumps(body).encode()))
    statuses: Counter[int] = Counter()
    gate = asyncio.Semaphore(AT_ONCE)

    async def send(path: str, body: bytes) -> None:
        async with gate:
            answer = await client.post(path, content=body, headers={"content-type": "application/json"})
        assert answer.status_code < 500, (path, body[:300], answer.text)
        if answer.status_code >= 400:
            assert answer.text, (path, body[:300])
        assert "root:" not in answer.text
        statuses[answer.status_code] += 1

    await asyncio.gather(*(send(path, body) for path, body in bodies))
    return statuses


async def listen(client: httpx.AsyncClient, number: int) -> list[Any]:
    """Ids and log-probabilities of an answer that takes a while."""
    params = {"max_new_tokens": 60, "temperature": 1.0, "sampling_seed": number, "ignore_eos": True}
    body = {"text": f"Story number {number}: once", "sampling_params": params, "return_logprob": True}
    told = (await client.post("/generate", json=body)).raise_for_status().json()
    return [told["output_ids"], told["meta_info"]["output_token_logprobs"]]


def memory(url: str) -> dict[str, int]:
    processes = debug_state(url, ADMIN_KEY)["processes"]
    return {process["title"]: process["rss_bytes"] for process in processes}


@pytest.mark.slow
@pytest.mark.promise(32)
@pytest.mark.promise(39)
def test_promise_32_no_body_disturbs_others() -> None:
    async def storm(url: str, seed: int, drawn: int) -> tuple[Counter[int], list[list[Any]], list[list[Any]]]:
        limits = httpx.Limits(max_connections=AT_ONCE + 4)
        async with httpx.AsyncClient(base_url=url, timeout=PATIENCE_S, limits=limits) as client:
            alone = [await listen(client, number) for number in range(3)]
            sending = asyncio.create_task(send_all(client, seed, drawn))
            together = [await asyncio.gather(*(listen(client, number) for number in range(3)))]
            while not sending.done():
                together.append(await asyncio.gather(*(listen(client, number) for number in range(3))))
            return await sending, alone, together

    with WarmServer(*OPTIONS) as server:
        url = server.url
        pids = {title: child.pid for title, child in server.children().items()}
        asyncio.run(storm(url, 1, WARM))
        before = memory(url)
        statuses, alone, together = asyncio.run(storm(url, 2, BODIES))
        assert all(answers == alone for answers in together)
        assert statuses[200] > 20 and statuses[400] > 200, statuses
        assert_quiet(url, admin_key=ADMIN_KEY)
        after = memory(url)
        assert {title: child.pid for title, child in server.children().items() if title in pids} == pids
        assert all(after[title] - taken < GROWTH for title, taken in before.items()), (before, after)
