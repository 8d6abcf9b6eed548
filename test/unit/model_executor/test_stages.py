"""Schedulers over a model in several stages, as threads, give the answers of one that has it whole.

As many lanes as stages are in flight, prompts come in chunks, memory is short, rows are drawn or greedy, and a request
is taken back.
"""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fixtures.driven_scheduler import Answer
from fixtures.staged_schedulers import Asked, run_schedulers
from fixtures.thread_group import ThreadGroup, run_on_ranks
from fixtures.thread_stages import pipeline
from fixtures.tiny_checkpoints import FAMILIES, make_checkpoint
from fixtures.worker_driver import GREEDY, Driver
from mysglang.srt.configs.load_config import LoadConfig
from mysglang.srt.configs.model_config import ModelConfig
from mysglang.srt.configs.rank_split import check_stages
from mysglang.srt.distributed.groups import SOLO, Group
from mysglang.srt.distributed.pipeline import WHOLE_MODEL, Stage
from mysglang.srt.distributed.ranks import RANKS_OF_ONE, RankContext, rank_contexts
from mysglang.srt.errors import ConfigError
from mysglang.srt.forward.host_pages import NoHostPages, PageCopies
from mysglang.srt.forward.outputs import BatchResult, StepOutput
from mysglang.srt.forward.worker_batch import ModelWorkerBatch, TokenMask
from mysglang.srt.messages.requests import LogprobRequest
from mysglang.srt.model_executor.executor import Executor
from mysglang.srt.model_executor.model_launch import ModelLaunch
from mysglang.srt.model_executor.padding import padding_decode
from mysglang.srt.model_executor.runner_config import HostTierConfig, RunnerConfig
from mysglang.srt.model_executor.stages import CopiesInOrder, LateTokens, StepsOnDemand

VOCAB = 250
TAKEN_BACK = 4
HYBRID = {"num_hidden_layers": 4, "layer_types": ["linear_attention", "full_attention"] * 2}
WINDOWS = {
    "num_hidden_layers": 4,
    "layer_types": ["sliding_attention"] * 2 + ["full_attention"] * 2,
    "sliding_window": 8,
}


def requests() -> list[Asked]:
    draw = random.Random(3)
    shared = [draw.randrange(3, VOCAB) for _ in range(30)]
    asked = []
    for number in range(14):
        own = [draw.randrange(3, VOCAB) for _ in range(draw.randrange(1, 40))]
        params: dict[str, Any] = {"temperature": 0.0} if number % 3 else {"temperature": 0.9, "top_k": 20}
        if number % 4 == 1:
            params["frequency_penalty"] = 0.7
        if number % 5 == 0:
            params["logprobs"] = LogprobRequest(prompt_start=0)
        asked.append(
            Asked(
                (shared if number % 2 else []) + own,
                draw.randrange(6, 36),
                params,
                turn=number // 3,
                abort_at=4 if number == TAKEN_BACK else None,
            )
        )
    return asked


CONVOLVED = {"num_hidden_layers": 4, "layer_types": ["conv", "full_attention"] * 2}
SIZES: dict[str, dict[str, Any]] = {
    **dict.fromkeys(
        ("qwen3_next", "qwen3_5", "qwen3_5_moe", "granite_moe_hybrid", "minimax", "kimi_linear", "olmo_hybrid"), HYBRID
    ),
    **dict.fromkeys(("lfm2", "lfm2_moe"), CONVOLVED),
    "bamba": {"num_hidden_layers": 4, "attn_layer_indices": [1, 3]},
    "jamba": {"num_hidden_layers": 4, "attn_layer_period": 2},
    "nemotron_h": {"layers_block_type": ["mlp", "linear_attention", "full_attention"] * 2},
    "glm_moe_dsa": {"indexer_types": ["full"] * 3},
}
"""Sizes with which each of two stages has layers of every kind that stores something, and its own indexers."""


def told(answer: Answer) -> list[float]:
    """The log-probabilities of prompt and answer, the first token's aside."""
    joined = b"".join(each.input_vals + each.output_vals for each in answer.logprobs)
    return np.frombuffer(joined, dtype=np.float32).tolist()[1:]


