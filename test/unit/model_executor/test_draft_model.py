"""A model that proposes drafts: no token changes by it, whatever is in its pages, and its memory is counted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fixtures.executors import start_executor
from fixtures.speculating import CHOICES, CPU, MODEL, NEW, PROMPTS, WIDTH, Speculating, decode
from fixtures.thread_group import run_on_ranks
from fixtures.tiny_checkpoints import make_checkpoint
from fixtures.worker_driver import Driver
from mysglang.srt.configs.model_config import ModelConfig
from mysglang.srt.distributed.groups import SOLO, Group
from mysglang.srt.errors import ConfigError
from mysglang.srt.managers.model_files import load_draft_config
from mysglang.srt.mem_cache.kv_pool.base import KvPool
from mysglang.srt.model_executor.executor import Executor
from mysglang.srt.model_executor.kv_setup import ModelStores, kv_cost

ALL = frozenset(("weights", "kv_cache", "cuda_graph"))


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], ModelConfig]:
    torch.set_num_threads(1)
    made: dict[str, Path] = {}

    def config(family: str) -> ModelConfig:
        if family not in made:
            made[family] = tmp_path_factory.mktemp(family)
            make_checkpoint(family, made[family])
        return ModelConfig.from_path(str(made[family]), dtype="float32")

    return config


@pytest.mark.promise(25)
@pytest.mark.parametrize("late", [True, False], ids=["late", "exact"])
@pytest.mark.parametrize(
    ("family", "draft", "page_size", "chunk", "ranks"),
    [
        ("qwen3", "qwen3", 1, 1000, 1),
        ("qwen3", "llama", 16, 16, 2),
        ("gemma3n", "gemma3n", 4, 16, 2),
        ("mistral", "qwen3", 1, 7, 1),
    ],
)
def test_a_draft_model(models, family: str, draft: str, page_size: int, chunk: int, ranks: int, late: bool) -> None:
    """Whatever it proposes, the tokens are those of plain decoding. The served model as its own draft model is always
    right, also about tokens that are drawn; another random model almost never is.
    """
    config = replace(CPU, page_size=page_size)
    plain = Driver.start(start_executor(config, models(family)), CHOICES).generate(PROMPTS, NEW)
    truth = [[*prompt, *answer] for prompt, answer in zip(PROMPTS, plain, strict=True)]
    served, drafts = models(family), models(draft)

    def check(tp: Group) -> None:
        worker = start_executor(replace(config, draft_tokens=WIDTH - 1), served, draft=drafts, tp=tp)
        with torch.inference_mode():
            rows = Speculating(worker, CHOICES, truth, MODEL)
            rows.prefill(PROMPTS, chunk)
            decode(rows, late=late)
        for known, expected in zip(rows.known, truth, strict=True):
            assert known[: len(expected)] == expected
        assert rows.complete[1] == NEW - 1 + late
        fewest = -(-(NEW - 1) // WIDTH) + late
        if draft == family:
            assert rows.complete[0] == rows.complete[2] == fewest
        else:
            assert rows.complete[0] > 3 * fewest and rows.complete[2] > 3 * fewest

    if ranks == 1:
        check(SOLO)
    else:
        run_on_ranks(ranks, check)


def draft_pool(worker: Executor) -> KvPool:
    return worker.occupation._pools[1]


@pytest.mark.promise(25)
@pytest.mark.parametrize("filth", [7.0, -300.0, float("nan")])
def test_whatever_stands_in_the_pages_of_the_draft_model(models, filth: float) -> None:
    """Its pages are advisory: the tokens stay the same, only drafts are wrong."""
    plain = Driver.start(start_executor(CPU, models("qwen3")), CHOICES).generate(PROMPTS, NEW)
    truth = [[*prompt, *answer] for prompt, answer in zip(PROMPTS, plain, strict=True)]
    worker = start_executor(replace(CPU, draft_tokens=WIDTH - 1), models("qwen3"), draft=models("qwen3"))
    rows = Speculating(worker, CHOICES, truth, MODEL)
    rows.prefill(PROMPTS)
    pool = draft_pool(worker)
    for layer in pool.layer_ids:
        for tensor in pool.slots(layer):
            tensor[pool.page_size :].fill_(filth)
    decode(rows, late=True)
    for known, expected in zip(rows.known, truth, strict=True):
        assert known[: len(expected)] == expected
    assert rows.complete[0] > -(-(NEW - 1) // WIDTH) + 1


def test_its_pages_have_the_numbers_of_the_served_models_and_are_counted(models) -> None:
    served, draft = models("qwen3"), models("llama")
    alone = start_executor(CPU, served)
    worker = start_executor(replace(CPU, draft_tokens=3), served, draft=draft)
    pools = worker.occupation._pools
    assert [pool.num_pages for pool in pools] == [CPU.max_total_tokens] * 2
    assert worker.capacity.spaces == alone.capacity.spaces
    for name in ("weights", "kvcache"):
        assert worker.capacity.memory_usage[name] > alone.capacity.memory_usage[name]
    assert worker.capacity.memory_usage["kvcache"] == sum(pool.nbytes for pool in pools) / (1 << 30)
    stores = [
        ModelStores(tuple(each.attention_specs()), torch.float32)
        for each in (worker.steps._served.model, worker.occupation._weights[1]._update._model)
    ]
    both, one = (kv_cost(CPU, those, 256).nbytes(600) for those in (stores, stores[:1]))
    assert both - one == pools[1].nbytes * 600 // 601


def test_its_memory_is_given_back_and_taken_again(models) -> None:
    """With that of the served model. Its weights are read again, and its drafts are right as before."""
    plain = Driver.start(start_executor(CPU, models("qwen3")), CHOICES).generate(PROMPTS, NEW)
    truth = [[*prompt, *answer] for prompt, answer in zip(PROMPTS, plain, strict=True)]
    worker = start_executor(replace(CPU, draft_tokens=WIDTH - 1), models("qwen3"), draft=models("qwen3"))
    worker.occupation.release(ALL, lambda: None)
    assert all(weights.released for weights in worker.occupation._weights)
    assert all(tensor.untyped_storage().nbytes() == 0 for tensor in draft_pool(worker).slots(0))
    worker.occupation.resume(ALL, lambda: None)
    rows = Speculating(worker, CHOICES, truth, MODEL)
    rows.prefill(PROMPTS)
    decode(rows, late=False)
    assert rows.complete[0] == -(-(NEW - 1) // WIDTH)


@pytest.mark.promise(25)
def test_new_weights_are_the_served_models_alone(models, tmp_path: Path) -> None:
    """The draft model keeps its own: the tokens are those of the new weights, and drafts are rarely right."""
    make_checkpoint("qwen3", tmp_path, seed=1)
    config = ModelConfig.from_path(str(tmp_path), dtype="float32")
    plain = Driver.start(start_executor(CPU, config), CHOICES).generate(PROMPTS, NEW)
    truth = [[*prompt, *answer] for prompt, answer in zip(PROMPTS, plain, strict=True)]
    worker = start_executor(replace(CPU, draft_tokens=WIDTH - 1), models("qwen3"), draft=models("qwen3"))
    worker.weights.update_from_files(str(tmp_path), whole=True, pulse=lambda: None)
    rows = Speculating(worker, CHOICES, truth, MODEL)
    rows.prefill(PROMPTS)
    decode(rows, late=True)
    for known, expected in zip(rows.known, truth, strict=True):
        assert known[: len(expected)] == expected
    assert rows.complete[0] > 3 * -(-(NEW - 1) // WIDTH)


def test_who_cannot_propose_drafts(models, tmp_path: Path) -> None:
    served = models("qwen3")
    for name, says, sizes in (
        ("words", "its vocabulary has 250 tokens and that of the served model 251", {"vocab_size": 250}),
        ("short", "it takes 128 tokens, and requests may have 256", {"max_position_embeddings": 128}),
    ):
        make_checkpoint("qwen2", tmp_path / name, **sizes)
        with pytest.raises(ConfigError, match=says):
            load_draft_config(str(tmp_path / name), served)
    # The flag of the draft is named, and not that of speculation: the served model has no states.
    make_checkpoint("qwen3_next", tmp_path / "states")
    with pytest.raises(
        ConfigError, match=r"draft-model-path .*/states: layers of the draft model \(Qwen3NextFor.* keep a"
    ):
        load_draft_config(str(tmp_path / "states"), served)
    make_checkpoint("qwen2", tmp_path / "long", max_position_embeddings=1024)
    draft = load_draft_config(str(tmp_path / "long"), served)
    assert (draft.dtype, draft.context_len) == ("float32", 256)
    with pytest.raises(
        ConfigError, match=r"draft-model-path .*/long: architecture LlamaForCausalLMEagle is not supported"
    ):
        config = tmp_path / "long" / "config.json"
        config.write_text(config.read_text().replace("Qwen2ForCausalLM", "LlamaForCausalLMEagle"))
        load_draft_config(str(tmp_path / "long"), served)
