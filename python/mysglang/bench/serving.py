"""One run of bench_serving against a server: wait for it, learn what it serves, warm it up, load it, measure.

A plain HTTP client: it knows the runtime only by what the server says.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import orjson
from tqdm import tqdm

from mysglang.bench.ask import OK, Asker
from mysglang.bench.backends import AskOptions, make_backend
from mysglang.bench.datasets import DatasetOptions, make_dataset
from mysglang.bench.http_client import ConnectionFailed, HttpClient
from mysglang.bench.load import LoadResult, arrival_times, run_load
from mysglang.bench.metrics import ServingMetrics, measure
from mysglang.bench.prompts import IdWriter, Prompt, TextWriter
from mysglang.bench.refused import Failed
from mysglang.bench.vocabulary import Vocabulary

POLL_S = 0.2
WORTH_TELLING_S = 1.0
"""Shorter waits for a server are not reported."""
WARMUP_TOKENS = 32
"""Longest answer of a warm-up request."""


@dataclass(frozen=True, slots=True)
class Run:
    """Result of one run."""

    metrics: ServingMetrics
    load: LoadResult
    prompts: list[Prompt]
    server_info: dict[str, Any] | None
    chunks: int
    """Pieces of answers that the client read."""

    def client(self) -> dict[str, float]:
        """Returns the load generator's own CPU use, to be read beside the figures: it often shares the host with the
        server.
        """
        return {
            "client_cpu_share": self.load.cpu / self.load.duration,
            "client_cpu_us_per_chunk": self.load.cpu / max(1, self.chunks) * 1e6,
            "client_late_ms": self.load.late * 1e3,
        }


class Server:
    """The server's description of itself. Other makes of servers may report nothing."""

    def __init__(self, client: HttpClient) -> None:
        self._client = client

    async def wait_ready(self, seconds: float) -> None:
        """Waits until the server lists its models. Raises Failed after `seconds`."""
        end = time.monotonic() + seconds
        info = seconds < WORTH_TELLING_S
        while True:
            try:
                status, body = await self._client.fetch("GET", "/v1/models")
                why = f"/v1/models answers {status}: {body[:200].decode(errors='replace')}"
            except ConnectionFailed as error:
                status, why = 0, str(error)
            if status == OK:
                return
            if time.monotonic() > end:
                raise Failed(f"no server is ready after {seconds:g} s: {why}")
            if not info:
                print(f"Waiting up to {seconds:g} s for the server: {why}", file=sys.stderr, flush=True)
                info = True
            await asyncio.sleep(POLL_S)

    async def model(self) -> str:
        """Returns the first model that it lists. Raises Failed if there is none."""
        found = await self.get("/v1/models")
        match found:
            case {"data": [{"id": str(name)}, *_]}:
                return name
        raise Failed("the server lists no model; name one with --model.")

    async def model_path(self, model: str) -> str | None:
        """Returns where the server read `model` from, if the list of models tells that, as vLLM's does. A server may
        list a model under any name.
        """
        found = await self.get("/v1/models") or {}
        for card in found.get("data", []):
            match card:
                case {"id": str(name), "root": str(root)} if name == model:
                    return root
        return None

    async def get(self, path: str) -> dict[str, Any] | None:
        """Returns the JSON object at `path`, or None if the server has none."""
        status, body = await self._client.fetch("GET", path)
        if status != OK:
            return None
        with contextlib.suppress(orjson.JSONDecodeError):
            found = orjson.loads(body)
            return found if isinstance(found, dict) else None
        return None

    async def flush_cache(self) -> None:
        """Empties the server's prefix cache. Raises Failed if that is refused."""
        status, body = await self._client.fetch("POST", "/flush_cache")
        if status != OK:
            raise Failed(f"/flush_cache answers {status}: {body[:200].decode(errors='replace')}")


async def run(options: argparse.Namespace) -> Run:
    """Run the benchmark that the flags describe. Raises Refused or Failed."""
    client = HttpClient(options.base_url, options.header)
    server = Server(client)
    await server.wait_ready(options.ready_check_timeout_sec)
    native = options.backend.startswith("sglang")
    info = await server.get("/server_info") if native else None
    model = options.model or await server.model()
    vocabulary = await _vocabulary(options, server, info, model)
    writer = IdWriter(vocabulary) if options.tokenize_prompt else TextWriter(vocabulary)
    prompts = make_dataset(DatasetOptions.of(options), vocabulary, writer)
    asking = AskOptions(
        model=model,
        stream=not options.disable_stream,
        ignore_eos=not options.disable_ignore_eos,
        temperature=options.temperature,
        top_p=options.top_p,
        extra=options.extra_request_body,
    )
    backend = make_backend(options.backend, incremental=bool((info or {}).get("incremental_streaming_output")))
    asker = Asker(client, backend, asking)
    await _warm_up(asker, prompts, options.warmup_requests)
    if options.flush_cache:
        await server.flush_cache()
    asker.prepare(prompts)
    chunks_before = asker.chunks
    gc.collect()
    gc.freeze()  # going through the prompts again would be a pause in every stream
    arrivals = arrival_times(len(prompts), options.request_rate, np.random.default_rng(options.seed))
    with tqdm(total=len(prompts), disable=options.disable_tqdm or None) as bar:
        load = await run_load(prompts, asker.ask, arrivals, options.max_concurrency, bar.update)
    metrics = measure(load.records, load.start, load.duration, vocabulary, options.goodput)
    metrics = replace(metrics, accept_length=accept_length(await server.get("/server_info") if native else None))
    return Run(metrics, load, prompts, info, asker.chunks - chunks_before)


def accept_length(info: Mapping[str, Any] | None) -> float | None:
    """Returns the accepted draft tokens per step that /server_info reports; None without speculative decoding."""
    match info:
        case {"internal_states": [{"avg_spec_accept_length": float() | int() as length}, *_]}:
            return float(length)
    return None


async def _warm_up(asker: Asker, prompts: Sequence[Prompt], count: int) -> None:
    """Sends the first prompt `count` times, with short answers. Raises Failed if one fails, since the others would
    too.
    """
    short = replace(prompts[0], output_len=min(prompts[0].output_len, WARMUP_TOKENS))
    for record in await asyncio.gather(*(asker.ask(short) for _ in range(count))):
        if not record.ok:
            raise Failed(f"a warm-up request failed: {record.error}")


async def _vocabulary(
    options: argparse.Namespace, server: Server, info: dict[str, Any] | None, model: str
) -> Vocabulary:
    """Returns the tokenizer that the flags name, or the server's; for prompts of ids its size is enough."""
    if options.tokenizer:
        return Vocabulary.load(options.tokenizer)
    match info:
        case {"skip_tokenizer_init": True, "scheduler_info": {"vocab_size": int(size)}} if options.tokenize_prompt:
            return Vocabulary.of_size(size)
    info = await server.get("/model_info") if info is not None else None
    return Vocabulary.load((info or {}).get("tokenizer_path") or await server.model_path(model) or model)
