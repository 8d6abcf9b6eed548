"""Weights and memory of a model over several ranks or stages, as threads: they change on all of them or on none."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest
import torch
from safetensors.torch import load_file, save_file

from fixtures.thread_group import run_on_ranks
from fixtures.thread_stages import run_on_stages
from fixtures.tiny_checkpoints import make_checkpoint
from fixtures.worker_driver import GREEDY, Driver
from mysglang.srt.configs.load_config import LoadConfig
from mysglang.srt.configs.model_config import ModelConfig
from mysglang.srt.distributed.groups import SOLO, Group
from mysglang.srt.distributed.pipeline import WHOLE_MODEL, Stage
from mysglang.srt.distributed.ranks import RANKS_OF_ONE, RankContext, rank_contexts
from mysglang.srt.entrypoints.weight_commands import copy_config, shard_place
from mysglang.srt.errors import InvalidRequest, PeerRefused
from mysglang.srt.model_executor.executor import Executor
from mysglang.srt.model_executor.live_weights import NOWHERE, LiveWeights
from mysglang.srt.model_executor.model_launch import ModelLaunch
from mysglang.srt.model_executor.runner_config import RunnerConfig

T = TypeVar("T")
ALL = frozenset(("weights", "kv_cache", "cuda_graph"))
SPLITS = {"two ranks": (2, 1), "two stages": (1, 2)}
"""Ranks of a stage, and stages."""
SOME = ["model.embed_tokens.weight", "model.layers.0.self_attn.k_proj.weight", "model.layers.2.mlp.up_proj.weight"]
"""Tensors of both stages: the first table is tied, so both have it."""


CHECKPOINT = LoadConfig()


def tick() -> None:
    """A sign of life."""


def started(
    folder: Path,
    ranks: RankContext = RANKS_OF_ONE,
    tp: Group = SOLO,
    stage: Stage = WHOLE_MODEL,
    load: LoadConfig = CHECKPOINT,
) -> Executor:
    launch = ModelLaunch(ModelConfig.from_path(str(folder), dtype="float32"), load)
    config = RunnerConfig(ranks=ranks, device="cpu", page_size=4, max_running_requests=4)
    return Executor(config, [launch], join=lambda _: tp, join_stages=lambda _: stage)


def on_two(folder: Path, split: str, work: Callable[[Executor, int], T]) -> list[T]:
    """Results of `work` on each of two ranks, or of two stages, for an executor and its number there."""
    tp_size, pp_size = SPLITS[split]
    contexts = {max(each.tp.rank, each.pp.rank): each for each in rank_contexts(tp_size, pp_size, device="cpu")}
    if split == "two ranks":
        return run_on_ranks(2, lambda tp: work(started(folder, contexts[tp.rank], tp=tp), tp.rank))
    return run_on_stages(2, lambda stage, number: work(started(folder, contexts[number], stage=stage), number))


def says(worker: Executor) -> list[list[int]]:
    with torch.inference_mode():
        return Driver.start(worker, [GREEDY] * 2).generate([list(range(3, 40)), [7, 8, 9]], 8, chunk=16)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`old`: a model; `new`: the same with other weights; `some`: a part of these; `bad`: one tensor has another shape.
    `mixed`: the old ones with this part.
    """
    path = tmp_path_factory.mktemp("weights")
    for name, seed in (("old", 0), ("new", 1), ("bad", 1), ("mixed", 0)):
        make_checkpoint("llama", path / name, seed=seed, tie_word_embeddings=True)
    new = load_file(path / "new" / "model.safetensors")
    some = {name: new[name] for name in SOME}
    save_file(some, path / "some.safetensors")
    for name, change in (("bad", {"model.layers.0.mlp.down_proj.weight": torch.zeros(3)}), ("mixed", some)):
        file = path / name / "model.safetensors"
        save_file({**load_file(file), **change}, file, metadata={"format": "pt"})
    return path


@pytest.mark.promise(49)
@pytest.mark.parametrize("split", SPLITS)
def test_weights_change_on_all_ranks_or_on_none(split: str, folders: Path) -> None:
    """One of two finds something wrong: it says what, and both go on with what they had."""
    wrong = {"two ranks": 1, "two stages": 0}[split]

    def work(worker: Executor, number: int) -> list[list[list[int]]]:
        weights = worker.weights
        expected, message = (InvalidRequest, "has shape") if number == wrong else (PeerRefused, "Another rank")
        found = []
        with pytest.raises(expected, match=message):
            path = folders / ("bad" if number == wrong else "new")
            weights.update_from_files(str(path), whole=True, pulse=tick)
        found.append(says(worker))
        weights.update_from_files(str(folders / "some.safetensors"), whole=False, pulse=tick)
        found.append(says(worker))
        weights.update_from_files(str(folders / "new"), whole=True, pulse=tick)
        found.append(says(worker))
        with pytest.raises(InvalidRequest, match="split over several"):
            weights.read(SOME[0], 2)
        return found

    expected = [says(started(folders / name)) for name in ("old", "mixed", "new")]
    assert expected[0] != expected[1] != expected[2]
    assert on_two(folders / "old", split, work) == [expected] * 2


