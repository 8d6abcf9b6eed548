"""Runtime: a whole server but for HTTP. The children, the TokenizerManager that speaks with them, and the watch over
both. What `launch_server` and `Engine` have in common.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass

from mysglang.srt.configs.model_config import ModelConfig
from mysglang.srt.entrypoints.front import Manager, RequestLogSettings
from mysglang.srt.entrypoints.launcher import THE_CHILDREN, ChildModules, Subprocesses
from mysglang.srt.entrypoints.request_log import LoggedManager
from mysglang.srt.entrypoints.warmup import warm_up
from mysglang.srt.errors import ShuttingDown, WorkerDied
from mysglang.srt.managers.input_tokenizer import FrontLimits, InputTokenizer
from mysglang.srt.managers.model_files import load_tokenizer
from mysglang.srt.managers.text_pool import TextPool
from mysglang.srt.managers.tokenizer_manager import TokenizerManager
from mysglang.srt.messages.channels import AsyncPull, Push
from mysglang.srt.messages.codec import ToScheduler, ToTokenizer, scheduler_codec, tokenizer_codec
from mysglang.srt.messages.launch import SchedulerFacts
from mysglang.srt.parser.template_manager import TemplateManager
from mysglang.srt.server_args import ServerArgs
from mysglang.srt.utils.exit_codes import ExitCode
from mysglang.srt.utils.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

LOOK_S = 1.0
"""How often the signs of life are looked at; they come about as often."""


@dataclass(frozen=True, slots=True)
class Death:
    """How a server that nobody asked to end came to its end."""

    error: WorkerDied
    exit_code: ExitCode


@dataclass(frozen=True, slots=True)
class ReadyFront:
    """What serves requests in this process, once the children are ready: `entrypoints.front.Front`."""

    tokenizer_manager: Manager
    tokenizer: Tokenizer | None
    template_manager: TemplateManager | None
    text_pool: TextPool
    facts: SchedulerFacts
    request_log: RequestLogSettings


class Runtime:
    """Made and used inside one event loop. After `wait_ready` requests are served until `death` returns."""

    def __init__(
        self, server_args: ServerArgs, model_config: ModelConfig, modules: ChildModules = THE_CHILDREN
    ) -> None:
        """Launch the children. `server_args` have paths of this machine (`launcher.find_model`)."""
        self.server_args = server_args
        self.model_config = model_config
        self._subprocesses = Subprocesses(server_args, modules)
        ports = self._subprocesses.port_args
        self._to_scheduler: Push[ToScheduler] = Push(ports.scheduler_input_ipc_name, scheduler_codec())
        self._from_workers: AsyncPull[ToTokenizer] = AsyncPull(ports.tokenizer_ipc_name, tokenizer_codec())
        self._text_pool = TextPool()
        self._manager: TokenizerManager | None = None
        self._receiving: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[Death] | None = None

    async def wait_ready(self) -> ReadyFront:
        """Until requests can be served, and one has been. Raises ConfigError or WorkerDied with the cause as soon as
        something keeps it from that.
        """
        args = self.server_args
        loading = asyncio.create_task(self._subprocesses.wait_ready())
        try:
            tokenizer, templates = await asyncio.to_thread(_load_text, args)
            facts = await loading
        finally:
            loading.cancel()
        limits = FrontLimits.from_facts(facts)
        manager = TokenizerManager(
            InputTokenizer(tokenizer, limits, self._text_pool, seed=args.model.random_seed),
            limits,
            self._to_scheduler,
            self._from_workers,
            max_queued_requests=args.schedule.max_queued_requests,
        )
        self._manager = manager
        self._receiving = asyncio.create_task(manager.handle_loop(), name="receive")
        self._watching = asyncio.create_task(self._watch(manager, self._receiving), name="watch")
        settings = RequestLogSettings(log_requests=args.observability.log_requests)
        served = LoggedManager(manager, settings)
        front = ReadyFront(served, tokenizer, templates, self._text_pool, facts, settings)
        if not args.serving.skip_server_warmup:
            await warm_up(front)
            await self._seal(manager, self._watching)
        return front

    async def death(self) -> Death:
        """Returns once a process of ours has died or hangs; every open request has been told so."""
        assert self._watching is not None, "not ready yet"
        return await asyncio.shield(self._watching)

    def cut_off(self, why: str) -> None:
        """Tell every open request that it ends now."""
        if self._manager is not None:
            self._manager.fail_all(ShuttingDown(why))

    async def stop(self) -> None:
        """End everything; nothing of it is left after this."""
        for task in (self._watching, self._receiving):
            if task is not None:
                task.cancel()
        self._text_pool.close()
        self._to_scheduler.close()
        self._from_workers.close()
        await self._subprocesses.stop()

    def kill(self) -> None:
        """The same at once, for a process that is about to end itself."""
        self._subprocesses.kill()

    async def _seal(self, manager: TokenizerManager, watching: asyncio.Task[Death]) -> None:
        """Remove the sockets' files once every link has carried a message: the warm-up request went over three, and a
        heartbeat goes over the fourth. What is connected stays connected, nobody else ever can, and nothing is left
        should this process be killed.
        """
        while not manager.signs.last_heartbeat and not watching.done():
            await asyncio.sleep(0.02)
        self._subprocesses.remove_sockets()

    async def _watch(self, manager: TokenizerManager, receiving: asyncio.Task[None]) -> Death:
        died = asyncio.create_task(self._subprocesses.death())
        silent = asyncio.create_task(self._silence(manager))
        try:
            await asyncio.wait({died, silent, receiving}, return_when=asyncio.FIRST_COMPLETED)
            if died.done():
                death = Death(died.result(), ExitCode.WORKER_DIED)
            elif silent.done():
                death = Death(silent.result(), ExitCode.WATCHDOG)
            else:
                logger.error("the front can no longer receive", exc_info=receiving.exception())
                death = Death(WorkerDied("the front can no longer receive"), ExitCode.WORKER_DIED)
        finally:
            died.cancel()
            silent.cancel()
        manager.fail_all(death.error)
        return death

    async def _silence(self, manager: TokenizerManager) -> WorkerDied:
        """Returns once some process's last sign of life is too long ago."""
        limit = self.server_args.observability.watchdog_timeout
        begun = time.monotonic()
        while True:
            await asyncio.sleep(min(LOOK_S, limit / 4))
            who, heard = manager.signs.quietest()
            silent = time.monotonic() - max(begun, heard)
            if silent > limit:
                logger.error("The %s gave no sign of life for %.0f s; the stacks of all processes:", who, silent)
                await self._subprocesses.dump_stacks()
                return WorkerDied(f"the {who} gave no sign of life for {silent:.0f} s (--watchdog-timeout {limit:g})")


def _load_text(args: ServerArgs) -> tuple[Tokenizer | None, TemplateManager | None]:
    """The tokenizer and the chat templates, unless there is to be none. Raises ConfigError."""
    tokenizer = load_tokenizer(args.model)
    if tokenizer is None:
        return None, None
    return tokenizer, TemplateManager(tokenizer.config, tokenizer.special_tokens, args.serving.chat_template)
