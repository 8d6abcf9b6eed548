"""Runtime: a whole server but for HTTP. The children, the TokenizerManager that speaks with them, and the watch over
both. What `launch_server` and `Engine` have in common.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from mysglang.srt.configs.model_config import ModelConfig
from mysglang.srt.entrypoints.crash_records import CrashRecords
from mysglang.srt.entrypoints.front_launch import FrontLaunch, front_title
from mysglang.srt.entrypoints.front_orders import obey
from mysglang.srt.entrypoints.launcher import Subprocesses
from mysglang.srt.entrypoints.ready_front import FrontLinks, FrontText, ReadyFront, make_front
from mysglang.srt.entrypoints.request_watch import request_metrics
from mysglang.srt.entrypoints.warmup import warm_up
from mysglang.srt.errors import ShuttingDown, WorkerDied
from mysglang.srt.managers.fronts import Board
from mysglang.srt.managers.text_pool import TextPool
from mysglang.srt.managers.tokenizer_manager import TokenizerManager
from mysglang.srt.messages.control import DrainReq, EndReq
from mysglang.srt.server_args import PortArgs, ServerArgs
from mysglang.srt.utils.awake import AWAKE
from mysglang.srt.utils.exit_codes import ExitCode
from mysglang.srt.utils.service_thread import on_thread_death

logger = logging.getLogger(__name__)

LOOK_S = 1.0
"""How often the signs of life are looked at; they come about as often."""


@dataclass(frozen=True, slots=True)
class Death:
    """The cause of a server's unplanned end, and its exit code."""

    error: WorkerDied
    exit_code: ExitCode


