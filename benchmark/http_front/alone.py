"""Cost of a stream in the front itself: from the bytes of a request to the bytes of its frames, in one process.

    python benchmark/http_front/alone.py [--rounds 5] [--case NAME]

The application, the TokenizerManager, the tokenizer and the connections of the real front; sockets and the other
processes are left out: bytes are handed to a connection, and messages to the manager, as the detokenizer writes them.
So the figures say what our own code takes, whatever else the machine does; the kernel's part and ZMQ's come on top.
Beside it, rounds interleaved: a usual FastAPI route under uvicorn's own protocol before the same TokenizerManager
(`usual_front.py`), and what the two protocols take for an application that does next to nothing. Some 40 seconds; one
JSON object last.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import uvicorn
import uvloop
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

sys.path.insert(0, str(Path(__file__).parent))

from noop_engine import FACTS, WORD
from servers import chat, completion, generate
from usual_front import usual_app

from mysglang.srt.entrypoints.app_options import AppOptions
from mysglang.srt.entrypoints.http_app import build_app
from mysglang.srt.entrypoints.http_front import Gate
from mysglang.srt.entrypoints.http_protocol import Connections, OneAtATime
from mysglang.srt.entrypoints.launcher import find_model
from mysglang.srt.entrypoints.ready_front import FrontText, make_front
from mysglang.srt.managers.fronts import Fronts
from mysglang.srt.managers.text_pool import TextPool
from mysglang.srt.messages.codec import ToTokenizer, tokenizer_codec
from mysglang.srt.messages.outputs import BatchStrOutput, Counters, Length
from mysglang.srt.messages.packing import ID_BYTES, pack_ids
from mysglang.srt.messages.requests import TokenizedGenerateReqInput, ToScheduler, scheduler_codec
from mysglang.srt.server_args import prepare_server_args
from mysglang.srt.utils.process import collect_rarely, freeze_heap

CONNECTIONS = 64
NEVER_S = 86_400
TURNS = 4
"""Turns of the event loop between two steps, so that each step is sent before the next one arrives."""

CASES: dict[str, tuple[bytes, int, int]] = {
    "completion 1": (completion(1), 1, 4000),
    "completion 16": (completion(16), 16, 2000),
    "completion 512": (completion(512), 512, 192),
    "chat 16": (chat(16), 16, 1500),
    "generate 16": (generate(16), 16, 1500),
}
"""Request, tokens, streams of a round."""

OURS, FASTAPI, BARE, BARE_UVICORN = "ours", "fastapi", "our protocol alone", "uvicorn's alone"
BESIDE = {FASTAPI: ("completion 1", "completion 16", "completion 512"), BARE: ("completion 1",)}
BESIDE[BARE_UVICORN] = BESIDE[BARE]
"""Servers beside our front -> the cases that they are measured with."""


class Links:
    """Both links of a front, and the engine and the detokenizer behind them: one token more for each in each step."""

    def __init__(self, token: int) -> None:
        self.fronts = Fronts()
        self.to_scheduler = self.from_workers = self
        self._to, self._from = scheduler_codec(), tokenizer_codec()
        self._token = np.int32(token).tobytes()
        self._running: list[tuple[str, int, int]] = []
        """Wire name, tokens of the prompt and tokens that are wanted."""
        self._done: list[int] = []
        self._messages: list[bytes] = []
        self._news = asyncio.Event()

    def send(self, message: ToScheduler) -> None:
        self._to.encode(message)
        if isinstance(message, TokenizedGenerateReqInput):
            wanted = message.sampling_params.max_new_tokens or 1
            self._running.append((message.rid, len(message.input_ids) // ID_BYTES, wanted))
            self._done.append(0)

    async def receive(self) -> list[ToTokenizer]:
        while not self._messages:
            self._news.clear()
            await self._news.wait()
        data, self._messages = self._messages, []
        return [self._from.decode(one) for one in data]

    def step(self) -> None:
        if not self._running:
            return
        count = len(self._running)
        self._done = [done + 1 for done in self._done]
        ends = {row: Length(done) for row, done in enumerate(self._done) if done == self._running[row][2]}
        zeros = bytes(ID_BYTES * count)
        message = BatchStrOutput(
            rids=[rid for rid, _, _ in self._running],
            texts=[WORD] * count,
            token_ids=self._token * count,
            token_counts=pack_ids([1] * count),
            counters=Counters(pack_ids([size for _, size, _ in self._running]), pack_ids(self._done), zeros, zeros),
            finished=dict(ends),
        )
        self._messages.append(self._from.encode(message))
        self._news.set()
        self._running = [one for row, one in enumerate(self._running) if row not in ends]
        self._done = [done for row, done in enumerate(self._done) if row not in ends]


class Client(asyncio.Transport):
    """The far end of a connection: counts frames, and sees an answer's end."""

    def __init__(self, protocol: HttpToolsProtocol) -> None:
        super().__init__()
        self.frames = 0
        self.answered = False
        self.protocol = protocol
        protocol.connection_made(self)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return {"peername": ("127.0.0.1", 5), "sockname": ("127.0.0.1", 30000)}.get(name, default)

    def write(self, data: Any) -> None:
        self.frames += data.count(b"data: ")
        self.answered = data.endswith(b"0\r\n\r\n")

    def is_closing(self) -> bool:
        return False

    def close(self) -> None:
        raise AssertionError("the server closed a connection")

    abort = close

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        pass

    resume_reading = pause_reading


