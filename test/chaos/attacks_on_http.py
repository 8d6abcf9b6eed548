"""Attacks by bytes: heads that do not end, bodies that cost more than they weigh, and bodies that do not come."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from chaos.attack import ATTACKER, Attack, Blow, Target, attack
from fixtures.hostile_templates import HOSTILE

GET = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n"
POST = (
    b"POST /generate HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    b"Authorization: Bearer " + ATTACKER.encode() + b"\r\n"
)
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n"
ENDLESS_BYTES = 4 << 20
PIECE = 65_536

TOO_LONG = {
    "URL": (b"GET /", b"a" * PIECE),
    "header line": (GET + b"a: ", b"b" * PIECE),
    "header lines": (GET, b"a:\r\n" * (PIECE // 4)),
    "chunk extension": (CHUNKED + b"\r\n1;", b"a" * PIECE),
    "trailers": (CHUNKED + b"\r\n0\r\n", b"a: b\r\n" * (PIECE // 6)),
}
"""How a head begins, and what it goes on with for ever."""


def endless(begin: bytes, more: bytes) -> Blow:
    async def blow(target: Target, attack: Attack) -> None:
        pieces = itertools.repeat(more, ENDLESS_BYTES // len(more))
        await target.throw(attack, itertools.chain([begin], pieces))

    return blow


@attack(408)
async def slow_head(target: Target, attack: Attack) -> None:
    """A byte at a time, for longer than a head may take."""
    await target.throw(attack, (bytes([byte]) for byte in GET + b"a: b\r\n" * 100), pause_s=0.1)


@attack(400)
async def two_hosts(target: Target, attack: Attack) -> None:
    await target.throw(attack, [GET + b"Host: localhost\r\n\r\n"])


@attack()
async def crowd(target: Target, attack: Attack) -> None:
    """Connections that say nothing, and half a head each."""
    opened = [await asyncio.open_connection(*target.address) for _ in range(100)]
    for _, writer in opened[::2]:
        writer.write(GET)
    await asyncio.sleep(target.draw.random())
    for _, writer in opened:
        writer.transport.abort()


@attack(408)
async def body_that_stops(target: Target, attack: Attack) -> None:
    """1 MiB of a body of 20 MiB, and then nothing, until the server has waited long enough."""
    begin = POST + b"Content-Length: 20971520\r\n\r\n" + b'{"text": "' + b"a" * (1 << 20)
    await target.throw(attack, [begin])


@attack()
async def client_that_leaves_its_upload(target: Target, attack: Attack) -> None:
    """A file of which a part comes, beside others of the same kind."""
    head = POST.replace(b"/generate", b"/v1/files").replace(b"application/json", b"multipart/form-data; boundary=x")
    part = b'--x\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n' + b"a" * (1 << 20)
    writers = []
    for _ in range(4):
        _, writer = await asyncio.open_connection(*target.address)
        writer.write(head + b"Content-Length: 4194304\r\n\r\n" + part)
        writers.append(writer)
    await asyncio.sleep(target.draw.random())
    for writer in writers:
        writer.transport.abort()


LISTS = (
    ("/v1/chat/completions", "messages"),
    ("/v1/chat/completions", "tools"),
    ("/v1/completions", "prompt"),
    ("/v1/responses", "input"),
    ("/v1/messages", "messages"),
    ("/v1/messages", "tools"),
    ("/api/chat", "messages"),
    ("/generate", "text"),
    ("/generate", "input_ids"),
    ("/generate", "sampling_params"),
    ("/tokenize", "prompt"),
    ("/v1/score", "items"),
)
"""Routes and fields that take a list, of several dialects."""


@attack(200, 400, 413, 503, every_s=0.5)
async def error_bomb(target: Target, attack: Attack) -> None:
    """A list whose items are wrong, but for texts that are empty on some routes."""
    path, name = target.draw.choice(LISTS)
    size = int(target.draw.choice([1e5, 1e6, 1e6, 8e6, 30e6]))
    item = target.draw.choice([b"{},", b"[],", b'"",', b"null,"])
    await target.send(attack, path, b'{"%s": [' % name.encode() + item * (size // len(item)) + item[:-1] + b"]}")


def messages(count: int) -> list[dict[str, Any]]:
    return [{"role": ("user", "assistant")[number % 2], "content": f"no {number}"} for number in range(count)]


def tools(count: int) -> list[dict[str, Any]]:
    parameters = {"type": "object", "properties": {"a": {"type": "string"}}}
    return [
        {"type": "function", "function": {"name": f"f{number}", "description": "does", "parameters": parameters}}
        for number in range(count)
    ]


def anthropic_tools(count: int) -> list[dict[str, Any]]:
    return [{"name": f"f{number}", "input_schema": {"type": "object"}} for number in range(count)]


HELLO = messages(1)
MANY: tuple[tuple[str, Callable[[int], Mapping[str, Any]]], ...] = (
    ("/v1/chat/completions", lambda count: {"messages": messages(count), "max_tokens": 1}),
    ("/v1/chat/completions", lambda count: {"messages": HELLO, "tools": tools(count), "max_tokens": 1}),
    ("/v1/messages", lambda count: {"model": "m", "messages": messages(count), "max_tokens": 1}),
    ("/v1/messages", lambda count: {"model": "m", "messages": HELLO, "tools": anthropic_tools(count), "max_tokens": 1}),
    ("/v1/responses", lambda count: {"input": messages(count), "max_output_tokens": 1, "store": False}),
    ("/api/chat", lambda count: {"model": "m", "messages": messages(count), "stream": False}),
    ("/v1/score", lambda count: {"query": "a", "items": ["b"] * count, "label_token_ids": [5]}),
)
"""Bodies that are right, and may take work that grows faster than they do."""


@attack(200, 400, 413, 429, 503, every_s=0.5)
async def many_items(target: Target, attack: Attack) -> None:
    path, body = target.draw.choice(MANY)
    content = json.dumps(body(target.draw.choice([500, 2000, 8000]))).encode()
    await target.send(attack, path, content, leave_after_s=target.draw.choice([None, 0.05, 0.3]))


@attack(400)
async def deep_body(target: Target, attack: Attack) -> None:
    path, name = target.draw.choice(LISTS)
    depth = target.draw.choice([10_000, 1_000_000])
    await target.send(attack, path, b'{"%s": ' % name.encode() + b"[" * depth + b"]" * depth + b"}")


@attack(400)
async def template_in_a_request(target: Target, attack: Attack) -> None:
    body = {"messages": HELLO, "max_tokens": 1, "chat_template": target.draw.choice(HOSTILE)}
    await target.send(attack, "/v1/chat/completions", json.dumps(body).encode())


@attack(200, 400, 503)
async def variables_for_the_template(target: Target, attack: Attack) -> None:
    """As long, as many and as deep as a body takes, under names that templates look at."""
    value: Any = target.draw.choice(["x" * 3_000_000, ["x"] * 20_000, {str(number): [] for number in range(20_000)}])
    for _ in range(target.draw.choice([0, 50])):
        value = [value]
    names = ("enable_thinking", "messages", "tools", "add_generation_prompt", "bos_token", "namespace")
    body = {"messages": HELLO, "max_tokens": 1, "chat_template_kwargs": dict.fromkeys(names[:2], value)}
    await target.send(attack, "/v1/chat/completions", json.dumps(body).encode())


@attack(200, 400, 429)
async def unknown_fields(target: Target, attack: Attack) -> None:
    """Fields with unknown names, different ones each time."""
    fields = {f"field_{target.draw.randrange(1 << 60)}": number for number in range(target.draw.choice([1, 3, 300]))}
    body = {"messages": HELLO, "max_tokens": 1, **fields}
    await target.send(attack, "/v1/chat/completions", json.dumps(body).encode())


@attack(200, 429, 503, every_s=1)
async def more_tokens_than_fit(target: Target, attack: Attack) -> None:
    """Its client leaves before the context is full."""
    body = {"prompt": "Hi", "max_tokens": 10**9, "ignore_eos": True}
    await target.send(attack, "/v1/completions", json.dumps(body).encode(), leave_after_s=target.draw.random() * 2)


def on_heads() -> Iterable[Attack]:
    for name, (begin, more) in TOO_LONG.items():
        yield Attack(f"endless {name}", endless(begin, more), frozenset({0, 400, 414, 431}))
    yield from (two_hosts, crowd, client_that_leaves_its_upload)


def that_take_time() -> Iterable[Attack]:
    yield from (slow_head, body_that_stops)


def on_bodies() -> Iterable[Attack]:
    yield from (error_bomb, many_items, deep_body)
    yield from (template_in_a_request, variables_for_the_template, unknown_fields, more_tokens_than_fit)
