"""A further front as a process: the same application on the same listening socket, with a TokenizerManager of its own.

The main process launches it once the scheduler has told its facts, and says when to stop. What lives between requests
it relays to the main process. It is ready once every link of it has carried a message.
"""

from __future__ import annotations

import asyncio
import socket
from typing import NoReturn

import msgspec
import uvloop

from mysglang.srt.entrypoints.front_launch import FrontLaunch, front_title
from mysglang.srt.entrypoints.front_orders import obey
from mysglang.srt.entrypoints.http_front import Gate, HttpFront
from mysglang.srt.entrypoints.ready_front import FrontLinks, FrontText, make_front
from mysglang.srt.entrypoints.relay import Owner
from mysglang.srt.entrypoints.request_watch import request_metrics
from mysglang.srt.errors import ServerEnded, ShuttingDown, WorkerDied
from mysglang.srt.managers.child import report_to_parent, run_child
from mysglang.srt.managers.model_files import load_model_config
from mysglang.srt.managers.text_pool import TextPool
from mysglang.srt.managers.tokenizer_manager import TokenizerManager
from mysglang.srt.messages.control import DrainReq, EndReq, FrontOrder
from mysglang.srt.messages.launch import Ready
from mysglang.srt.utils.logging import configure_logging
from mysglang.srt.utils.process import ParentLink, collect_rarely, freeze_heap, keep_heap_small, set_title

LOOK_S = 0.02


def run_tokenizer_worker(link: ParentLink) -> None:
    """Runs a further front until the process is ended. Raises an error that keeps it from continuing."""
    launch = msgspec.json.decode(link.spec, type=FrontLaunch)
    set_title(front_title(launch.index))
    keep_heap_small()
    configure_logging(launch.server_args.observability.log_level, f"FRONT{launch.index}")
    uvloop.run(_serve(launch, link))


async def _serve(launch: FrontLaunch, link: ParentLink) -> NoReturn:
    args = launch.server_args
    model, ports = load_model_config(args.model), launch.port_args
    links = FrontLinks(ports, launch.index, request_metrics(args, ports, model, launch.index))
    front, manager = make_front(args, launch.facts, FrontText.load(args), links, TextPool())
    # Spans wait for others before they are sent.
    link.before_end(links.fronts.metrics.close)
    gate = Gate(links.fronts.board)
    # This comes before anything is received: other fronts already serve, and may be told to change or to end.
    obey(manager, front.request_log)
    _obey_the_end(manager, gate)
    receiving = asyncio.create_task(manager.handle_loop(), name="receive")
    beating = asyncio.create_task(links.beat(), name="beat")
    await _wait_for_links(manager, links)
    with socket.socket(fileno=launch.listener) as listener, socket.socket(fileno=launch.to_owner) as pipe:
        door = HttpFront(listener, args.serving, args.observability.log_level_http, links.fronts.board, gate)
        await door.open(front, args, model, Owner(pipe))
        freeze_heap()
        collect_rarely()
        report_to_parent(link, Ready())
        ended = asyncio.create_task(door.ended())
        done, _ = await asyncio.wait({receiving, beating, ended}, return_when=asyncio.FIRST_COMPLETED)
        if ended in done:
            raise ended.result()
        raise WorkerDied("the front can no longer receive") from next(iter(done)).exception()


async def _wait_for_links(manager: TokenizerManager, links: FrontLinks) -> None:
    """Waits until every other process has sent a message and the scheduler has answered, so that all links work."""
    await manager.get_internal_state()
    others = links.fronts.count - 1
    while not manager.signs.quietest()[1] or len(manager.signs.fronts) < others:
        await asyncio.sleep(LOOK_S)
    # The main process watches over the other processes.
    manager.signs.fronts.clear()


def _obey_the_end(manager: TokenizerManager, gate: Gate) -> None:
    def end(order: FrontOrder) -> None:
        assert isinstance(order, EndReq)
        error: ServerEnded = ShuttingDown(order.why) if order.kind == "shutting_down" else WorkerDied(order.why)
        if isinstance(error, WorkerDied):
            gate.close(error)
        manager.fail_all(error)

    manager.order_handlers[DrainReq] = lambda _order: gate.drain()
    manager.order_handlers[EndReq] = end


if __name__ == "__main__":
    run_child(run_tokenizer_worker)
