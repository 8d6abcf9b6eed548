"""Vectors and scores of every kind of model equal transformers', whatever is beside a prompt in the step."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fixtures.executors import start_executor
from fixtures.forward_batches import PageRows, Row
from fixtures.pooling_checkpoints import (
    Saved,
    describe_modules,
    save_decoder,
    save_dense,
    save_encoder,
    save_internlm2_reward_model,
    save_reward_model,
    set_config,
)
from fixtures.tiny_checkpoints import SIZES, make_checkpoint
from fixtures.vectors import DECODERS, ENCODERS, PROMPTS, run, step
from mysglang.srt.configs.checkpoint_sizes import check_checkpoint
from mysglang.srt.configs.load_config import LoadConfig
from mysglang.srt.configs.model_config import ModelConfig
from mysglang.srt.errors import ConfigError
from mysglang.srt.forward.worker_batch import Floats
from mysglang.srt.model_executor.executor import Executor
from mysglang.srt.model_executor.runner_config import RunnerConfig
from mysglang.srt.utils.checkpoint_files import stored_tensors

# What a step must say of windows' pages is the scheduler's affair: test/server/test_sliding_windows.py.
CPU = RunnerConfig(device="cpu", max_total_tokens=600, max_running_requests=8, disable_hybrid_swa_memory=True)
SECOND_TEXTS = [12, 3, 5, 1, 33]
"""Index of the second text of each pair; at the end if there is none."""


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> None:
    torch.set_num_threads(1)


def config_of(folder: Path, **options: Any) -> ModelConfig:
    return ModelConfig.from_path(str(folder), dtype="float32", **options)


def encoder(folder: Path, **options: Any) -> Executor:
    return start_executor(CPU, config_of(folder, **options), LoadConfig())


def decoder(folder: Path, **options: Any) -> Executor:
    return start_executor(CPU, config_of(folder, **options), LoadConfig())


def close(found: Floats, expected: Sequence[Tensor]) -> None:
    torch.testing.assert_close(torch.from_numpy(found), torch.stack(list(expected)), rtol=1e-4, atol=1e-4)


POOLS: dict[str, Callable[[Tensor], Tensor]] = {
    "pooling_mode_cls_token": lambda states: states[0],
    "pooling_mode_lasttoken": lambda states: states[-1],
    "pooling_mode_mean_tokens": lambda states: states.mean(0),
    "pooling_mode_max_tokens": lambda states: states.max(0).values,
    "pooling_mode_mean_sqrt_len_tokens": lambda states: states.sum(0) / len(states) ** 0.5,
    "pooling_mode_weightedmean_tokens": lambda states: (
        (torch.arange(1.0, len(states) + 1) @ states) / (len(states) * (len(states) + 1) / 2)
    ),
}


REWARD_MODELS: dict[str, Callable[[Path], Saved]] = {
    "qwen2": lambda folder: save_reward_model(folder, "qwen2"),
    "qwen3": lambda folder: save_reward_model(folder, "qwen3"),
    "internlm2": save_internlm2_reward_model,
}


class TestEncoders:
    @pytest.mark.parametrize("family", ENCODERS)
    @pytest.mark.parametrize("mode", POOLS)
    def test_vectors(self, family: str, mode: str, tmp_path: Path) -> None:
        saved = save_encoder(tmp_path, family)
        describe_modules(tmp_path, {key: key == mode for key in POOLS})
        close(run(encoder(tmp_path), PROMPTS), [POOLS[mode](saved.reference(ids, None)) for ids in PROMPTS])

    def test_without_modules_they_are_the_normed_mean(self, tmp_path: Path) -> None:
        saved = save_encoder(tmp_path, "bert")
        expected = [F.normalize(saved.reference(ids, None).mean(0), dim=-1) for ids in PROMPTS]
        close(run(encoder(tmp_path), PROMPTS), expected)

    def test_in_company_as_alone(self, tmp_path: Path) -> None:
        save_encoder(tmp_path, "bert")
        worker = encoder(tmp_path)
        alone = np.concatenate([run(worker, [ids]) for ids in PROMPTS])
        np.testing.assert_allclose(run(worker, PROMPTS), alone, rtol=0, atol=1e-5)

    @pytest.mark.parametrize("family", ENCODERS)
    @pytest.mark.parametrize("labels", [1, 3])
    def test_scores(self, family: str, labels: int, tmp_path: Path) -> None:
        saved = save_encoder(tmp_path, family, labels=labels)
        close(run(encoder(tmp_path), PROMPTS), [saved.reference(ids, None) for ids in PROMPTS])

    def test_scores_of_pairs(self, tmp_path: Path) -> None:
        saved = save_encoder(tmp_path, "bert", labels=1)
        types = [[int(i >= second) for i in range(len(ids))] for ids, second in zip(PROMPTS, SECOND_TEXTS, strict=True)]
        expected = [saved.reference(ids, of) for ids, of in zip(PROMPTS, types, strict=True)]
        close(run(encoder(tmp_path), PROMPTS, SECOND_TEXTS), expected)

    def test_the_longest_prompt_has_all_positions(self, tmp_path: Path) -> None:
        saved = save_encoder(tmp_path, "xlm-roberta", labels=1)
        worker = encoder(tmp_path)
        assert worker.capacity.max_context == 96 - 2
        ids = np.random.default_rng(0).integers(3, 150, 94).tolist()
        close(run(worker, [ids]), [saved.reference(ids, None)])

    @pytest.mark.parametrize(
        ("change", "words"),
        [
            ({"position_embedding_type": "relative_key"}, "position_embedding_type 'relative_key' is not supported"),
            ({"hidden_act": "mish"}, "hidden_act 'mish' is not supported"),
            ({"is_decoder": True}, "is_decoder"),
        ],
    )
    def test_refuses_what_it_would_compute_wrongly(self, change: dict[str, Any], words: str, tmp_path: Path) -> None:
        save_encoder(tmp_path, "bert")
        set_config(tmp_path, **change)
        with pytest.raises(ConfigError, match=words):
            encoder(tmp_path)


class TestDecoders:
    @pytest.mark.parametrize("family", DECODERS)
    def test_vectors_are_the_normed_last_state(self, family: str, tmp_path: Path) -> None:
        saved = save_decoder(tmp_path, family, **DECODERS[family])
        expected = [F.normalize(saved.reference(ids, None)[-1], dim=-1) for ids in PROMPTS]
        close(run(decoder(tmp_path), PROMPTS), expected)

    @pytest.mark.parametrize("family", ["gpt2", "gptj", "gpt_neo", "falcon"])
    def test_a_decoder_that_was_saved_alone(self, family: str, tmp_path: Path) -> None:
        """Its tensors lack the name of the module that is around a decoder with a head."""
        saved = save_decoder(tmp_path, family)
        check_checkpoint(config_of(tmp_path), stored_tensors(tmp_path))
        close(run(decoder(tmp_path), PROMPTS), [F.normalize(saved.reference(ids, None)[-1], dim=-1) for ids in PROMPTS])

    @pytest.mark.parametrize("mode", POOLS)
    def test_by_modules(self, mode: str, tmp_path: Path) -> None:
        saved = save_decoder(tmp_path, "qwen3")
        describe_modules(tmp_path, {key: key == mode for key in POOLS})
        close(run(decoder(tmp_path), PROMPTS), [POOLS[mode](saved.reference(ids, None)) for ids in PROMPTS])

    def test_in_chunks(self, tmp_path: Path) -> None:
        """Only the last chunk of a prompt has a vector."""
        save_decoder(tmp_path, "llama")
        worker = decoder(tmp_path)
        whole = run(worker, PROMPTS[:2])
        pages = PageRows(page_size=1, num_pages=400)
        assert step(worker, [Row(0, PROMPTS[0][:25], yields=False)], pages).vectors is None
        mixed = step(worker, [Row(0, PROMPTS[0][25:], 25), Row(1, PROMPTS[1][:2], yields=False)], pages)
        last = step(worker, [Row(1, PROMPTS[1][2:], 2)], pages)
        assert mixed.counts.tolist() == [1, 0]
        assert mixed.vectors is not None and last.vectors is not None
        np.testing.assert_allclose(np.concatenate([mixed.vectors, last.vectors]), whole, rtol=0, atol=1e-5)

    @pytest.mark.parametrize("tied", [False, True])
    def test_a_model_that_could_generate(self, tied: bool, tmp_path: Path) -> None:
        theirs = make_checkpoint("qwen3", tmp_path, tie_word_embeddings=tied)
        worker = decoder(tmp_path, is_embedding=True)
        with torch.no_grad():
            states = [theirs.model(torch.tensor([ids])).last_hidden_state[0, -1] for ids in PROMPTS]
        close(run(worker, PROMPTS), [F.normalize(state, dim=-1) for state in states])

    @pytest.mark.parametrize("family", DECODERS)
    @pytest.mark.parametrize("labels", [1, 3])
    def test_scores(self, family: str, labels: int, tmp_path: Path) -> None:
        saved = save_decoder(tmp_path, family, labels=labels, **DECODERS[family])
        close(run(decoder(tmp_path), PROMPTS), [saved.reference(ids, None) for ids in PROMPTS])

    @pytest.mark.parametrize("family", ["qwen2", "qwen3", "internlm2"])
    def test_rewards(self, family: str, tmp_path: Path) -> None:
        saved: Saved = REWARD_MODELS[family](tmp_path)
        close(run(decoder(tmp_path), PROMPTS), [saved.reference(ids, None) for ids in PROMPTS])


MEAN = {"pooling_mode_mean_tokens": True}
SIZE = SIZES["hidden_size"]


class TestBidirectional:
    """EmbeddingGemma: Gemma 3 whose tokens see both directions, in layers with a window 11 tokens on each side."""

    def test_vectors(self, tmp_path: Path) -> None:
        """Prompts below and above the window, several in one step and each alone, through both Dense modules."""
        saved = save_decoder(tmp_path, "gemma3", use_bidirectional_attention=True)
        head = save_dense(
            tmp_path,
            (nn.Linear(SIZE, 80, bias=False), nn.Identity()),
            (nn.Linear(80, 40), nn.Tanh()),
        )
        describe_modules(tmp_path, MEAN, "Dense", "Dense", "Normalize")
        worker = decoder(tmp_path)
        assert worker.attention_backend == "sdpa" and not worker.capacity.memory_usage["kvcache"]
        expected = [F.normalize(head(saved.reference(ids, None).mean(0)), dim=-1) for ids in PROMPTS]
        close(run(worker, PROMPTS), expected)
        close(np.concatenate([run(worker, [ids]) for ids in PROMPTS]), expected)

    @pytest.mark.parametrize("window", [2, 7, 8])
    def test_windows_of_any_size(self, window: int, tmp_path: Path) -> None:
        """transformers counts half of the window on each side, and the token itself."""
        saved = save_decoder(tmp_path, "gemma3", use_bidirectional_attention=True, sliding_window=window)
        describe_modules(tmp_path, {"pooling_mode_cls_token": True})
        close(run(decoder(tmp_path), PROMPTS), [saved.reference(ids, None)[0] for ids in PROMPTS])

    def test_the_last_token_alone_needs_whole_prompts_too(self, tmp_path: Path) -> None:
        saved = save_decoder(tmp_path, "gemma3", use_bidirectional_attention=True)
        describe_modules(tmp_path, {"pooling_mode_lasttoken": True})
        assert config_of(tmp_path).needs_whole_prompts
        close(run(decoder(tmp_path), PROMPTS), [saved.reference(ids, None)[-1] for ids in PROMPTS])

    @pytest.mark.parametrize(
        ("option", "words"),
        [
            ({"attention_backend": "torch_native"}, "--attention-backend torch_native: it does not attend to later"),
            ({"numerics": "invariant"}, "--enable-deterministic-inference: attention in both directions"),
            ({"kv_cache_dtype": "fp8_e5m2"}, "--kv-cache-dtype"),
        ],
    )
    def test_options_without_use_are_refused(self, option: dict[str, Any], words: str, tmp_path: Path) -> None:
        save_decoder(tmp_path, "gemma3", use_bidirectional_attention=True)
        with pytest.raises(ConfigError, match=words):
            start_executor(replace(CPU, **option), config_of(tmp_path), LoadConfig())


@pytest.mark.parametrize(
    "activation", [nn.Identity(), nn.Tanh(), nn.GELU(), nn.ReLU(), nn.SiLU(), nn.Sigmoid()], ids=lambda each: str(each)
)
def test_dense_modules_of_an_encoder(activation: nn.Module, tmp_path: Path) -> None:
    saved = save_encoder(tmp_path, "bert")
    head = save_dense(tmp_path, (nn.Linear(SIZE, 24), activation))
    describe_modules(tmp_path, MEAN, "Dense")
    close(run(encoder(tmp_path), PROMPTS), [head(saved.reference(ids, None).mean(0)) for ids in PROMPTS])


@pytest.mark.parametrize("labels", [None, 3])
def test_in_bfloat16(labels: int | None, tmp_path: Path) -> None:
    """The checkpoint's float32 becomes bfloat16 by default; vectors are float32 all the same."""
    save_encoder(tmp_path / "encoder", "bert", labels=labels)
    save_decoder(tmp_path / "decoder", "qwen3", labels=labels)
    for folder in (tmp_path / "encoder", tmp_path / "decoder"):
        exact = run(start_executor(CPU, config_of(folder)), PROMPTS)
        config = ModelConfig.from_path(str(folder))
        found = run(start_executor(CPU, config), PROMPTS)
        assert config.dtype == "bfloat16" and found.dtype == np.float32
        assert np.linalg.norm(found - exact) < 0.05 * np.linalg.norm(exact)