@pytest.mark.parametrize(
    ("family", "sizes", "stages", "options"),
    [
        ("llama", {}, 2, {"draft_tokens": 3}),
        ("llama", {"tie_word_embeddings": True}, 3, {"host_tier": HostTierConfig(ratio=4.0)}),
        ("gemma2", WINDOWS, 2, {}),
        ("deepseek_v32", {}, 2, {}),
        ("qwen3_next", HYBRID, 2, {"mamba_track_interval": 8}),
    ],
    ids=[
        "drafts",
        "three stages and their host tiers",
        "windows in one stage",
        "latent rows, index keys, experts",
        "states",
    ],
)
def test_stages_give_the_answers_of_one(
    family: str, sizes: dict[str, Any], stages: int, options: dict[str, Any], tmp_path: Path
) -> None:
    make_checkpoint(family, tmp_path, **sizes)
    config = ModelConfig.from_path(str(tmp_path), dtype="float32")
    check_stages(config, stages)
    options = {"max_total_tokens": 140, **options}
    alone, apart = (run_schedulers(config, count, requests(), **options) for count in (1, stages))
    for number, (one, other) in enumerate(zip(alone.answers, apart.answers, strict=True)):
        both = min(len(one.ids), len(other.ids)) if number == TAKEN_BACK else None
        assert one.ids[:both] == other.ids[:both]
        assert told(one) == pytest.approx(told(other), abs=1e-4)
    assert any(map(told, apart.answers))
    assert apart.retractions > 0
    assert len(apart.most_in_lanes) == stages and min(apart.most_in_lanes) >= 1, "a stage stood idle"
    assert apart.weights < alone.weights
    assert (apart.loaded > 0) == ("host_tier" in options)


def tokens_of(config: ModelConfig, tp: Group, stage: Stage, ranks: RankContext) -> list[list[int]]:
    """The greedy tokens of two prompts, the long one in chunks, then steps that are launched before the tokens of those
    before them are known.
    """
    runner = RunnerConfig(
        ranks=ranks, device="cpu", page_size=4, max_running_requests=4, disable_hybrid_swa_memory=True
    )
    launches = [ModelLaunch(config, LoadConfig())]
    worker = Executor(runner, launches, join=lambda _: tp, join_stages=lambda _: stage)
    with torch.inference_mode():
        return Driver.start(worker, [GREEDY] * 2).generate([list(range(3, 40)), [7, 8, 9]], 8, chunk=16)


REFUSED = {"gemma3n", "gemma4_e", "zamba2"}
"""Families that no number of stages can serve: layers need what only the first stage has."""


@pytest.mark.parametrize("family", sorted({*FAMILIES} - REFUSED))
def test_two_stages_of_every_family(family: str, tmp_path: Path) -> None:
    make_checkpoint(family, tmp_path, **SIZES.get(family, {}))
    config = ModelConfig.from_path(str(tmp_path), dtype="float32")
    check_stages(config, 2)
    alone = tokens_of(config, SOLO, WHOLE_MODEL, RANKS_OF_ONE)
    contexts, stages = rank_contexts(1, 2, device="cpu"), pipeline(2)
    run = run_on_ranks(2, lambda world: tokens_of(config, SOLO, stages[world.rank], contexts[world.rank]))
    assert run == [alone] * 2


def test_two_stages_of_two_ranks_each(tmp_path: Path) -> None:
    make_checkpoint("llama", tmp_path)
    config = ModelConfig.from_path(str(tmp_path), dtype="float32")
    alone = tokens_of(config, SOLO, WHOLE_MODEL, RANKS_OF_ONE)
    contexts = rank_contexts(2, 2, device="cpu")
    groups, pipelines = [ThreadGroup.together(2) for _ in range(2)], [pipeline(2) for _ in range(2)]

    def one(world: ThreadGroup) -> list[list[int]]:
        ranks = contexts[world.rank]
        tp, pp = ranks.tp.rank, ranks.pp.rank
        return tokens_of(config, groups[pp][tp], pipelines[tp][pp], ranks)

    assert run_on_ranks(4, one) == [alone] * 4


