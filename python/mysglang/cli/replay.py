"""`mysglang replay FILE`: send the requests of a crash dump, or of a folder of kept requests, to a running server.

A line that has the request's contents is sent as it was. A line without contents becomes a prompt of random tokens of
the same length, with the same parameters and an answer of the same length: the same load, and none of the words.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from mysglang.bench.flags import ToolParser, natural
from mysglang.bench.http_client import ConnectionFailed, HttpClient
from mysglang.bench.refused import Failed
from mysglang.cli.api_client import ApiClient
from mysglang.cli.arguments import add_server_flags
from mysglang.srt.environ import API_KEY, BASE_URL

OK = 200
CHARACTERS_PER_TOKEN = 4
"""Estimate for records that have only the number of characters of a text."""
FIRST_ID = 100
"""Smaller ids are often special."""
MAX_SHOWN = 200


@dataclass(frozen=True, slots=True)
class Replayed:
    """A request to be sent."""

    at: float
    """Seconds after the first one."""
    body: dict[str, Any]
    expected: list[list[int]] | None
    """The tokens of its answers, where the file has them and sampling is greedy."""


@dataclass(slots=True)
class Outcome:
    """The result of sending the recorded requests."""

    done: int = 0
    failed: int = 0
    compared: int = 0
    equal: int = 0
    first_error: str = ""


def make_parser(prog: str) -> ToolParser:
    parser = ToolParser(
        prog,
        "Send the requests of a crash dump (--crash-dump-folder), or of kept requests (dump_requests_folder), to a "
        "running server, at the times at which they came.",
        examples={
            "{prog} crash_dump_20260102-030405-17.jsonl": "The requests before a crash, to the server on this machine.",
            "{prog} requests.jsonl --speed 0": "All at once.",
            "{prog} crash_dump.jsonl --only-open": "Only those that were open when the server died.",
        },
    )
    parser.add_argument("file", metavar="FILE", help="File with the recorded requests, one JSON object in each line.")
    parser.add_argument(
        "--speed",
        type=_speed,
        default=1.0,
        help="Speed of sending: 2 is twice as fast as recorded; 0 sends all at once.",
    )
    parser.add_argument("--only-open", action="store_true", help="Send only requests that were not finished.")
    parser.add_argument("--seed", type=natural, default=0, help="Seed of the random prompts.")
    add_server_flags(parser)
    return parser


def main(argv: Sequence[str], prog: str) -> int:
    """Runs the tool. Returns 0 if every request was answered."""
    options = make_parser(prog).parse_all(argv)
    records = _records(options)
    url = options.base_url or BASE_URL.get()
    client = ApiClient(url, options.api_key, hint=" Start one with `mysglang serve`, or name one with --base-url.")
    vocab_size = int(client.get("/server_info")["scheduler_info"]["vocab_size"])
    requests = _requests(records, np.random.default_rng(options.seed), vocab_size)
    key = options.api_key or API_KEY.get()
    sender = HttpClient(client.base_url, {"Authorization": f"Bearer {key}"} if key else {})
    begun = time.perf_counter()
    outcome = asyncio.run(_send_all(sender, requests, options.speed))
    _print(outcome, time.perf_counter() - begun)
    return int(outcome.failed > 0)


def _speed(text: str) -> float:
    value = float(text)
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not a number from 0 on")
    return value


def _records(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Returns the requests of the file that are wanted, in the order in which they came. Raises Failed if there are
    none.
    """
    try:
        lines = Path(options.file).read_bytes().splitlines()
    except OSError as error:
        raise Failed(f"{options.file} cannot be read: {error.strerror}.") from None
    records = []
    for number, line in enumerate(lines, start=1):
        try:
            record = orjson.loads(line)
        except orjson.JSONDecodeError as error:
            raise Failed(f"{options.file}, line {number}: it is not JSON: {error}.") from None
        if not isinstance(record, dict) or not ({"crash", "started"} & set(record)):
            raise Failed(f"{options.file}, line {number}: it is no record of a request.")
        if "started" in record and (record.get("open", False) or not options.only_open):
            records.append(record)
    if not records:
        raise Failed(f"{options.file} holds no request{' that was open' if options.only_open else ''}.")
    return sorted(records, key=lambda record: float(record["started"]))


def _requests(records: Sequence[dict[str, Any]], rng: np.random.Generator, vocab_size: int) -> list[Replayed]:
    first = float(records[0]["started"])
    return [
        Replayed(float(record["started"]) - first, _body(record, rng, vocab_size), _expected(record))
        for record in records
    ]


def _body(record: dict[str, Any], rng: np.random.Generator, vocab_size: int) -> dict[str, Any]:
    """Returns the body of a request to POST /generate."""
    if "request" in record:
        return {**record["request"], "stream": False}
    counts = record["counts"]
    prompts = []
    for index, told in enumerate(record["prompts"]):
        # The server has counted the tokens of a text if it answered; else its characters are all that is known.
        known = counts[index]["prompt_tokens"] if index < len(counts) and len(counts) == len(record["prompts"]) else 0
        length = known or told.get("tokens") or told.get("vectors") or told["characters"] // CHARACTERS_PER_TOKEN
        prompts.append(rng.integers(min(FIRST_ID, vocab_size - 1), vocab_size, max(1, length)).tolist())
    finished = [each["completion_tokens"] for each in counts] if not record["open"] else []
    params = dict(record["sampling_params"])
    if finished:
        params |= {"max_new_tokens": max(1, *finished), "ignore_eos": True}
    return {"input_ids": prompts if len(prompts) > 1 else prompts[0], "sampling_params": params}


def _expected(record: dict[str, Any]) -> list[list[int]] | None:
    """Returns the answers' tokens, if another server must give the same: the request was greedy, and ended by
    itself.
    """
    request, answers = record.get("request"), record.get("answers")
    if not request or not answers or isinstance(request["sampling_params"], list):
        return None
    greedy = request["sampling_params"].get("temperature") == 0
    ended = all((answer["finish_reason"] or {}).get("type") in ("stop", "length") for answer in answers)
    return [answer["output_ids"] for answer in answers] if greedy and ended else None


async def _send_all(client: HttpClient, requests: Sequence[Replayed], speed: float) -> Outcome:
    outcome, begun = Outcome(), time.perf_counter()

    async def one(request: Replayed) -> None:
        if speed:
            await asyncio.sleep(max(0.0, begun + request.at / speed - time.perf_counter()))
        try:
            status, body = await client.fetch("POST", "/generate", orjson.dumps(request.body))
        except ConnectionFailed as error:
            status, body = 0, str(error).encode()
        if status != OK:
            outcome.failed += 1
            outcome.first_error = outcome.first_error or f"status {status}: {body[:MAX_SHOWN].decode(errors='replace')}"
            return
        outcome.done += 1
        if request.expected is not None:
            found = orjson.loads(body)
            answers = found if isinstance(found, list) else [found]
            outcome.compared += 1
            outcome.equal += [answer["output_ids"] for answer in answers] == request.expected

    await asyncio.gather(*map(one, requests))
    return outcome


def _print(outcome: Outcome, seconds: float) -> None:
    print(f"{outcome.done} requests answered, {outcome.failed} failed, in {seconds:.2f} s.")
    if outcome.compared:
        print(f"{outcome.equal} of {outcome.compared} greedy answers are those of the file.")
    if outcome.first_error:
        print(f"The first failure: {outcome.first_error}")
    figures = {"answered": outcome.done, "failed": outcome.failed, "compared": outcome.compared, "equal": outcome.equal}
    print(orjson.dumps({**figures, "seconds": seconds}).decode())
