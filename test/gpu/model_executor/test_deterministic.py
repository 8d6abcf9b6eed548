"""Deterministic inference on CUDA: a request's tokens and log-probabilities are those it gets alone, bit for bit."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from fixtures.attention_cases import PLAIN, SPECS, Step, check_story, every_story
from fixtures.executors import start_executor
from fixtures.invariant_attention import check_bits
from fixtures.solo_runs import check_worker
from fixtures.tiny_checkpoints import make_checkpoint
from mysglang.srt.configs.load_config import LoadConfig
from mysglang.srt.configs.model_config import ModelConfig
from mysglang.srt.forward.forward_batch import AttentionSpec
from mysglang.srt.kernels.cuda import invariant_attention, invariant_gemm
from mysglang.srt.kernels.gemm import linear
from mysglang.srt.kernels.op import use_ops
from mysglang.srt.kernels.sampling import log_probabilities, most_likely
from mysglang.srt.layers.attention.invariant_triton import InvariantTritonBackend
from mysglang.srt.model_executor.runner_config import RunnerConfig

pytestmark = [pytest.mark.timeout(400), pytest.mark.promise(26)]

DTYPES = [torch.bfloat16, torch.float16, torch.float32]


@pytest.fixture
def invariant() -> Iterator[None]:
    use_ops("invariant")
    yield
    use_ops("fastest")


@pytest.mark.parametrize("graphs", [False, True])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("family", ["qwen3", "qwen3_moe"])
def test_promise_26_as_alone(tmp_path: Path, family: str, dtype: str, graphs: bool) -> None:
    make_checkpoint(family, tmp_path, head_dim=64)
    model = ModelConfig.from_path(str(tmp_path), dtype=dtype)
    config = RunnerConfig(
        device="cuda",
        max_total_tokens=6400,
        max_running_requests=48,
        numerics="invariant",
        disable_persistent_decode=True,
        disable_prefill_cuda_graph=True,
        disable_cuda_graph=not graphs,
        cuda_graph_bs=(1, 2, 8, 20),
    )
    try:
        check_worker(lambda page: start_executor(replace(config, page_size=page), model, LoadConfig()))
    finally:
        use_ops("fastest")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(4096, 1024), (1024, 3072), (9000, 1024), (50, 40), (2048, 1000)])
def test_products(invariant: None, shape: tuple[int, int], dtype: torch.dtype) -> None:
    """Products of any rows, at any place, are near those in float64. There are enough rows for each method of
    multiplying.
    """
    outputs, inputs = shape
    x = torch.randn(3000, inputs, device="cuda").to(dtype)
    weight = torch.randn(outputs, inputs, device="cuda").mul_(inputs**-0.5).to(dtype)
    bias = torch.randn(outputs, device="cuda").to(dtype)
    whole = linear(x, weight, bias)
    exact = torch.nn.functional.linear(x.double(), weight.double(), bias.double())
    assert float((whole.double() - exact).norm() / exact.norm()) < (1e-5 if dtype is torch.float32 else 1e-2)
    for rows in some_rows(len(x)):
        assert torch.equal(linear(x[rows], weight, bias), whole[rows])


def test_all_ways_to_multiply_agree_here(invariant: None) -> None:
    """They need not: then fewer are used, and this device is slower. So it is worth to know."""
    ways = invariant_gemm._ways(torch.device("cuda", 0), torch.bfloat16)
    assert ways.large_tiles
    assert ways.waves == (torch.cuda.get_device_capability() == (9, 0) and invariant_gemm._has_waves())


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("shape", [(6144, 4096), (1024, 3072), (4096, 14336)])
def test_products_of_many_rows(invariant: None, shape: tuple[int, int], biased: bool) -> None:
    """In blocks for cuBLAS where it agrees, and what is left: at any place, and beside any others, the same."""
    outputs, inputs = shape
    x = torch.randn(6000, inputs, device="cuda").bfloat16()
    weight = torch.randn(outputs, inputs, device="cuda").mul_(inputs**-0.5).bfloat16()
    bias = torch.randn(outputs, device="cuda").bfloat16() if biased else None
    whole = linear(x, weight, bias)
    for rows in (1, 200, 300, 1023, 1024, 1025, 2048, 4095, 4096, 5120):
        order = torch.randperm(len(x), device="cuda")[:rows]
        assert torch.equal(linear(x[order], weight, bias), whole[order])


def test_the_library_and_small_tiles_agree_here(invariant: None) -> None:
    """See `test_all_ways_to_multiply_agree_here`: without them this device is slower."""
    x, weight = torch.randn(4096, 4096, device="cuda").bfloat16(), torch.randn(6144, 4096, device="cuda").bfloat16()
    assert all(invariant_gemm._agrees(x, weight, None, rows) for rows in invariant_gemm.LIBRARY_ROWS)
    tile, *others = invariant_attention.DECODE_TILES
    assert any(invariant_attention.agree(tile, other, x, 1, WIDE) for other in others)


@pytest.mark.parametrize("vocab", [1000, 1003, 50257, 151936])
def test_log_probabilities(invariant: None, vocab: int) -> None:
    logits = torch.randn(40, vocab, device="cuda").mul_(4).bfloat16()
    whole = log_probabilities(logits)
    assert torch.allclose(whole, logits.float().log_softmax(dim=-1), atol=1e-5)
    values, ids = most_likely(whole, 20)
    for rows in some_rows(len(logits)):
        assert torch.equal(log_probabilities(logits[rows]), whole[rows])
        few, few_ids = most_likely(whole[rows], 7)
        assert torch.equal(few, values[rows, :7]) and torch.equal(few_ids, ids[rows, :7])


@every_story
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_stories(story: list[Step], dtype: torch.dtype) -> None:
    tolerance = 2e-2 if dtype is torch.bfloat16 else 1e-4
    for spec in (PLAIN, SPECS["window and cap"]):
        check_story(InvariantTritonBackend, story, spec, page_size=4, dtype=dtype, device="cuda", tolerance=tolerance)


WIDE = replace(PLAIN, num_heads=16, num_kv_heads=8, head_dim=128, scale=128**-0.5)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("spec", [*SPECS.values(), WIDE], ids=[*SPECS, "wide heads"])
def test_attention(spec: AttentionSpec, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    # So that rows of a few hundred keys have several spans.
    monkeypatch.setattr("mysglang.srt.kernels.cuda.invariant_cut.SPAN", 128)
    check_bits(InvariantTritonBackend, spec, length=400, single_from=370, dtype=dtype, device="cuda")


def some_rows(count: int) -> list[Tensor]:
    """Rows alone, few, and many in another order."""
    order = torch.randperm(count, device="cuda")
    return [order[:rows] for rows in (1, 2, 5, 16, 70, 130, 200, 256, 300, count // 2, count) if rows <= count]
