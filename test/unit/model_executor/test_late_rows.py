"""Steps whose lengths only the device knows, as on CUDA: the host reads nothing of the device, and attention, run by
Triton's interpreter, finds the lengths itself."""

import pytest

from fixtures.triton_on_cpu import run_interpreted

pytest.importorskip("triton")

PROGRAM = """
import tempfile
from dataclasses import replace
from pathlib import Path
from fixtures.executors import start_executor
from fixtures.speculating import CHOICES, CPU, MODEL, PROMPTS, WIDTH, Speculating, decode
from fixtures.tiny_checkpoints import make_checkpoint
from fixtures.worker_driver import Driver
from mysglang.srt.configs.model_config import ModelConfig
from mysglang.srt.kernels.cuda import late_rows as kernels
from mysglang.srt.kernels.late_rows import place_tokens, uniforms_at
from mysglang.srt.platforms.cpu import CpuPlatform

new = 12
config = replace(CPU, page_size=4, disable_cuda_graph=True)
folder = Path(tempfile.mkdtemp())
make_checkpoint("qwen3", folder)
model = ModelConfig.from_path(str(folder), dtype="float32")
prompts = [prompt[:9] for prompt in PROMPTS]
plain = Driver.start(start_executor(config, model), CHOICES).generate(prompts, new)
truth = [[*prompt, *answer] for prompt, answer in zip(prompts, plain, strict=True)]
CpuPlatform.attention_backends = ("triton",)
CpuPlatform.steps_are_done = False
for op, kernel in ((place_tokens, kernels.place_tokens), (uniforms_at, kernels.uniforms_at)):
    op._chosen["fastest", "cpu"] = kernel
for liar in ("erratic", MODEL):
    draft = model if liar == MODEL else None
    worker = start_executor(replace(config, draft_tokens=WIDTH - 1), model, draft=draft)
    assert worker.late_lengths
    rows = Speculating(worker, CHOICES, truth, liar)
    rows.prefill(prompts, 5)
    decode(rows, late=True)
    for known, expected in zip(rows.known, truth, strict=True):
        assert known[: len(expected)] == expected, (liar, known, expected)
    assert rows.complete[0] < new - 1, "drafts were accepted"
print("all agree")
"""


@pytest.mark.promise(25)
def test_the_tokens_of_plain_decoding() -> None:
    """With drafts of the host and of a model; two rows draw their tokens."""
    assert run_interpreted(PROGRAM).strip().endswith("all agree")
