"""run_scheduler_process: one scheduler as a process. Set up, report ready, loop, report death.

Importing this imports no torch: it must know how many threads it may have before torch is loaded.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import TypeAlias

import msgspec

from mysglang.srt.distributed.ranks import RankContext
from mysglang.srt.errors import ConfigError
from mysglang.srt.managers.child import SchedulerLaunch, report_to_parent, run_child, scheduler_title
from mysglang.srt.managers.scheduler import Loop
from mysglang.srt.messages.launch import Ready, SchedulerFacts
from mysglang.srt.server_args import PortArgs, ServerArgs
from mysglang.srt.utils.hardware import usable_cores
from mysglang.srt.utils.logging import configure_logging, measured, timed
from mysglang.srt.utils.process import ParentLink, freeze_heap, keep_imports, paused_gc, set_title
from mysglang.srt.utils.words import counted

logger = logging.getLogger(__name__)

FEW_CORES = 4
"""With at most this many cores, one core is left to the front, whose threads would otherwise wait behind every matrix
product.
"""


Build: TypeAlias = Callable[[ServerArgs, PortArgs, RankContext], tuple[Loop, SchedulerFacts]]
"""Options, links and ranks -> a scheduler, connected and ready to turn, and what it found out about itself."""


def run_scheduler_process(link: ParentLink, build: Build | None = None) -> None:
    """Serves until the process is ended. Raises the error that stops it.

    `build` makes the scheduler; `build_scheduler` does, unless a test wants another.
    """
    launch = msgspec.json.decode(link.spec, type=SchedulerLaunch)
    args, ranks = launch.server_args, launch.ranks
    set_title(scheduler_title(ranks))
    configure_logging(args.observability.log_level, ranks.name)
    if not ranks.leads:
        # All ranks run the same steps, and the first one reports them.
        logging.getLogger("mysglang.srt.scheduling.stats").setLevel(logging.WARNING)
    times: dict[str, float] = {}
    with timed(logger, "Setting up the scheduler"), measured(times, "scheduler_e2e"), paused_gc():
        if ranks.device == "cpu":
            # Read when the OpenMP runtime is loaded, so before torch is.
            os.environ.setdefault("OMP_NUM_THREADS", str(cpu_threads(usable_cores(), ranks.on_device.size)))
        else:
            use_gpu(ranks.gpu)
        loop, facts = (build or _builder())(args, launch.port_args, ranks)
    log_room(facts, leads=ranks.leads)
    if ranks.world.size > 1:
        logger.info("Tensors between ranks: %s.", facts.transport)
    if facts.max_total_num_tokens_swa:
        logger.info("KV cache of layers with a sliding window: %d tokens.", facts.max_total_num_tokens_swa)
    freeze_heap()
    report_to_parent(link, Ready(msgspec.structs.replace(facts, startup_times=facts.startup_times | times)))
    while True:
        loop.step()


def log_room(facts: SchedulerFacts, *, leads: bool) -> None:
    """Logs what the KV cache holds, and with `leads` a warning if that is less than the model takes in one request."""
    # Requests are checked against this number (`FrontLimits`).
    longest = min(facts.context_len, facts.max_req_input_len + (not facts.is_embedding))
    logger.info(
        "KV cache: %d tokens in %.2f GiB; at most %s at once, of %d tokens each.",
        facts.max_total_num_tokens,
        facts.memory_usage.get("kvcache", 0.0),
        counted(facts.max_running_requests, "request runs", "requests run"),
        longest,
    )
    if leads and longest < facts.context_len:
        logger.warning(
            "A request may have %d tokens at most, prompt and answer together, because the KV cache holds no more. The "
            "model takes %d. Raise --max-total-tokens or --mem-fraction-static.",
            longest,
            facts.context_len,
        )


def _builder() -> Build:
    """Imports all code of a real scheduler, torch among it, and returns the function that builds one."""
    from mysglang.srt.managers import worker_factory
    from mysglang.srt.managers.scheduler_builder import build_scheduler

    assert worker_factory, "the builder would import it in the middle of its work"
    keep_imports()
    return build_scheduler


def cpu_threads(num_cores: int, num_ranks: int) -> int:
    """Returns how many threads one rank computes with, if `num_ranks` share the cores."""
    if num_cores <= FEW_CORES:
        num_cores -= 1
    return max(1, num_cores // num_ranks)


def use_gpu(index: int) -> None:
    """Make the GPU of that number, among those visible, the one of this process. Raises ConfigError."""
    import torch

    if index >= torch.cuda.device_count():
        raise ConfigError(
            f"--base-gpu-id: torch sees {torch.cuda.device_count()} GPUs here, and number {index} is none of them; "
            "check CUDA_VISIBLE_DEVICES and that torch is a CUDA build, or give --device cpu."
        )
    torch.cuda.set_device(index)


if __name__ == "__main__":
    run_child(run_scheduler_process)