def test_ranks_save_their_parts_and_read_them_again(folders: Path, tmp_path: Path) -> None:
    place = shard_place(tmp_path / "saved", None, 1 << 14)
    copy_config(folders / "old", tmp_path / "saved")

    def save(worker: Executor, number: int) -> int:
        return worker.weights.save_sharded(place, tick)

    def again(tp: Group) -> list[list[int]]:
        worker = started(tmp_path / "saved", contexts[tp.rank], tp=tp, load=LoadConfig(load_format="sharded_state"))
        with pytest.raises(InvalidRequest, match="in no checkpoint"):
            worker.occupation.release(ALL, tick)
        return says(worker)

    counts = on_two(folders / "old", "two ranks", save)
    assert min(counts) > 1 and len(list((tmp_path / "saved").glob("*.safetensors"))) == sum(counts)
    contexts = {each.tp.rank: each for each in rank_contexts(2, 1, device="cpu")}
    assert run_on_ranks(2, again) == [says(started(folders / "old"))] * 2


def test_what_a_sharded_state_cannot_hold_is_not_saved(folders: Path, tmp_path: Path) -> None:
    """Stages; scales of a cache; and on no rank what one rank cannot write."""
    place = shard_place(tmp_path / "saved", None, None)

    def refused(worker: Executor, number: int) -> None:
        with pytest.raises(InvalidRequest, match=r"^pp_size: "):
            worker.weights.save_sharded(place, tick)

    on_two(folders / "old", "two stages", refused)
    (tmp_path / "saved" / "model-rank-1-part-0.safetensors").mkdir()

    def lost(worker: Executor, number: int) -> None:
        expected, message = (InvalidRequest, "cannot be written") if number else (PeerRefused, "Another rank")
        with pytest.raises(expected, match=message):
            worker.weights.save_sharded(place, tick)

    on_two(folders / "old", "two ranks", lost)
    scaled = Path(shutil.copytree(folders / "old", tmp_path / "scaled"))
    weights = load_file(scaled / "model.safetensors") | {"model.layers.0.self_attn.k_scale": torch.ones(1)}
    save_file(weights, scaled / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(InvalidRequest, match="scales for an eight-bit cache"):
        started(scaled).weights.save_sharded(place, tick)


@pytest.mark.parametrize("split", SPLITS)
def test_memory_is_given_back_by_all_ranks_or_by_none(split: str, folders: Path) -> None:
    """Each rank reads its part of the weights again."""

    def work(worker: Executor, number: int) -> list[list[list[int]]]:
        occupation, weights = worker.occupation, worker.weights
        assert isinstance(weights, LiveWeights)
        if number:
            kept, weights._origin = weights._origin, NOWHERE
        with pytest.raises(InvalidRequest, match="in no checkpoint" if number else "Another rank"):
            occupation.release(ALL, tick)
        assert not occupation.released and not weights.released
        found = [says(worker)]
        if number:
            weights._origin = kept
        occupation.release(ALL, tick)
        assert weights.released
        occupation.resume(ALL, tick)
        assert not occupation.released
        return [*found, says(worker)]

    expected = says(started(folders / "old"))
    assert on_two(folders / "old", split, work) == [[expected] * 2] * 2


def test_a_rank_that_has_no_memory_for_it_leaves_all_without(folders: Path) -> None:
    """The next try takes what is missing."""

    def work(worker: Executor, number: int) -> list[list[int]]:
        occupation = worker.occupation
        occupation.release(ALL, tick)
        pool = occupation._pools[0]
        taken, lack = pool.resume, [number == 1]

        def resume() -> None:
            if lack and lack.pop():
                raise torch.OutOfMemoryError("none left")
            taken()

        pool.resume = resume  # type: ignore[method-assign]
        with pytest.raises(InvalidRequest, match="kv_cache: there is no memory" if number else "Another rank"):
            occupation.resume(ALL, tick)
        assert occupation.released == {"kv_cache", "cuda_graph"}
        occupation.resume(ALL, tick)
        return says(worker)

    assert on_two(folders / "old", "two ranks", work) == [says(started(folders / "old"))] * 2
