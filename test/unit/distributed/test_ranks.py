"""RankContext: a process learns its ranks from what it was handed, and from nowhere else."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import Tensor

from mysglang.srt.args.parallel import ParallelArgs
from mysglang.srt.distributed.groups import SOLO
from mysglang.srt.distributed.pipeline import WHOLE_MODEL, pipeline_stage
from mysglang.srt.distributed.process_group import ThroughHost, join, tensor_parallel_group
from mysglang.srt.distributed.ranks import ALONE, RANKS_OF_ONE, Place, RankContext, rank_contexts
from mysglang.srt.managers.child import ranks_of, scheduler_title

SOURCES = Path(__file__).parents[3] / "python/mysglang/srt"
MAY_READ = {
    # In sharded_state.py it is the number of ranks that saved the files, not of those that run. In load_format.py the
    # launcher compares these files with the ranks that it is about to start.
    "tp_size": {
        "args",
        "configs/load_format.py",
        "entrypoints/launcher.py",
        "managers/child.py",
        "utils/sharded_state.py",
    },
    "pp_size": {"args", "configs/load_format.py", "entrypoints/launcher.py", "managers/child.py"},
    "base_gpu_id": {"args", "managers/child.py"},
    "WholeModel": {"distributed/pipeline.py"},
    "SoloGroup": {"distributed/groups.py", "layers/context.py"},
}
"""Name -> where it may be read: in folders and files of the package. All others have a RankContext, or a group."""


def test_one_rank_is_alone_in_every_group() -> None:
    [ranks] = ranks_of(ParallelArgs(device="cuda", base_gpu_id=3))
    assert ranks == RankContext(device="cuda", gpu=3)
    groups = (ranks.world, ranks.tp, ranks.attention_tp, ranks.ep, ranks.pp, ranks.dp)
    assert set(groups) == {ALONE} and Place(0, 1) == ALONE
    assert (ranks.name, scheduler_title(ranks)) == ("TP0", "mysglang::scheduler_TP0")
    assert ranks.labels == {"tp_rank": "0", "pp_rank": "0", "moe_ep_rank": "0"}


def test_one_rank_exchanges_nothing_and_has_all_layers() -> None:
    assert tensor_parallel_group(RANKS_OF_ONE) is SOLO
    assert pipeline_stage(RANKS_OF_ONE) is WHOLE_MODEL and WHOLE_MODEL.layers(5) == range(5)


def test_ranks_that_share_layers() -> None:
    first, second = rank_contexts(2, device="cuda", gpus=[4, 5], meeting_file="/run/here")
    assert (first.world, second.world) == (Place(0, 2), Place(1, 2))
    assert second.tp == second.attention_tp == second.world and second.pp == second.dp == second.ep == ALONE
    assert (first.gpu, second.gpu) == (4, 5)
    assert second.labels["tp_rank"] == "1"
    assert first.leads and not second.leads
    assert first.meeting_file == second.meeting_file == "/run/here"
    assert msgspec.json.decode(msgspec.json.encode(second), type=RankContext) == second


def test_the_last_stage_leads() -> None:
    """It has the logits, so it speaks to the fronts; GPUs are numbered from the first stage on."""
    ranks = rank_contexts(2, 2, device="cuda", gpus=[4, 5, 6, 7])
    assert [each.name for each in ranks] == ["PP1 TP0", "PP1 TP1", "PP0 TP0", "PP0 TP1"]
    assert [scheduler_title(each).rpartition("::")[2] for each in ranks][::2] == [
        "scheduler_PP1_TP0",
        "scheduler_PP0_TP0",
    ]
    assert [each.gpu for each in ranks] == [6, 7, 4, 5]
    assert [each.world for each in ranks] == [Place(number, 4) for number in range(4)]
    assert [each.leads for each in ranks] == [True, False, False, False]
    assert ranks[2].labels == {"tp_rank": "0", "pp_rank": "0", "moe_ep_rank": "0"}


def test_ranks_on_one_gpu_exchange_through_the_host() -> None:
    """The transport follows from whether ranks share a device. Ranks of a CPU always do, and divide its memory."""

    def ranks(**given: Any) -> list[RankContext]:
        return ranks_of(ParallelArgs(**given))

    shared = ranks(device="cuda", tp_size=2, pp_size=2, base_gpu_id=1, gpu_id_step=0)
    assert [each.gpu for each in shared] == [1] * 4
    assert {each.transport for each in shared} == {"gloo_through_host"}
    assert sorted(each.on_device.rank for each in shared) == [0, 1, 2, 3]
    apart = ranks(device="cuda", tp_size=2, base_gpu_id=1, gpu_id_step=2)
    assert [(each.gpu, each.on_device, each.transport) for each in apart] == [(1, ALONE, "nccl"), (3, ALONE, "nccl")]
    assert [(each.on_device.size, each.transport) for each in ranks(device="cpu", tp_size=2)] == [(2, "gloo")] * 2
    assert [each.transport for each in ranks(device="cuda")] == ["none"]


def test_ranks_of_one_gpu_meet_over_gloo(tmp_path: Path) -> None:
    """Every verb of the group, with tensors that are on the host already."""

    def work(ranks: RankContext) -> list[Tensor]:
        group = join(ranks, "tp", ranks.tp)
        assert isinstance(group, ThroughHost)
        assert (group.rank, group.size) == (ranks.tp.rank, 2)
        x = torch.full((2, 3), float(ranks.tp.rank + 1))
        other = 1 - group.rank
        sending = group.send(x.clone(), other)
        received = group.receive(torch.empty(2, 3), other)
        sending.wait()
        assert group.smallest([group.rank, -group.rank]) == [0, -1]
        return [received, group.all_gather(x), group.broadcast(x.clone()), group.all_reduce(x)]

    meeting = str(tmp_path / "ranks")
    contexts = rank_contexts(2, device="cuda", gpus=[0, 0], meeting_file=meeting)
    with ThreadPoolExecutor(2) as threads:
        found = list(threads.map(work, contexts))
    for number, (received, gathered, first, total) in enumerate(found):
        assert torch.equal(received, torch.full((2, 3), 2.0 - number))
        assert torch.equal(gathered, torch.tensor([[1.0] * 3 + [2.0] * 3] * 2))
        assert torch.equal(first, torch.ones(2, 3)) and torch.equal(total, torch.full((2, 3), 3.0))


def test_nobody_asks_for_a_rank_in_another_way() -> None:
    wrong = [
        f"{place}:{line} {name}"
        for path in sorted(SOURCES.rglob("*.py"))
        if any(name in (text := path.read_text()) for name in MAY_READ)
        for name, line in names_read(ast.parse(text))
        if (place := path.relative_to(SOURCES).as_posix())
        and name in MAY_READ
        and MAY_READ[name].isdisjoint({place, place.split("/")[0]})
    ]
    assert not wrong


def names_read(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Every attribute that is read, and every name that is imported, with its line."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            yield node.attr, node.lineno
        elif isinstance(node, ast.ImportFrom):
            yield from ((alias.name, node.lineno) for alias in node.names)
