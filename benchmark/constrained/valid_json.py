"""Checks that every answer held to a JSON schema is valid, and that other answers do not change.

    python benchmark/constrained/valid_json.py [--count 1000] [--at-once 64] [--grammar-backend X] [--jump-forward]

Draws `--count` answers at temperature 1, each held to one of four schemas, first alone and then among as many answers
that are free, which must be what they were before. Every document is decoded strictly into the type that its schema was
made of. Prints one JSON object last, and fails if there is anything in it to be ashamed of.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections import Counter
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from mysglang import Engine

Short = Annotated[str, Meta(max_length=6)]
Colour = Literal["red", "green", "blue"]


class Person(msgspec.Struct, forbid_unknown_fields=True):
    """Strings and bounded numbers."""

    name: Short
    age: Annotated[int, Meta(ge=0, le=150)]
    married: bool


class Address(msgspec.Struct, forbid_unknown_fields=True):
    """A pattern, and what may be left out."""

    street: Short
    zip: Annotated[str, Meta(pattern="^[0-9]{5}$")]
    country: Literal["France", "Italy"] | None = None


class House(msgspec.Struct, forbid_unknown_fields=True):
    """Objects in lists in objects."""

    address: Address
    rooms: Annotated[list[Person], Meta(min_length=1, max_length=2)]
    colours: Annotated[list[Colour], Meta(max_length=3)]


class Choice(msgspec.Struct, forbid_unknown_fields=True):
    """One of several types."""

    value: Annotated[int, Meta(ge=-100, le=100)] | Colour | bool | None
    notes: Annotated[list[Short | Annotated[int, Meta(ge=-99, le=99)]], Meta(max_length=2)]


TYPES: tuple[type[Any], ...] = (Person, Address, House, Choice)
PROMPTS = ("Once upon a time", "A person as JSON:", "The capital of France is", "{", "日本", "1, 2, 3,")
MAX_TOKENS = 600
FREE_TOKENS = 16


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1000, help="answers with a schema, alone and in company each")
    parser.add_argument("--at-once", type=int, default=64, help="requests in flight")
    parser.add_argument("--model-path", default=None, help="the embedded model if left out")
    parser.add_argument("--grammar-backend", default="xgrammar")
    parser.add_argument("--jump-forward", action="store_true", help="with --enable-jump-forward")
    parser.add_argument("--dtype", default="float32", help="in float32, company changes no answer")
    return parser.parse_args()


def held(i: int) -> dict[str, Any]:
    """The request of number `i` that is held to a schema."""
    schema = json.dumps(msgspec.json.schema(TYPES[i % len(TYPES)]))
    params = {"temperature": 1.0, "sampling_seed": i, "max_new_tokens": MAX_TOKENS, "json_schema": schema}
    return {"prompt": PROMPTS[i % len(PROMPTS)], "sampling_params": params}


def free(i: int) -> dict[str, Any]:
    """The request of number `i` that is not: greedy or drawn."""
    params = {"temperature": float(i % 2), "sampling_seed": i, "max_new_tokens": FREE_TOKENS, "ignore_eos": True}
    return {"prompt": f"{PROMPTS[i % len(PROMPTS)]} {i}", "sampling_params": params}


async def answers(engine: Engine, requests: list[dict[str, Any]], at_once: int) -> list[dict[str, Any]]:
    """In their order; at most `at_once` in flight."""
    gate = asyncio.Semaphore(at_once)

    async def one(request: dict[str, Any]) -> dict[str, Any]:
        async with gate:
            answer: dict[str, Any] = await engine.async_generate(**request)
            return answer

    return await asyncio.gather(*map(one, requests))


def verdict(i: int, answer: dict[str, Any]) -> str:
    """Result of document number `i`: valid, cut off by the token limit, or the reason why it is neither."""
    if answer["meta_info"]["finish_reason"]["type"] != "stop":
        return "cut off"
    try:
        msgspec.json.decode(answer["text"], type=TYPES[i % len(TYPES)])
    except msgspec.DecodeError as error:
        return f"{error}: {answer['text'][:80]!r}"
    return "valid"


async def measured(engine: Engine, count: int, at_once: int) -> dict[str, Any]:
    begun = time.perf_counter()
    held_requests, free_requests = [held(i) for i in range(count)], [free(i) for i in range(count)]
    alone = await answers(engine, held_requests, at_once)
    free_alone = await answers(engine, free_requests, at_once)
    mixed = [request for pair in zip(held_requests, free_requests, strict=True) for request in pair]
    together = await answers(engine, mixed, at_once)
    changed = [a["text"] != b["text"] for a, b in zip(free_alone, together[1::2], strict=True)]
    drawn_again = [a["text"] != b["text"] for a, b in zip(alone, together[::2], strict=True)]
    return {
        "count": count,
        "at_once": at_once,
        "alone": dict(Counter(verdict(i, answer) for i, answer in enumerate(alone))),
        "in_company": dict(Counter(verdict(i, answer) for i, answer in enumerate(together[::2]))),
        "free_answers_changed": sum(changed),
        "held_answers_changed": sum(drawn_again),
        "different_documents": len({answer["text"] for answer in alone}),
        "tokens": sum(answer["meta_info"]["completion_tokens"] for answer in [*alone, *free_alone, *together]),
        "seconds": round(time.perf_counter() - begun, 1),
    }


def main() -> int:
    args = arguments()
    options: dict[str, Any] = {"dtype": args.dtype, "grammar_backend": args.grammar_backend}
    # A model that draws may write white space for ever, which is valid, and never an end.
    options["constrained_json_max_whitespace_cnt"] = 2
    options["enable_jump_forward"] = args.jump_forward
    if args.model_path:
        options["model_path"] = args.model_path
    with Engine(**options) as engine:
        found = asyncio.run(measured(engine, args.count, args.at_once))
    found["grammar_backend"] = args.grammar_backend
    print(json.dumps(found, ensure_ascii=False))
    all_valid = {"valid": args.count}
    good = found["alone"] == found["in_company"] == all_valid
    return int(not good or found["free_answers_changed"] or found["held_answers_changed"])


if __name__ == "__main__":
    sys.exit(main())
