"""Drafts, pages of eight-bit numbers, latent rows, states and the newer families on CUDA: what a CPU computes."""

import importlib.util
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from fixtures.as_on_cpu import CUDA, check_bfloat16, check_tokens
from fixtures.attention_cases import PLAIN, Step, check_story, every_story
from fixtures.executors import programs_of, start_executor
from fixtures.invariant_attention import SCALES
from fixtures.speculating import CHOICES, MODEL, NEW, PROMPTS, WIDTH, Speculating, decode
from fixtures.tiny_checkpoints import FAMILIES, VOCAB_SIZE, make_checkpoint
from fixtures.worker_driver import GREEDY, Driver
from mysglang.srt.args.resolve import EMBEDDED_MODEL
from mysglang.srt.configs.model_config import ModelConfig
from mysglang.srt.kernels.fp8 import LARGEST
from mysglang.srt.layers.attention import sgl_kernel_backend
from mysglang.srt.layers.attention.triton_backend import TritonBackend

CHOOSE_KEYS = {"deepseek_v32", "glm_moe_dsa"}
"""Families whose steps are not captured: the host gathers the keys that their layers choose from."""
ROUGH = {"deepseek_v32": 0.4, "phimoe": 0.3}
"""Families that rounding lets choose other keys, or other experts, for many tokens: on a CPU 0.18 and 0.13."""
NEAR = 0.25
"""How far a logit of bfloat16 may be from that of float32 in the embedded model."""

pytestmark = pytest.mark.timeout(400)  # FlashInfer builds what was never built before

MANY = [np.random.default_rng(i).integers(3, VOCAB_SIZE, n).tolist() for i, n in enumerate((40, 3, 17, 1, 25))]


@pytest.mark.parametrize("family", FAMILIES)
def test_families_in_float32_give_the_tokens_of_the_cpu(family: str, tmp_path: Path) -> None:
    """Eager and captured; prompts in chunks, too."""
    make_checkpoint(family, tmp_path)
    check_tokens(ModelConfig.from_path(str(tmp_path), dtype="float32"), MANY, captures=family not in CHOOSE_KEYS)


@pytest.mark.parametrize("family", FAMILIES)
def test_families_in_bfloat16(family: str, tmp_path: Path) -> None:
    """Products, norms and attention have kernels of their own in this dtype."""
    make_checkpoint(family, tmp_path)
    exact, rounded = (ModelConfig.from_path(str(tmp_path), dtype=dtype) for dtype in ("float32", "bfloat16"))
    check_bfloat16(exact, rounded, MANY, ROUGH.get(family, 0.1))


