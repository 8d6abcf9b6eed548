"""serve: a server's life, from its launched children to its exit code. The order of things; each is done elsewhere."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import time

import psutil

from mysglang.srt.configs.architectures import Task
from mysglang.srt.configs.model_config import ModelConfig
from mysglang.srt.entrypoints.app_options import AppOptions
from mysglang.srt.entrypoints.front_launch import FrontLaunch
from mysglang.srt.entrypoints.http_front import HttpFront
from mysglang.srt.entrypoints.launcher import Subprocesses
from mysglang.srt.entrypoints.runtime import Death, Runtime
from mysglang.srt.managers.fronts import Column
from mysglang.srt.messages.launch import SchedulerFacts
from mysglang.srt.server_args import ServerArgs
from mysglang.srt.utils.awake import AWAKE
from mysglang.srt.utils.exit_codes import ExitCode, complain
from mysglang.srt.utils.network import http_url
from mysglang.srt.utils.process import collect_rarely, freeze_heap, keep_heap_small
from mysglang.srt.utils.words import counted

logger = logging.getLogger(__name__)

LOOK_S = 0.02
"""How often it is looked whether requests are still open."""

LAST_WORDS_S = 3.0
"""Seconds for telling clients why their request ends."""


async def serve(
    server_args: ServerArgs,
    model_config: ModelConfig,
    children: Subprocesses,
    stop: asyncio.Event,
    listener: socket.socket,
) -> ExitCode:
    """Serve until `stop` is set, or a process of ours has died. Raises ConfigError or WorkerDied if the server never
    came to be ready.
    """
    keep_heap_small()
    runtime = Runtime(server_args, model_config, children)
    try:
        door = HttpFront(listener, server_args.serving, server_args.observability.log_level_http, runtime.board)
        try:
            return await _until_end(runtime, door, stop, listener)
        finally:
            await door.stop()
    finally:
        await runtime.stop()


async def _until_end(runtime: Runtime, door: HttpFront, stop: asyncio.Event, listener: socket.socket) -> ExitCode:
    life = asyncio.create_task(_live(runtime, door, listener))
    asked = asyncio.create_task(stop.wait())
    shut = asyncio.create_task(door.ended())
    try:
        await asyncio.wait({life, asked, shut}, return_when=asyncio.FIRST_COMPLETED)
        if asked.done():
            code = await _drain(runtime, door)
            return life.result().exit_code if life.done() else code
        if life.done():
            return await _end_after_death(life.result(), runtime, door)
        return await _end_after_death(Death(shut.result(), ExitCode.WORKER_DIED), runtime, door)
    finally:
        for task in (life, asked, shut):
            task.cancel()


async def _live(runtime: Runtime, door: HttpFront, listener: socket.socket) -> Death:
    """Starts the server, and serves until one of its processes has died. Raises an error that keeps it from becoming
    ready.
    """
    args = runtime.server_args
    # Wrong values, such as those of generation_config.json, end the start now and not after the weights are read.
    AppOptions.from_args(args, runtime.model_config)
    front = await runtime.wait_ready()
    await door.open(front, args, runtime.model_config)
    await _add_fronts(runtime, door, listener, front.facts)
    freeze_heap()
    collect_rarely()
    since_start = time.time() - psutil.Process().create_time()
    logger.info("The server is fired up and ready to roll! It took %.1f s.", since_start)
    url = http_url(args.serving.host, door.port, tls=args.serving.ssl_certfile is not None)
    pooling, templates = runtime.model_config.pooling, front.template_manager
    task: Task = "generate" if pooling is None else pooling.task
    print(ready_text(args, url, task=task, can_chat=templates is not None and templates.can_chat), flush=True)
    return await runtime.death()


async def _add_fronts(runtime: Runtime, door: HttpFront, listener: socket.socket, facts: SchedulerFacts) -> None:
    """Starts the further fronts, side by side. Each accepts on `listener`, and relays requests for stored objects to
    `door`.
    """
    args, ports = runtime.server_args, runtime.port_args
    count = args.serving.tokenizer_worker_num
    if count == 1:
        return
    launches = []
    with contextlib.ExitStack() as given:
        for index in range(1, count):
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
            given.enter_context(theirs)
            door.serve_pipe(ours)
            descriptors = (listener.fileno(), theirs.fileno())
            launch = FrontLaunch(
                server_args=args,
                port_args=ports,
                facts=facts,
                index=index,
                listener=descriptors[0],
                to_owner=descriptors[1],
            )
            launches.append(runtime.add_front(launch, descriptors))
        await asyncio.gather(*launches)
    await runtime.seal()


async def _end_after_death(death: Death, runtime: Runtime, door: HttpFront) -> ExitCode:
    """Ends the server after one of its processes died. The runtime has already sent an error to every open request."""
    door.gate.close(death.error)
    await _emptied(runtime, LAST_WORDS_S)
    complain(death.error)
    return death.exit_code


async def _drain(runtime: Runtime, door: HttpFront) -> ExitCode:
    """Shut down on request: accept no new requests, and let running ones finish within a time limit."""
    door.gate.drain()
    runtime.drain()
    patience = runtime.server_args.serving.drain_timeout
    if open_requests := runtime.board.total(Column.OPEN_REQUESTS):
        opened = counted(open_requests, "open request has", "open requests have")
        logger.info("Shutting down: %s %g s to end (--drain-timeout).", opened, patience)
    if await _emptied(runtime, patience):
        logger.info("The server has shut down.")
        return ExitCode.DONE
    open_requests = runtime.board.total(Column.OPEN_REQUESTS)
    late = counted(
        open_requests,
        "request did not end in time (--drain-timeout) and is cut off",
        "requests did not end in time (--drain-timeout) and are cut off",
    )
    logger.warning("Shutting down: %s.", late)
    runtime.cut_off(f"it ends requests that are not complete {patience:g} s after it was told to (--drain-timeout)")
    await _emptied(runtime, LAST_WORDS_S)
    return ExitCode.CUT_OFF


async def _emptied(runtime: Runtime, timeout: float) -> bool:
    """Waits until no request is open at any front, but no longer than `timeout` seconds. Returns whether that was
    reached.
    """
    end = AWAKE.now() + timeout
    while runtime.board.total(Column.OPEN_REQUESTS):
        if AWAKE.now() >= end:
            return False
        await asyncio.sleep(LOOK_S)
    return True


def ready_text(args: ServerArgs, url: str, *, task: Task = "generate", can_chat: bool = True) -> str:
    """Returns the server's address, with an example command that the served model can answer. A key is not shown.

    `can_chat`: whether the model has a chat template.
    """
    path, body = _example(args.model.skip_tokenizer_init, task, can_chat)
    key = ' -H "Authorization: Bearer $API_KEY"' if args.serving.has_keys else ""
    curl = f"curl -s {url}{path}{key} -H 'Content-Type: application/json' \\\n  -d '{body}'"
    return f"\n{args.serving.served_model_name} answers on {url}\n\n{curl}\n"


def _example(without_text: bool, task: Task, can_chat: bool) -> tuple[str, str]:
    """Returns the path and body of the example."""
    question = '"What is the capital of France?"'
    if task == "embed":
        return "/v1/embeddings", f'{{"model": "default", "input": {"[1, 2, 3]" if without_text else question}}}'
    if task == "classify":
        return "/classify", '{"input_ids": [1, 2, 3]}' if without_text else f'{{"text": {question}}}'
    if without_text:
        return "/generate", '{"input_ids": [1, 2, 3]}'
    if not can_chat:
        return "/v1/completions", '{"model": "default", "prompt": "The capital of France is", "max_tokens": 16}'
    return (
        "/v1/chat/completions",
        f'{{"model": "default", "messages": [{{"role": "user", "content": {question}}}]}}',
    )