def step(*slots: int) -> ModelWorkerBatch:
    """A decode step of these slots, of which nothing is computed here."""
    return replace(padding_decode(len(slots), 0), slots=np.array(slots))


def test_a_stage_runs_other_lanes_before_it_hears_of_a_step() -> None:
    late, heard = LateTokens(), []

    def begun(name: str, *slots: int) -> BatchResult:
        def choose() -> BatchResult:
            heard.append(name)
            return BatchResult(lambda: StepOutput(np.array([len(name)]), np.array([1])))

        late.catch_up(np.array(slots))
        return late.begin(step(*slots), choose)

    a1, _ = begun("a1", 0, 1), begun("b1", 2, 3)
    assert heard == []
    a2 = begun("a2", 1)
    assert heard == ["a1"]
    begun("c1", 4)
    assert a1.complete().tokens == [2] and heard == ["a1"]
    a2.complete()
    assert heard == ["a1", "b1", "a2"], "tokens are heard in the order in which they are told"
    begun("d1", 4, 2)
    assert heard == ["a1", "b1", "a2", "c1"]


def test_the_last_stage_runs_a_step_when_its_result_is_wanted() -> None:
    ran: list[int] = []
    masks: list[TokenMask] = []

    def run(batch: ModelWorkerBatch) -> BatchResult:
        ran.append(int(batch.slots[0]))
        done = BatchResult(lambda: StepOutput(batch.slots, np.ones(1)))
        if not batch.waits_for_mask:
            return done

        def choose(mask: TokenMask) -> BatchResult:
            masks.append(mask)
            return done

        return BatchResult.waiting(choose)

    steps, bits = StepsOnDemand(run), np.array([[5]], dtype=np.int32)
    first, second = steps.launch(replace(step(7), waits_for_mask=True)), steps.launch(step(8))
    assert first.waits_for_mask and not second.waits_for_mask
    first.sample(TokenMask(np.zeros(1, dtype=np.int32), bits))
    bits[:] = 0  # the mask of another lane is made in the same memory
    assert ran == []
    assert second.complete().tokens == [8] and ran == [7, 8]
    assert masks[0].bits == [[5]]
    assert first.complete().tokens == [7] and ran == [7, 8]


class RecordedPages(NoHostPages):
    """Host pages that note their copies."""

    def __init__(self, events: list[object]) -> None:
        self._events = events

    def copy(self, copies: PageCopies) -> None:
        self._events.append(copies)


def test_copies_come_after_the_steps_that_were_launched_before_them() -> None:
    """They would write pages out before the step has filled them."""
    events: list[object] = []

    def run(batch: ModelWorkerBatch) -> BatchResult:
        events.append(int(batch.slots[0]))
        return BatchResult(lambda: StepOutput(batch.slots, np.ones(1)))

    steps = StepsOnDemand(run)
    pages = CopiesInOrder(RecordedPages(events), steps)
    copies = PageCopies()
    steps.launch(step(7))
    last = steps.launch(step(8))
    pages.copy(copies)
    steps.launch(step(9))
    assert last.complete().tokens == [8]
    assert events == [7, 8, copies]


def test_what_cannot_stand_in_stages_is_named(tmp_path: Path) -> None:
    types = ["linear_attention"] * 2 + ["full_attention"] * 2
    make_checkpoint("qwen3_next", tmp_path, num_hidden_layers=4, layer_types=types)
    config = ModelConfig.from_path(str(tmp_path), dtype="float32")
    parts = [config.plan.stage(stage, 3) for stage in range(3)]
    assert [len(part.layers) for part in parts] == [2, 1, 1]
    assert sum((part.layers for part in parts), ()) == config.plan.layers
    with pytest.raises(ConfigError, match="--pp-size 2: stage 0 would have layers 0 to 1, and none of them attends"):
        check_stages(config, 2)
    with pytest.raises(ConfigError, match="--pp-size 5: the model has 4 layers"):
        check_stages(config, 5)
