"""The arguments of a scheduler process arrive unchanged, and it leaves the front a core where there are few."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from mysglang.srt.distributed.ranks import rank_contexts
from mysglang.srt.managers.child import DetokenizerLaunch, SchedulerLaunch, scheduler_title
from mysglang.srt.managers.scheduler_process import cpu_threads
from mysglang.srt.server_args import PortArgs, ServerArgs
from mysglang.srt.utils.hardware import Hardware


@pytest.mark.parametrize(
    ("num_cores", "num_ranks", "threads"), [(1, 1, 1), (2, 1, 1), (4, 1, 3), (8, 1, 8), (64, 4, 16), (2, 4, 1)]
)
def test_cpu_threads(num_cores: int, num_ranks: int, threads: int) -> None:
    assert cpu_threads(num_cores, num_ranks) == threads


def test_launch_survives_the_way_to_the_child(tmp_path: Path) -> None:
    args = ServerArgs.from_kwargs(Hardware(), model_path=str(tmp_path), page_size=16)
    ports = PortArgs(
        scheduler_input_ipc_name="ipc:///a",
        detokenizer_ipc_names=("ipc:///b",),
        tokenizer_ipc_names=("ipc:///c",),
        board="/d",
    )
    for launch in (
        SchedulerLaunch(server_args=args, port_args=ports, ranks=rank_contexts(2, device="cuda", gpus=[1, 2])[1]),
        DetokenizerLaunch(server_args=args, port_args=ports),
    ):
        line = msgspec.json.encode(launch)
        assert b"\n" not in line
        assert msgspec.json.decode(line, type=type(launch)) == launch


def test_title() -> None:
    assert scheduler_title(rank_contexts(4, device="cpu")[3]) == "mysglang::scheduler_TP3"
