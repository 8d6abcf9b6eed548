"""The arguments of a scheduler process arrive unchanged, and it leaves the front a core where there are few."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from fixtures.ready_child import FACTS
from mysglang.srt.distributed.ranks import rank_contexts
from mysglang.srt.managers.child import DetokenizerLaunch, SchedulerLaunch, scheduler_title
from mysglang.srt.managers.scheduler_process import cpu_threads, log_room
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


@pytest.mark.parametrize(("input_len", "leads", "warned"), [(9, True, 1), (9, False, 0), (63, True, 0)])
def test_a_cache_below_one_long_request_is_warned_of(
    input_len: int, leads: bool, warned: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    log_room(msgspec.structs.replace(FACTS, context_len=64, max_req_input_len=input_len), leads=leads)
    room, *warnings = caplog.messages
    assert f"of {input_len + 1} tokens each" in room and len(warnings) == warned
    assert all("A request may have 10 tokens at most" in line and "takes 64." in line for line in warnings)


def test_title() -> None:
    assert scheduler_title(rank_contexts(4, device="cpu")[3]) == "mysglang::scheduler_TP3"
