"""Layers that attend over the keys of another one: they have no memory, and prompts do not go through them."""

from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np
import pytest
from torch import Tensor, nn

from fixtures.executors import pool_of, start_executor
from fixtures.tiny_checkpoints import SIZES, VOCAB_SIZE, make_checkpoint
from fixtures.worker_driver import GREEDY, Driver
from mysglang.srt.configs.floors import ModelSizes
from mysglang.srt.configs.model_config import ModelConfig
from mysglang.srt.model_executor.executor import Executor
from mysglang.srt.model_executor.runner_config import RunnerConfig
from mysglang.srt.models.causal_lm import CausalLM

PAGE = 4
TOKENS = 400
CPU = RunnerConfig(device="cpu", max_total_tokens=TOKENS, max_running_requests=4, page_size=PAGE)
ONE_LAYER = 2 * SIZES["num_key_value_heads"] * 32 * 4
"""Bytes of a token's keys and values in a layer, in float32."""


@pytest.fixture(scope="module")
def executor(tmp_path_factory: pytest.TempPathFactory) -> Executor:
    """Five layers, of which the last two attend over keys of the second and the third."""
    folder = tmp_path_factory.mktemp("gemma3n")
    make_checkpoint("gemma3n", folder)
    return start_executor(CPU, ModelConfig.from_path(str(folder), dtype="float32"))


def test_only_layers_that_store_have_memory(executor: Executor) -> None:
    pool = pool_of(executor)
    assert sorted(pool.layer_ids) == [0, 1, 2]
    # The null page beside those that were asked for, in each of two page spaces: all tokens, and 80 % of them.
    full, window = (TOKENS + PAGE) * ONE_LAYER, (round(0.8 * TOKENS) + PAGE) * 2 * ONE_LAYER
    assert pool.nbytes == full + window


def test_what_layers_keep_and_what_they_read(tmp_path: Path) -> None:
    """A decode step reads the keys of every layer, and some of them twice."""
    make_checkpoint("gemma4_e", tmp_path, global_head_dim=32)
    sizes = ModelSizes.of(ModelConfig.from_path(str(tmp_path), dtype="float32"))
    assert sizes.kv_bytes == {20: 2 * ONE_LAYER, None: ONE_LAYER}
    assert sizes.read_bytes == {20: 3 * ONE_LAYER, None: 2 * ONE_LAYER}
    assert sizes.decode_step(1, 100).kv_bytes == (20 * 3 + 100 * 2) * ONE_LAYER


def test_prompts_end_at_the_last_layer_that_stores(tmp_path: Path) -> None:
    """Behind it a step has the last token of each row alone."""
    make_checkpoint("gemma3n", tmp_path)
    # What a step must say of windows' pages is the scheduler's affair.
    one_space = replace(CPU, disable_hybrid_swa_memory=True)
    executor = start_executor(one_space, ModelConfig.from_path(str(tmp_path), dtype="float32"))
    seen: dict[nn.Module, list[int]] = {}

    def note(layer: nn.Module, given: tuple[Tensor, ...]) -> None:
        seen.setdefault(layer, []).append(len(given[0]))

    layers = cast(CausalLM, executor.steps._served.model).decoder_layers()
    for layer in layers:
        layer.register_forward_pre_hook(note)
    prompts = [np.random.default_rng(i).integers(3, VOCAB_SIZE, n).tolist() for i, n in enumerate((40, 3))]
    Driver.start(executor, [GREEDY] * 2).prefill(prompts)
    assert [seen[layer] for layer in layers] == [[43], [43], [43], [2], [2]]
