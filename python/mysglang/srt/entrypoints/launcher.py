"""Launch the child processes, wait until they are ready, watch them, end them.

Knows how a launch fails and how a server's processes die; does not know HTTP, nor what the children do.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import psutil

from mysglang.srt.configs.checkpoint_sizes import check_context, check_memory
from mysglang.srt.configs.config_warnings import config_warnings
from mysglang.srt.configs.load_format import WeightFormat, WeightsUse, format_at
from mysglang.srt.configs.model_config import ModelConfig
from mysglang.srt.configs.rank_split import check_split, check_stages
from mysglang.srt.environ import START_TIMEOUT, unknown_variables
from mysglang.srt.errors import ConfigError, WorkerDied
from mysglang.srt.managers.child import DetokenizerLaunch, detokenizer_title, scheduler_launches, scheduler_title
from mysglang.srt.managers.model_files import check_task, load_draft_config, load_model_config
from mysglang.srt.messages.launch import Failed, FromChild, Ready, SchedulerFacts
from mysglang.srt.server_args import PortArgs, ServerArgs
from mysglang.srt.utils.awake import awake_timeout
from mysglang.srt.utils.hardware import detect_hardware, host_memory
from mysglang.srt.utils.hf import resolve_model_path
from mysglang.srt.utils.model_source import model_source
from mysglang.srt.utils.network import ipc_endpoint, make_ipc_dir
from mysglang.srt.utils.private_dir import remove_private_dir
from mysglang.srt.utils.process import DUMP_SIGNAL, Child, describe_exit, stop_children
from mysglang.srt.utils.shortage import shortage_in

logger = logging.getLogger(__name__)

STOP_GRACE_S = 2.0
"""Seconds for a child to end by itself."""

STOPPED = (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)

STACKS_S = 0.5
"""Seconds for the children to write their stacks."""


@dataclass(frozen=True, slots=True)
class ChildModules:
    """Modules that the children run. Tests replace the scheduler's by a smaller one."""

    scheduler: str = "mysglang.srt.managers.scheduler_process"
    detokenizer: str = "mysglang.srt.managers.detokenizer_manager"
    tokenizer_worker: str = "mysglang.srt.entrypoints.tokenizer_worker"


THE_CHILDREN = ChildModules()


def make_port_args(ipc_dir: Path, *, num_fronts: int = 1, num_detokenizers: int = 1, num_ranks: int = 1) -> PortArgs:
    return PortArgs(
        scheduler_input_ipc_name=ipc_endpoint(ipc_dir, "scheduler"),
        detokenizer_ipc_names=tuple(ipc_endpoint(ipc_dir, f"detokenizer{i}") for i in range(num_detokenizers)),
        tokenizer_ipc_names=tuple(ipc_endpoint(ipc_dir, f"tokenizer{i}") for i in range(num_fronts)),
        board=str(ipc_dir / "board"),
        turn_ipc_names=tuple(ipc_endpoint(ipc_dir, f"turns{rank}") for rank in range(1, num_ranks)),
        report_ipc_name=ipc_endpoint(ipc_dir, "reports") if num_ranks > 1 else "",
        meeting_file=str(ipc_dir / "ranks") if num_ranks > 1 else "",
    )


def find_model(server_args: ServerArgs) -> tuple[ServerArgs, ModelConfig]:
    """Returns the options with local paths, and the model's config, so that errors in them are found before any process
    is launched. Downloads a repository, and logs a warning for each environment variable that is unknown, and each part
    of the model's config that has no effect. Raises ConfigError.
    """
    for warning in unknown_variables():
        logger.warning(warning)
    _check_place()
    model = server_args.model
    assert model.model_path is not None and model.tokenizer_path is not None, "server_args are resolved"
    weights = format_at(model.model_path, model.load_format)
    path = weights.fetch(model.model_path, revision=model.revision, download_dir=model.download_dir)
    tokenizer_path = path
    if model.tokenizer_path != model.model_path:
        tokenizer_path = resolve_model_path(
            model.tokenizer_path, revision=model.revision, download_dir=model.download_dir, load_format="dummy"
        )
    found = replace(model, model_path=str(path), tokenizer_path=str(tokenizer_path), load_format=weights.name)
    if not model.skip_tokenizer_init:
        model_source(tokenizer_path).check_tokenizer()
    config = load_model_config(found)
    for warning in config_warnings(config):
        logger.warning(warning)
    check_task(server_args, config)
    _check_sizes(config, weights, server_args)
    args = replace(server_args, model=found)
    if (asked := args.speculative.speculative_draft_model_path) is not None:
        draft = str(weights.beside.fetch(asked, download_dir=model.download_dir))
        args = replace(args, speculative=replace(args.speculative, speculative_draft_model_path=draft))
        _check_sizes(load_draft_config(draft, config), weights.beside, server_args)
    return args, config