@pytest.mark.parametrize("late", [True, False], ids=["late", "exact"])
@pytest.mark.parametrize("eager", [True, False], ids=["eager", "captured"])
@pytest.mark.parametrize(("family", "draft"), [("qwen3", "qwen3"), ("qwen3", "llama"), ("gemma2", "gemma2")])
def test_a_draft_model(family: str, draft: str, eager: bool, late: bool, tmp_path: Path) -> None:
    configs = {}
    for name in {family, draft}:
        make_checkpoint(name, tmp_path / name)
        configs[name] = ModelConfig.from_path(str(tmp_path / name), dtype="float32")
    # A captured chain of drafts is for rows that take their most likely tokens.
    choices = CHOICES if eager else [GREEDY] * 3
    config = replace(CUDA, disable_cuda_graph=eager, cuda_graph_bs=(4,), page_size=4)
    plain = Driver.start(start_executor(config, configs[family]), choices).generate(PROMPTS, NEW)
    truth = [[*prompt, *answer] for prompt, answer in zip(PROMPTS, plain, strict=True)]
    worker = start_executor(replace(config, draft_tokens=WIDTH - 1), configs[family], draft=configs[draft])
    rows = Speculating(worker, choices, truth, MODEL)
    rows.prefill(PROMPTS, 16)
    decode(rows, late=late)
    assert eager or all(rows.on_graph)
    for known, expected in zip(rows.known, truth, strict=True):
        assert known[: len(expected)] == expected
    fewest = -(-(NEW - 1) // WIDTH) + late
    assert (rows.complete[0] == fewest) == (family == draft)


@pytest.mark.parametrize("liar", ["perfect", "adversarial", "erratic"])
@pytest.mark.parametrize("eager", [True, False], ids=["eager", "captured"])
def test_drafts_of_the_host(eager: bool, liar: str, tmp_path: Path) -> None:
    make_checkpoint("qwen3", tmp_path)
    model = ModelConfig.from_path(str(tmp_path), dtype="float32")
    config = replace(CUDA, disable_cuda_graph=eager, cuda_graph_bs=(4,))
    plain = Driver.start(start_executor(config, model), CHOICES).generate(PROMPTS, NEW)
    truth = [[*prompt, *answer] for prompt, answer in zip(PROMPTS, plain, strict=True)]
    rows = Speculating(start_executor(replace(config, draft_tokens=WIDTH - 1), model), CHOICES, truth, liar)
    rows.prefill(PROMPTS)
    decode(rows, late=True)
    assert eager or all(rows.on_graph)
    for known, expected in zip(rows.known, truth, strict=True):
        assert known[: len(expected)] == expected


@pytest.mark.parametrize("liar", ["perfect", "adversarial", MODEL])
def test_drafts_by_our_decode_kernel(liar: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In bfloat16 a token may be another one where two are nearly as likely, so each is compared with what float32
    computes from the text before it. Drafts that are right count, captured and eagerly.
    """
    # Captured steps of this few rows, too.
    monkeypatch.setattr(sgl_kernel_backend, "LEAST_QUERIES", 0)
    model = ModelConfig.from_path(str(EMBEDDED_MODEL), dtype="bfloat16")
    prompts, choices = [[*range(40, 400)], [3, 9], [*range(100, 140)]], [GREEDY] * 3
    precise = AutoModelForCausalLM.from_pretrained(str(EMBEDDED_MODEL), dtype=torch.float32).cuda()
    # FlashInfer would be compiled beside the test.
    ours = replace(CUDA, prefill_attention_backend="triton", page_size=16)
    plain = Driver.start(start_executor(ours, model), choices).generate(prompts, NEW)
    truth = [[*prompt, *answer] for prompt, answer in zip(prompts, plain, strict=True)]
    for eager in (False, True):
        config = replace(ours, disable_cuda_graph=eager, cuda_graph_bs=(4,), draft_tokens=WIDTH - 1)
        worker = start_executor(config, model, draft=model if liar == MODEL else None)
        assert "sgl_kernel (decode)" in programs_of(worker)["verification"].takes and worker.late_lengths
        rows = Speculating(worker, choices, truth, liar)
        rows.prefill(prompts)
        decode(rows, late=True)
        assert eager or all(rows.on_graph)
        for known, prompt in zip(rows.known, prompts, strict=True):
            ids = torch.tensor([known[: len(prompt) + NEW]], device="cuda")
            with torch.inference_mode():
                logits = precise(ids).logits[0, len(prompt) - 1 : -1]
            chosen = logits.gather(1, ids[0, len(prompt) :, None])[:, 0]
            assert float((logits.max(dim=1).values - chosen).max()) < NEAR
        if liar != "adversarial":
            # A draft that is not right costs a step, and a tie that falls the other way some.
            assert rows.complete[0] <= 2 * (-(-(NEW - 1) // WIDTH) + 1)


def pages_of(stored: torch.dtype) -> dict[str, Any]:
    return {"page_size": 16, "stored": stored, "scales": SCALES, "device": "cuda"}


@pytest.mark.parametrize("stored", LARGEST, ids=str)
@every_story
def test_triton_over_eight_bit_pages(story: list[Step], stored: torch.dtype) -> None:
    check_story(TritonBackend, story, PLAIN, tolerance=1e-4, **pages_of(stored))
    check_story(TritonBackend, story, PLAIN, dtype=torch.bfloat16, tolerance=2e-2, **pages_of(stored))


@pytest.mark.skipif(importlib.util.find_spec("flashinfer") is None, reason="no flashinfer")
@pytest.mark.parametrize("stored", LARGEST, ids=str)
@every_story
def test_flashinfer_over_eight_bit_pages(story: list[Step], stored: torch.dtype) -> None:
    from mysglang.srt.layers.attention.flashinfer_backend import FlashInferBackend

    check_story(FlashInferBackend, story, PLAIN, dtype=torch.bfloat16, tolerance=3e-2, **pages_of(stored))
