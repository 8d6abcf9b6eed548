"""On CUDA: models with transformers' code give the tokens of a CPU, and vectors and scores are transformers'."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fixtures.as_on_cpu import CHOSEN, CPU, CUDA, check_bfloat16, check_tokens
from fixtures.executors import start_executor
from fixtures.foreign_checkpoints import FOREIGN
from fixtures.pooling_checkpoints import Saved, describe_modules, save_decoder, save_dense, save_encoder
from fixtures.tiny_checkpoints import SIZES, save_random
from fixtures.vectors import DECODERS, ENCODERS, PROMPTS, run
from fixtures.worker_driver import Driver
from mysglang.srt.configs.model_config import ModelConfig
from mysglang.srt.model_executor.programs import COMPILED_DECODE

pytestmark = pytest.mark.timeout(400)


@pytest.mark.parametrize("family", FOREIGN)
def test_code_of_transformers(family: str, tmp_path: Path) -> None:
    """Eager and captured; prompts in chunks, too."""
    save_random(FOREIGN[family](), tmp_path)
    check_tokens(ModelConfig.from_path(str(tmp_path), dtype="float32", impl="transformers"), PROMPTS)


@pytest.mark.parametrize("family", FOREIGN)
def test_code_of_transformers_in_bfloat16(family: str, tmp_path: Path) -> None:
    save_random(FOREIGN[family](), tmp_path)
    exact, rounded = (
        ModelConfig.from_path(str(tmp_path), dtype=dtype, impl="transformers") for dtype in ("float32", "bfloat16")
    )
    check_bfloat16(exact, rounded, PROMPTS, 0.1)


# Positions of a table; rotary ones, windows and experts; two calls of attention in a layer.
@pytest.mark.parametrize("family", ["gpt2", "dots1", "diffllama"])
@pytest.mark.parametrize("eager", [True, False], ids=["eager", "captured"])
def test_compiled_layers(family: str, eager: bool, tmp_path: Path) -> None:
    """Steps of up to four rows have layers that torch.compile made."""
    save_random(FOREIGN[family](), tmp_path)
    config = ModelConfig.from_path(str(tmp_path), dtype="float32", impl="transformers")
    compiled = replace(CUDA, disable_cuda_graph=eager, torch_compile_max_bs=4, torch_compile_backend="inductor")
    worker = start_executor(compiled, config)
    said = worker.programs[COMPILED_DECODE]
    assert said.startswith("decode steps of up to 4 rows" if eager else "not used: captured decode steps"), said
    expected = start_executor(CPU, config)
    for rows in (1, 3, 5):
        mine, plain = (Driver.start(each, CHOSEN[:rows]).generate(PROMPTS[:rows], 12) for each in (worker, expected))
        assert mine == plain


def check(saved: Saved) -> None:
    """Compares vectors or scores with what transformers makes of each prompt."""
    worker = start_executor(CUDA, ModelConfig.from_path(str(saved.folder), dtype="float32"))
    found = torch.from_numpy(run(worker, PROMPTS))
    expected = torch.stack([saved.reference(prompt, None) for prompt in PROMPTS])
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("family", ENCODERS)
def test_scores_of_encoders(family: str, tmp_path: Path) -> None:
    check(save_encoder(tmp_path, family, labels=3))


@pytest.mark.parametrize("family", DECODERS)
def test_scores_of_decoders(family: str, tmp_path: Path) -> None:
    check(save_decoder(tmp_path, family, labels=3, **DECODERS[family]))


@pytest.mark.parametrize("both", [True, False], ids=["both directions", "causal"])
def test_vectors(both: bool, tmp_path: Path) -> None:
    """EmbeddingGemma with a Dense module, and the same weights as a decoder."""
    saved = save_decoder(tmp_path, "gemma3", use_bidirectional_attention=both)
    head = save_dense(tmp_path, (nn.Linear(SIZES["hidden_size"], 40), nn.Tanh()))
    describe_modules(tmp_path, {"pooling_mode_mean_tokens": True}, "Dense", "Normalize")

    def vector(ids: list[int], types: None) -> torch.Tensor:
        return F.normalize(head(saved.reference(ids, types).mean(0)), dim=-1)

    check(Saved(tmp_path, vector))
