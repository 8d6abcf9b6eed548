"""A worker with random weights in this process, for benchmarks of steps: no server, no scheduler, no text."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from shapes import write_shape

from mysglang.srt.entrypoints.launcher import find_model
from mysglang.srt.forward.worker import Worker
from mysglang.srt.managers.child import ranks_of
from mysglang.srt.managers.worker_factory import make_worker
from mysglang.srt.server_args import ServerArgs


def random_worker(model: str, options: Sequence[str]) -> tuple[Worker, int]:
    """Returns a worker of this shape with these options of the server, and the most tokens of a step with prompts."""
    with tempfile.TemporaryDirectory() as folder:
        path = str(write_shape(model, Path(folder)))
        own = ["--model-path", path, "--load-format", "dummy", "--skip-tokenizer-init"]
        server_args, config = find_model(ServerArgs.from_cli([*own, *options]))
        worker = make_worker(server_args, config, ranks_of(server_args.parallel)[0])
    schedule = server_args.schedule
    return worker, schedule.prefill_chunk or schedule.max_prefill_tokens
