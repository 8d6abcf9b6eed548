"""The warm-up of a GPU, on a CPU: its steps run on every sort of model, captured and not, and behind it no step needs a
variant of a Triton kernel that was not needed before.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fixtures.executors import programs_of, start_executor
from fixtures.tiny_checkpoints import make_checkpoint
from fixtures.triton_compiled import compile_launches
from fixtures.worker_driver import GREEDY, Driver
from mysglang.srt.configs.load_config import LoadConfig
from mysglang.srt.configs.model_config import ModelConfig
from mysglang.srt.errors import ConfigError
from mysglang.srt.forward.worker_batch import ModelWorkerBatch
from mysglang.srt.model_executor.eager_program import EagerProgram
from mysglang.srt.model_executor.runner_config import RunnerConfig
from mysglang.srt.platforms.cpu import CpuPlatform
from mysglang.srt.platforms.cuda import CudaPlatform

CONFIG = RunnerConfig(device="cpu", max_total_tokens=600, max_running_requests=6, page_size=4)
FAMILIES: dict[str, dict[str, Any]] = {
    "gemma3": {},  # windows, captured
    "qwen3_next": {"disable_cuda_graph": True},  # states
    "deepseek_v2": {"draft_tokens": 3},  # latent rows
}


@pytest.mark.parametrize("requests", [6, 1])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_shape_runs_eagerly(family: str, requests: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No step has two rows if only one request runs at once, and a request is answered."""
    monkeypatch.setattr(CpuPlatform, "warm_up_prompts", CudaPlatform.warm_up_prompts)
    monkeypatch.setattr(CpuPlatform, "warm_up_rows", CudaPlatform.warm_up_rows)
    monkeypatch.setattr(CpuPlatform, "warm_up_copies", CudaPlatform.warm_up_copies)
    make_checkpoint(family, tmp_path)
    ran: list[ModelWorkerBatch] = []
    run = EagerProgram.run
    monkeypatch.setattr(EagerProgram, "run", lambda self, batch: (ran.append(batch), run(self, batch))[1])
    model = ModelConfig.from_path(str(tmp_path), dtype="float32")
    config = replace(CONFIG, max_running_requests=requests, **FAMILIES[family])
    worker = start_executor(config, model, LoadConfig())
    assert programs_of(worker)
    shapes = {(batch.mode.is_decode, batch.num_rows, batch.num_tokens) for batch in ran}
    assert shapes >= {(False, 1, length) for length in CudaPlatform.warm_up_prompts}
    assert any((batch.seq_lens > batch.extend_lens).any() for batch in ran if not batch.mode.is_decode)
    # As many rows as there are places for.
    assert shapes >= {(True, rows, rows) for rows in (1, 2, 3, 6) if rows <= requests}
    assert max(rows for _, rows, _ in shapes) == requests
    assert len(Driver.start(worker, [GREEDY]).generate([[5, 6, 7]], 4)[0]) == 4


@pytest.mark.parametrize("context", [2, 3])
def test_a_context_that_drafts_do_not_fit_into(context: int, tmp_path: Path) -> None:
    make_checkpoint("llama", tmp_path)
    model = ModelConfig.from_path(str(tmp_path), dtype="float32", context_length=context)
    with pytest.raises(
        ConfigError, match=f"--speculative-num-draft-tokens 4: .* at most {context} \\(--context-length"
    ):
        start_executor(replace(CONFIG, draft_tokens=3), model, LoadConfig())


REQUESTS = """
import random, tempfile
from dataclasses import replace
from fixtures.executors import start_executor
from fixtures.tiny_checkpoints import VOCAB_SIZE, make_checkpoint
from fixtures.worker_driver import GREEDY, Choice, Driver
from mysglang.srt.configs.load_config import LoadConfig
from mysglang.srt.configs.model_config import ModelConfig
from mysglang.srt.kernels.op import Op
from mysglang.srt.layers.attention import torch_native_backend
from mysglang.srt.layers.attention.triton_backend import TritonBackend
from mysglang.srt.model_executor.runner_config import RunnerConfig
from mysglang.srt.platforms.cpu import CpuPlatform
from mysglang.srt.platforms.cuda import CudaPlatform

needed = set()
jit.JITFunction._do_compile = lambda self, key, *_, **__: needed.add((self.fn.__name__, key))
choose, Native = Op.choose, torch_native_backend.TorchNativeBackend

def copied(value):
    if isinstance(value, torch.Tensor):
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype)
    if isinstance(value, (list, tuple)):
        made = [copied(each) for each in value]
        return type(value)(*made) if hasattr(value, "_fields") else type(value)(made)
    return value

def beside_the_kernel(op, _):
    # Says which kernel a GPU would need, and computes in torch.
    kernel = choose(op, "cuda")

    def run(*arguments, **options):
        if kernel is not op.reference:
            kernel(*copied(arguments), **dict(zip(options, copied([*options.values()]))))
        return op.reference(*arguments, **options)
    return run

class BothBackends(Native):
    def __init__(self, pool, table):
        super().__init__(pool, table)
        self.triton = TritonBackend(pool, table)

    def forward(self, q, k, v, spec, batch):
        self.triton.forward(q, k, v, spec, replace(batch, attn_metadata=self.triton.plan(batch)))
        return super().forward(q, k, v, spec, batch)

Op.choose, torch_native_backend.TorchNativeBackend = beside_the_kernel, BothBackends
for what in ("prompts", "rows", "copies"):
    setattr(CpuPlatform, f"warm_up_{what}", getattr(CudaPlatform, f"warm_up_{what}"))
config = RunnerConfig(device="cpu", max_total_tokens=9000, max_running_requests=140, page_size=4,
    attention_backend="torch_native", disable_cuda_graph=True, disable_hybrid_swa_memory=True)
kinds = [GREEDY, Choice(0.9, top_p=0.95, top_k=50), Choice(0.7, top_k=1 << 30)]
draw = random.Random(1)
folder = tempfile.mkdtemp()
make_checkpoint("qwen3_moe", folder)
worker = start_executor(config, ModelConfig.from_path(folder, dtype="float32"), LoadConfig())
warm = set(needed)
assert len(warm) > 20, warm
for count, chunk in ((1, 99), (2, 7), (3, 40), (5, 16), (17, 99), (130, 40)):
    lengths = [draw.choice([1, 3, 16, 17, 40, 60]) for _ in range(count)]
    prompts = [[draw.randrange(VOCAB_SIZE) for _ in range(length)] for length in lengths]
    Driver.start(worker, [draw.choice(kinds) for _ in prompts]).generate(prompts, 3, chunk)
Driver.start(worker, [GREEDY] * 3).teach([[5] * 16, [6] * 9, [7]], [[5, 6]] * 3, 9)
new = needed - warm
assert not new, "\\n".join(map(str, sorted(new)))
"""


def test_requests_need_no_other_kernels() -> None:
    pytest.importorskip("triton")
    compile_launches(REQUESTS, 90)
