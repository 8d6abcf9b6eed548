"""Steps whose lengths only the device knows, as on CUDA: the host reads nothing of the device, and attention, run by
Triton's interpreter, finds the lengths itself."""

import pytest

from fixtures.triton_on_cpu import run_interpreted

pytest.importorskip("triton")

PROGRAM = """
import tempfile
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from fixtures.executors import programs_of, start_executor
from fixtures.speculating import CHOICES, CPU, MODEL, PROMPTS, Speculating, decode
from fixtures.tiny_checkpoints import make_checkpoint
from fixtures.worker_driver import GREEDY, Driver
from mysglang.srt.configs.model_config import ModelConfig
from mysglang.srt.kernels.cuda import attention, late_rows as kernels
from mysglang.srt.kernels.late_rows import place_tokens, uniforms_at
from mysglang.srt.model_executor.programs import CAPTURED_VERIFICATION
from mysglang.srt.platforms.cpu import CpuPlatform

class Replays:
    # A graph that computes its step again, and leaves the results where the capture left its own.
    nbytes = 0
    def record(self, step):
        left = step()
        class Again:
            @torch.inference_mode()
            def replay(self):
                for old, new in zip(left, step(), strict=True):
                    if old is not None:
                        old.copy_(new)
        return Again(), left

attention.MAX_SPLITS = 2
new = 5
config = replace(CPU, page_size=4, disable_cuda_graph=True)
captured = replace(config, disable_cuda_graph=False, disable_prefill_cuda_graph=True, cuda_graph_bs=(4,))
folder = Path(tempfile.mkdtemp())
# Few heads: the interpreter runs the programs of each of them one after another.
make_checkpoint("qwen3", folder, num_attention_heads=2, num_key_value_heads=1)
model = ModelConfig.from_path(str(folder), dtype="float32")
prompts = [prompt[:7] for prompt in PROMPTS]
truths = []
for choices in ([GREEDY] * 3, CHOICES):
    plain = Driver.start(start_executor(config, model), choices).generate(prompts, new)
    truths.append([[*prompt, *answer] for prompt, answer in zip(prompts, plain, strict=True)])
CpuPlatform.attention_backends = ("triton",)
CpuPlatform.steps_are_done = False
CpuPlatform.recorder = lambda self: nullcontext(Replays())
CpuPlatform.has_graphs = True
CpuPlatform.warm_up_prompts, CpuPlatform.warm_up_rows = (1,), (1,)
for op, kernel in ((place_tokens, kernels.place_tokens), (uniforms_at, kernels.uniforms_at)):
    op._chosen["fastest", "cpu"] = kernel
for liar, choices in (("erratic", CHOICES), (MODEL, [GREEDY] * 3)):
    draft = model if liar == MODEL else None
    worker = start_executor(replace(captured, draft_tokens=2), model, draft=draft)
    assert worker.late_lengths and CAPTURED_VERIFICATION in programs_of(worker)
    truth = truths[choices is CHOICES]
    rows = Speculating(worker, choices, truth, liar, (3, 1, 3))
    rows.prefill(prompts)
    decode(rows, late=True)
    assert all(rows.on_graph), "every step was a replay"
    for known, expected in zip(rows.known, truth, strict=True):
        assert known[: len(expected)] == expected, (liar, known, expected)
    assert rows.complete[0] < new - 1, "drafts were accepted"
print("all agree")
"""


@pytest.mark.promise(25)
def test_the_tokens_of_plain_decoding() -> None:
    """With drafts of the host, where two rows draw their tokens, and of a model; all in captured steps with padding."""
    assert run_interpreted(PROGRAM).strip().endswith("all agree")
