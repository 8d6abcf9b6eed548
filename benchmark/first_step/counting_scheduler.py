"""A real scheduler process around a device that computes nothing: it takes as long as a GPU would, in order, and writes
down when each step was launched.

Each line of the file that FIRST_STEP_LOG names is one event of this process, its time in nanoseconds of the clock that
all processes share: `took COUNT` messages from the front, or `step TOKENS PROMPTS` was launched.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from idle_worker import IdleWorker

from mysglang.srt.configs.model_config import ModelConfig
from mysglang.srt.distributed.ranks import RankContext
from mysglang.srt.forward.outputs import BatchResult, StepOutput
from mysglang.srt.forward.worker import SpaceShape, WorkerCapacity
from mysglang.srt.forward.worker_batch import ModelWorkerBatch
from mysglang.srt.managers.child import run_child
from mysglang.srt.managers.scheduler import Loop
from mysglang.srt.managers.scheduler_builder import Makers, build_scheduler
from mysglang.srt.managers.scheduler_process import run_scheduler_process
from mysglang.srt.messages.channels import Pull
from mysglang.srt.messages.launch import SchedulerFacts
from mysglang.srt.server_args import PortArgs, ServerArgs

MODULE = "counting_scheduler"

STEP_NS = 1_000_000
TOKEN_NS = 2_400
"""Nanoseconds of a step, and of each token of a prompt: about those of Qwen3-0.6B on an H200."""
SLOTS, TOKENS, CONTEXT = 512, 1 << 20, 8192


class Log:
    """Events, written at once: the process ends without a word."""

    def __init__(self, path: str) -> None:
        self._file = open(path, "a", buffering=1)  # noqa: SIM115  # open as long as the process is

    def __call__(self, event: str) -> None:
        self._file.write(f"{time.perf_counter_ns()} {event}\n")


class TimedDevice(IdleWorker):
    """A worker whose steps take their time one after another, and yield the same token for every row."""

    def __init__(self, vocab_size: int, log: Log) -> None:
        spaces = (SpaceShape(TOKENS, 1),)
        super().__init__(WorkerCapacity(spaces=spaces, num_slots=SLOTS, max_context=CONTEXT, vocab_size=vocab_size))
        self._log = log
        self._free_at = 0

    def forward_batch_generation(self, batch: ModelWorkerBatch) -> BatchResult:
        tokens = 0 if batch.mode.is_decode else int(batch.extend_lens.sum())
        self._log(f"step {tokens} {len(batch.slots)}")
        end = self._free_at = max(self._free_at, time.perf_counter_ns()) + STEP_NS + tokens * TOKEN_NS
        counts = batch.yields.astype(np.int32)
        output = StepOutput(tokens=np.full(int(counts.sum()), 7, dtype=np.int32), counts=counts)

        def finish() -> StepOutput:
            time.sleep(max(0, end - time.perf_counter_ns()) / 1e9)
            return output

        return BatchResult(finish)


def build(args: ServerArgs, ports: PortArgs, ranks: RankContext) -> tuple[Loop, SchedulerFacts]:
    """`build_scheduler` around the device, listening."""
    log = Log(os.environ["FIRST_STEP_LOG"])
    drain = Pull.drain

    def logged(pull: Pull[Any]) -> list[Any]:
        messages = drain(pull)
        if messages:
            log(f"took {len(messages)}")
        return messages

    Pull.drain = logged

    def worker(_args: ServerArgs, model: ModelConfig, _ranks: RankContext) -> TimedDevice:
        return TimedDevice(model.vocab_size, log)

    return build_scheduler(args, ports, ranks, Makers(worker=worker))


if __name__ == "__main__":
    run_child(lambda link: run_scheduler_process(link, build))