async def least(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers with two frames that were made beforehand."""
    while (await receive()).get("more_body", False):
        pass
    headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"x-request-id", b"0" * 32)]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    for frame in (b"data: x\n\n", b"data: [DONE]\n\n"):
        await send({"type": "http.response.body", "body": frame, "more_body": True})
    await send({"type": "http.response.body", "body": b"", "more_body": False})


def clients_of(app: ASGIApp, *, ours: bool) -> list[Client]:
    """Connections to `app`: of our protocol, or of uvicorn's own."""
    config = uvicorn.Config(
        app,
        loop="none",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=NEVER_S,
        proxy_headers=False,
    )
    state, common = ServerState(), Connections(30.0)
    if ours:
        return [Client(OneAtATime(config, state, {}, common=common)) for _ in range(CONNECTIONS)]
    return [Client(HttpToolsProtocol(config, state, {})) for _ in range(CONNECTIONS)]


async def measure(rounds: int, cases: list[str], *, beside: bool) -> dict[str, dict[str, Any]]:
    """Microseconds of CPU for a stream and for a frame: the quickest round, the median, and all of them."""
    args, model = find_model(prepare_server_args(["--log-level", "error"]))
    text, pool = FrontText.load(args), TextPool()
    assert text.tokenizer is not None
    links: Any = Links(text.tokenizer.encode(WORD, add_special_tokens=False)[0])
    facts = msgspec.structs.replace(FACTS, vocab_size=text.tokenizer.vocab_size)
    front, manager = make_front(args, facts, text, links, pool)
    receiving = asyncio.create_task(manager.handle_loop())
    gate = Gate()
    gate.open(build_app(front, AppOptions.from_args(args, model)))
    sides = {OURS: clients_of(gate, ours=True)}
    if beside:
        sides[FASTAPI] = clients_of(usual_app(front), ours=False)
        sides[BARE], sides[BARE_UVICORN] = clients_of(least, ours=True), clients_of(least, ours=False)
    freeze_heap()
    collect_rarely()
    runs = [(side, name) for name in cases for side in sides if side == OURS or name in BESIDE[side]]
    costs: dict[tuple[str, str], list[float]] = {run: [] for run in runs}
    frames: dict[tuple[str, str], int] = {}
    for side, name in runs:
        await answered(sides[side], links, CASES[name][0], CONNECTIONS)
    for _ in range(rounds):
        for side, name in runs:
            data, _tokens, streams = CASES[name]
            gc.collect()
            seconds, frames[side, name] = await answered(sides[side], links, data, streams)
            costs[side, name].append(seconds / streams * 1e6)
    receiving.cancel()
    pool.close()
    found: dict[str, dict[str, Any]] = {}
    for (side, name), spent in costs.items():
        _data, tokens, streams = CASES[name]
        found[name if side == OURS else f"{side}, {name}"] = {
            "us_per_stream": round(min(spent), 1),
            "median": round(statistics.median(spent), 1),
            "spread": [round(min(spent), 1), round(max(spent), 1)],
            "us_per_frame": round(min(spent) * streams / frames[side, name], 2),
            "frames_per_stream": round(frames[side, name] / streams, 1),
            "tokens": tokens,
        }
        if side == FASTAPI:
            pairs = zip(spent, costs[OURS, name], strict=True)
            found[name]["times_fastapi"] = round(statistics.median(theirs / own for theirs, own in pairs), 2)
    return found


def frame_more(found: dict[str, dict[str, Any]], side: str = "") -> float:
    """Microseconds for each further frame of a stream."""
    one, many = found[side + "completion 1"], found[side + "completion 512"]
    frames: float = many["frames_per_stream"] - one["frames_per_stream"]
    micros: float = many["us_per_stream"] - one["us_per_stream"]
    return round(micros / frames, 2)


async def answered(clients: list[Client], links: Links, data: bytes, streams: int) -> tuple[float, int]:
    """CPU seconds of the front, and frames, of so many answers. The engine's own part does not count."""
    before, begun, ended, engine = sum(client.frames for client in clients), 0, 0, 0.0
    start = time.process_time()
    for client in clients:
        client.protocol.data_received(data)
        begun += 1
    while ended < begun:
        for _ in range(TURNS):
            await asyncio.sleep(0)
        at = time.process_time()
        links.step()
        engine += time.process_time() - at
        for client in clients:
            if client.answered:
                client.answered = False
                ended += 1
                if begun < streams:
                    client.protocol.data_received(data)
                    begun += 1
    return time.process_time() - start - engine, sum(client.frames for client in clients) - before


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--case", choices=CASES, help="this one alone, for `perf stat`")
    options = parser.parse_args()
    cases = [options.case] if options.case else list(CASES)
    found = uvloop.run(measure(options.rounds, cases, beside=not options.case))
    for name, row in found.items():
        print(f"{name:32s} {row['us_per_stream']:8.1f} us a stream   {row['us_per_frame']:6.2f} us a frame", end="")
        print(f"   {row['times_fastapi']:5.2f} times the FastAPI route" if "times_fastapi" in row else "")
    if options.case:
        return 0
    ours, theirs = frame_more(found), frame_more(found, f"{FASTAPI}, ")
    result = {
        "what": "CPU of the front's own code for a stream of 16 tokens, sockets and other processes left out, us",
        "median": found["completion 16"]["median"],
        "spread": found["completion 16"]["spread"],
        "us_for_the_request": found["completion 1"]["us_per_stream"],
        "us_for_each_frame_more": ours,
        "times_fastapi": {
            "stream of 1 token": found["completion 1"]["times_fastapi"],
            "stream of 16 tokens": found["completion 16"]["times_fastapi"],
            "stream of 512 tokens": found["completion 512"]["times_fastapi"],
            "frame": round(theirs / ours, 2),
        },
        "cases": found,
    }
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