class Runtime:
    """The processes of a server and their links. Made and used inside one event loop. After `wait_ready`, requests are
    served until `death` returns.
    """

    def __init__(self, server_args: ServerArgs, model_config: ModelConfig, subprocesses: Subprocesses) -> None:
        """Takes over processes that were launched, and ends them when it ends. `server_args` have paths of this machine
        (`launcher.find_model`).
        """
        self.server_args = server_args
        self.model_config = model_config
        self._subprocesses = subprocesses
        ports = subprocesses.port_args
        self._links = FrontLinks(ports, 0, request_metrics(server_args, ports, model_config, 0))
        self._text_pool = TextPool()
        self._manager: TokenizerManager | None = None
        self._tasks: list[asyncio.Task[None]] = [asyncio.create_task(AWAKE.keep_ticking(), name="tick")]
        """Tasks without which this process cannot serve."""
        self._watching: asyncio.Task[Death] | None = None
        self._thread_death: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._forget_threads = on_thread_death(partial(self._report_thread_death, asyncio.get_running_loop()))

    async def wait_ready(self) -> ReadyFront:
        """Waits until the server can answer requests and has answered one (the warm-up). Raises ConfigError or
        WorkerDied, with the cause, as soon as the start fails.
        """
        args = self.server_args
        loading = asyncio.create_task(self._subprocesses.wait_ready())
        try:
            text = await asyncio.to_thread(FrontText.load, args)
            text.warn_of_other_vocabulary(self.model_config.vocab_size)
            facts = await loading
        finally:
            loading.cancel()
            # A child that fails at this moment ignores the cancellation, and an exception that is never read is logged.
            await asyncio.gather(loading, return_exceptions=True)
        front, manager = make_front(args, facts, text, self._links, self._text_pool)
        obey(manager, front.request_log)
        self._manager = manager
        receiving = asyncio.create_task(manager.handle_loop(), name="receive")
        beating = asyncio.create_task(self._links.beat(), name="beat")
        self._tasks += [receiving, beating]
        self._watching = asyncio.create_task(self._watch(manager, front.crash_records, self._tasks), name="watch")
        if not args.serving.skip_server_warmup:
            await warm_up(front)
            if self._links.fronts.count == 1:
                await self.seal()
        return front

    @property
    def port_args(self) -> PortArgs:
        """Addresses at which the processes meet."""
        return self._subprocesses.port_args

    @property
    def board(self) -> Board:
        """Shared memory in which the fronts record their state for each other."""
        return self._links.fronts.board

    async def add_front(self, launch: FrontLaunch, pass_fds: Sequence[int]) -> None:
        """Start one front more, and wait until it is ready; from then on it is watched like all processes. Raises
        ConfigError or WorkerDied.
        """
        assert self._manager is not None, "not ready yet"
        await self._subprocesses.add_front(front_title(launch.index), launch, pass_fds)
        self._manager.signs.fronts[launch.index] = AWAKE.now()

    async def death(self) -> Death:
        """Returns once a process of ours has died or hangs; every open request has then received an error."""
        assert self._watching is not None, "not ready yet"
        return await asyncio.shield(self._watching)

    def drain(self) -> None:
        """Makes the other fronts refuse new requests."""
        self._links.fronts.notify(DrainReq())

    def cut_off(self, why: str) -> None:
        """Ends every open request now."""
        self._links.fronts.notify(EndReq(why=why, kind="shutting_down"))
        if self._manager is not None:
            self._manager.fail_all(ShuttingDown(why))

    async def stop(self) -> None:
        """End everything; nothing of it is left after this."""
        for task in (self._watching, *self._tasks):
            if task is not None:
                task.cancel()
        self._forget_threads()
        self._text_pool.close()
        self._links.close()
        await self._subprocesses.stop()

    async def seal(self) -> None:
        """Remove the sockets' files once every link is connected. Connected sockets stay connected, no other process
        can connect, and no file is left if this process is killed.

        A writer that is not connected by then never will be, so each link needs a proof. Children are ready when their
        links to detokenizers, and those with reports of ranks, are connected (`Push`). The warm-up request went to the
        scheduler of every rank, and each child sends heartbeats to the fronts. `tokenizer_worker.py` describes the
        links of further fronts.
        """
        assert self._manager is not None and self._watching is not None, "not ready yet"
        while not self._manager.signs.quietest()[1] and not self._watching.done():
            await asyncio.sleep(0.02)
        self._subprocesses.remove_sockets()

    async def _watch(
        self, manager: TokenizerManager, records: CrashRecords, services: Sequence[asyncio.Task[None]]
    ) -> Death:
        """Waits for the first death of a child (also by silence), a thread, or one of `services` in this process."""
        died = asyncio.create_task(self._subprocesses.death())
        silent = asyncio.create_task(self._silence(manager))
        ends: list[asyncio.Future[Any]] = [died, silent, self._thread_death, *services]
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            if died.done():
                death = Death(died.result(), ExitCode.WORKER_DIED)
            elif silent.done():
                death = Death(silent.result(), ExitCode.WATCHDOG)
            elif self._thread_death.done():
                death = Death(WorkerDied(f"in the main process {self._thread_death.result()}"), ExitCode.WORKER_DIED)
            else:
                ended = next(service for service in services if service.done())
                logger.error(
                    "The task %r of the main process died, so the server ends.",
                    ended.get_name(),
                    exc_info=ended.exception(),
                )
                death = Death(
                    WorkerDied(f"the main process lost its service {ended.get_name()!r}"), ExitCode.WORKER_DIED
                )
        finally:
            died.cancel()
            silent.cancel()
        self._links.fronts.notify(EndReq(why=str(death.error), kind="died"))
        lines = records.lines(str(death.error))
        manager.fail_all(death.error)
        await records.write(lines)
        return death

    def _report_thread_death(self, loop: asyncio.AbstractEventLoop, cause: str) -> None:
        """Reports the death of a service thread of this process. Called in that thread."""

        def note() -> None:
            if not self._thread_death.done():
                self._thread_death.set_result(cause)

        with contextlib.suppress(RuntimeError):  # the loop is closed already
            loop.call_soon_threadsafe(note)

    async def _silence(self, manager: TokenizerManager) -> WorkerDied:
        """Returns once some process's last sign of life is too long ago."""
        limit = self.server_args.observability.watchdog_timeout
        begun, paused_s = AWAKE.now(), AWAKE.paused_s
        while True:
            await asyncio.sleep(min(LOOK_S, limit / 4))
            slept_s, paused_s = AWAKE.paused_s - paused_s, AWAKE.paused_s
            if slept_s > limit / 4:
                # This process slept, and the others may have slept as long: their time starts again.
                begun = AWAKE.now()
            silent = AWAKE.now() - max(begun, manager.signs.quietest()[1])
            if silent > limit:
                who = " and the ".join(manager.signs.silenced_together())
                logger.error("The %s gave no sign of life for %.0f s; the stacks of all processes:", who, silent)
                stopped = self._subprocesses.stopped()
                await self._subprocesses.dump_stacks()
                # A stopped rank is the cause, and those that wait for it are not.
                cause = f"{' and '.join(stopped)} was stopped by a signal: " if stopped else ""
                watchdog = f"(--watchdog-timeout {limit:g})"
                return WorkerDied(f"{cause}the {who} gave no sign of life for {silent:.0f} s {watchdog}")