def _check_place() -> None:
    """Raises ConfigError if the current directory was removed: oneMKL then ends each process that loads it."""
    try:
        os.getcwd()
    except OSError as error:
        raise ConfigError(f"the current directory cannot be used ({error.strerror}); start from another one") from None


def _check_sizes(config: ModelConfig, weights: WeightFormat, server_args: ServerArgs) -> None:
    """Compares the model's sizes with its weights, the ranks and this machine. Raises ConfigError."""
    parallel = server_args.parallel
    check_split(config, parallel.tp_size)
    check_stages(config, parallel.pp_size)
    weights.check(config, WeightsUse(parallel.tp_size, parallel.pp_size, server_args.model.quantization))
    host, gpus = host_memory(), detect_hardware().gpu_memory
    check_context(config, memory=host)
    if parallel.device == "cpu" or not gpus:
        # All ranks share the memory of the machine.
        check_memory(config, memory=host, num_ranks=1, place="this machine")
    else:
        check_memory(config, memory=max(gpus), num_ranks=parallel.num_ranks // parallel.ranks_per_gpu, place="a GPU")


class Subprocesses:
    """The children of one server: a scheduler for each rank, the detokenizers, and further fronts if there are some."""

    def __init__(self, server_args: ServerArgs, modules: ChildModules = THE_CHILDREN) -> None:
        """Starts all processes at once. Must run in the event loop that watches them."""
        self._modules = modules
        self.ipc_dir = make_ipc_dir()
        serving = server_args.serving
        self.port_args = make_port_args(
            self.ipc_dir,
            num_fronts=serving.tokenizer_worker_num,
            num_detokenizers=serving.detokenizer_worker_num,
            num_ranks=server_args.parallel.num_ranks,
        )
        self._children: list[Child] = []
        self._grown = asyncio.Event()
        """Set when there is one child more to be watched."""
        for launch in scheduler_launches(server_args, self.port_args):
            self._start(modules.scheduler, scheduler_title(launch.ranks), launch)
        for index in range(serving.detokenizer_worker_num):
            spec = DetokenizerLaunch(server_args=server_args, port_args=self.port_args, index=index)
            self._start(modules.detokenizer, detokenizer_title(index), spec)

    @property
    def pids(self) -> dict[str, int]:
        """Maps the title of each process to its id."""
        return {child.title: child.pid for child in self._children}

    async def wait_ready(self) -> SchedulerFacts:
        """Waits until all processes are ready. Returns the facts of rank 0, with those of the other ranks.

        Raises ConfigError or WorkerDied with the cause as soon as one has failed.
        """
        timeout = START_TIMEOUT.get()
        waits = [asyncio.ensure_future(_ready(child)) for child in self._children]
        try:
            async with awake_timeout(timeout):
                answers = await asyncio.gather(*waits)
        except TimeoutError:
            late = [child.title for child in self._children if not child.first_message.done()]
            raise WorkerDied(f"{' and '.join(late)} did not become ready within {timeout:g} s.") from None
        finally:
            for wait in waits:
                wait.cancel()
        first, *others = (answer.facts for answer in answers if answer.facts is not None)
        return msgspec.structs.replace(first, ranks=[each.of_rank for each in others]) if others else first

    async def add_front(self, title: str, launch: msgspec.Struct, pass_fds: Sequence[int]) -> None:
        """Start one more front, which inherits these descriptors, and wait until it is ready. Raises ConfigError if it
        does not start.
        """
        child = self._start(self._modules.tokenizer_worker, title, launch, pass_fds)
        self._grown.set()
        try:
            async with awake_timeout(START_TIMEOUT.get()):
                await _ready(child)
        except TimeoutError:
            raise WorkerDied(f"{title} did not become ready within {START_TIMEOUT.get():g} s.") from None

    async def death(self) -> WorkerDied:
        """Returns once a child has ended, whatever its exit code: no child ends by itself."""
        while not (dead := [child for child in self._children if child.exited.done()]):
            self._grown.clear()
            grown = asyncio.create_task(self._grown.wait())
            ends: list[asyncio.Future[Any]] = [grown, *(child.exited for child in self._children)]
            try:
                await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            finally:
                grown.cancel()
        if all(map(_follows, dead)):
            # A rank can notice the end of another one before this process does.
            alive = [child.exited for child in self._children if not child.exited.done()]
            await asyncio.wait(alive, timeout=STOP_GRACE_S, return_when=asyncio.FIRST_COMPLETED)
            dead = [child for child in self._children if child.exited.done()]
        causes = [child for child in dead if not _follows(child)] or dead
        return WorkerDied("; ".join(map(_obituary, causes)))

    def stopped(self) -> list[str]:
        """Returns the titles of the children that a signal or a debugger has stopped."""
        return [child.title for child in self._children if _status(child.pid) in STOPPED]

    async def dump_stacks(self) -> None:
        """Have every child write the stacks of its threads to stderr."""
        for child in self._children:
            child.send_signal(DUMP_SIGNAL)
        await asyncio.sleep(STACKS_S)

    def remove_sockets(self) -> None:
        """Remove the sockets' files: no process will connect any more."""
        remove_private_dir(self.ipc_dir)

    async def stop(self) -> None:
        """End all children and remove their sockets. Nothing of ours is left after this."""
        await stop_children(self._children, STOP_GRACE_S)
        remove_private_dir(self.ipc_dir)

    def kill(self) -> None:
        """End all children at once, without waiting: for a process that is about to end itself."""
        for child in self._children:
            child.send_signal(signal.SIGKILL)
        remove_private_dir(self.ipc_dir)

    def _start(self, module: str, title: str, launch: msgspec.Struct, pass_fds: Sequence[int] = ()) -> Child:
        """Starts a child. Raises WorkerDied if the system has no resources for it; then the running children are
        ended.
        """
        try:
            child = Child(module, title, msgspec.json.encode(launch), pass_fds)
        except (OSError, RuntimeError) as error:
            self.kill()
            raise WorkerDied(f"{title} could not be started: {shortage_in(error) or error}.") from error
        self._children.append(child)
        return child


def _status(pid: int) -> str:
    """Returns psutil's name for the state of a process; empty if it is gone."""
    try:
        return str(psutil.Process(pid).status())
    except psutil.Error:
        return ""


async def _ready(child: Child) -> Ready:
    events: list[asyncio.Future[Any]] = [child.first_message, child.exited]
    await asyncio.wait(events, return_when=asyncio.FIRST_COMPLETED)
    if child.first_message.done():
        message = _read(child.first_message.result())
        if isinstance(message, Ready):
            return message
    # It has reported a cause and is ending, or has ended without a message.
    await asyncio.wait([child.exited], timeout=STOP_GRACE_S)
    if _follows(child):
        # Another child reports the cause, and a caller that waits for both hears of that one first.
        await asyncio.sleep(STOP_GRACE_S)
    if causes := _causes(child):
        raise ConfigError(*causes)
    raise WorkerDied(f"{child.title} {describe_exit(child.exited.result())} before it was ready.")


def _obituary(child: Child) -> str:
    text = f"{child.title} {describe_exit(child.exited.result())}"
    return ": ".join([text, *_causes(child)])


def _causes(child: Child) -> list[str]:
    """Returns the cause of the child's end, if it reported one in its last message."""
    message = _read(child.last_message) if child.last_message is not None else None
    return message.problems if isinstance(message, Failed) else []


def _follows(child: Child) -> bool:
    """True if the child said that its end only follows from that of another one."""
    message = _read(child.last_message) if child.last_message is not None else None
    return isinstance(message, Failed) and message.follows


def _read(line: bytes) -> FromChild:
    message: FromChild = msgspec.json.decode(line, type=FromChild)
    return message
