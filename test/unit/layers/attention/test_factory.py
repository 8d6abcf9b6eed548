"""Which attention backends are taken for which layers."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from fixtures.attention_cases import LATENT, PLAIN
from mysglang.srt.errors import ConfigError
from mysglang.srt.forward.forward_batch import ChosenKeys
from mysglang.srt.forward.worker import SpaceShape
from mysglang.srt.layers.attention import factory
from mysglang.srt.layers.attention.factory import (
    AskedBackends,
    AttentionTask,
    ChosenBackends,
    LateAttention,
    choose_backends,
    choose_for_late_rows,
    create_attention_backend,
)
from mysglang.srt.layers.attention.graph import decode_capture, prompt_capture
from mysglang.srt.mem_cache.kv_pool.layouts import layout_of

ALL = ("sgl_kernel", "flashinfer", "triton", "torch_native")
OPEN = AskedBackends()


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The packages that are there; `kernels` stands for a device that runs our own."""
    names = {"flashinfer", "triton", "kernels"}
    monkeypatch.setattr(factory.importlib.util, "find_spec", lambda name: name if name in names else None)
    monkeypatch.setattr(factory, "_kernels_run", lambda specs, dtype: "kernels" in names)
    return names


def test_the_first_that_can(installed: set[str]) -> None:
    wide = replace(PLAIN, head_dim=80)
    assert choose_backends(OPEN, ALL, [PLAIN], torch.bfloat16) == ChosenBackends("flashinfer", "sgl_kernel")
    assert choose_backends(AskedBackends("auto"), ALL, [PLAIN], torch.float32) == ChosenBackends("triton", "triton")
    assert choose_backends(OPEN, ALL, [PLAIN, wide], torch.bfloat16) == ChosenBackends("triton", "triton")
    installed.remove("kernels")
    assert choose_backends(OPEN, ALL, [PLAIN], torch.bfloat16) == ChosenBackends("flashinfer", "flashinfer")
    installed.clear()
    assert choose_backends(OPEN, ALL, [PLAIN], torch.bfloat16) == ChosenBackends("torch_native", "torch_native")


@pytest.mark.parametrize(
    ("asked", "available", "dtype", "said"),
    [
        (AskedBackends("flashinfer"), ("torch_native",), torch.bfloat16, "Choose one of torch_native"),
        (AskedBackends("flashinfer"), ALL, torch.float32, "does not compute in torch.float32"),
        (AskedBackends("nonsense"), ALL, torch.bfloat16, "--attention-backend nonsense does not run here"),
        (AskedBackends("sgl_kernel"), ALL, torch.bfloat16, "use --decode-attention-backend sgl_kernel"),
        (AskedBackends(prefill="sgl_kernel"), ALL, torch.bfloat16, "--prefill-attention-backend sgl_kernel does not"),
        (AskedBackends(decode="sgl_kernel"), ALL, torch.float32, "--decode-attention-backend sgl_kernel: it does not"),
    ],
)
def test_what_cannot_is_refused(
    installed: set[str], asked: AskedBackends, available: tuple[str, ...], dtype: torch.dtype, said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        choose_backends(asked, available, [PLAIN], dtype)


def test_kernels_that_cannot_be_had_are_refused_by_name(installed: set[str]) -> None:
    installed.remove("kernels")
    with pytest.raises(ConfigError, match="neither built nor can be compiled"):
        choose_backends(AskedBackends(decode="sgl_kernel"), ALL, [PLAIN], torch.bfloat16)


@pytest.mark.parametrize(
    ("asked", "prefill", "decode"),
    [
        (AskedBackends("torch_native"), "torch_native", "torch_native"),
        (AskedBackends("triton", decode="sgl_kernel"), "triton", "sgl_kernel"),
        (AskedBackends("triton", prefill="flashinfer"), "flashinfer", "triton"),
        (AskedBackends(prefill="triton", decode="auto"), "triton", "sgl_kernel"),
    ],
)
def test_what_was_asked_for_is_taken(installed: set[str], asked: AskedBackends, prefill: str, decode: str) -> None:
    assert choose_backends(asked, ALL, [PLAIN], torch.bfloat16) == ChosenBackends(prefill, decode)


def test_how_they_are_called() -> None:
    assert str(ChosenBackends("triton", "triton")) == "triton"
    assert str(ChosenBackends("flashinfer", "sgl_kernel")) == "flashinfer (prefill), sgl_kernel (decode)"


def test_latent_rows_are_for_few(installed: set[str]) -> None:
    assert choose_backends(OPEN, ALL, [LATENT], torch.bfloat16) == ChosenBackends("triton", "triton")
    deepseek = replace(LATENT, head_dim=576, latent_dim=512)
    assert choose_backends(OPEN, ALL, [deepseek], torch.bfloat16) == ChosenBackends("triton", "sgl_kernel")
    assert choose_backends(OPEN, ALL, [deepseek], torch.float32) == ChosenBackends("triton", "triton")
    with pytest.raises(ConfigError, match="--attention-backend flashinfer: it does not attend over latent rows"):
        choose_backends(AskedBackends("flashinfer"), ALL, [LATENT], torch.bfloat16)
    with pytest.raises(ConfigError, match=r"no attention backend .* invariant_triton: it does not attend over latent"):
        choose_backends(OPEN, ("invariant_triton",), [LATENT], torch.bfloat16)


def test_every_backend_has_sinks(installed: set[str]) -> None:
    spec = replace(PLAIN, sinks=torch.zeros(4))
    chosen = choose_backends(OPEN, ALL, [spec], torch.bfloat16)
    assert chosen == choose_backends(OPEN, ALL, [PLAIN], torch.bfloat16)


def test_chunks_are_for_our_own_kernels(installed: set[str]) -> None:
    spec, reason = replace(PLAIN, window=7, chunked=True), "attend within chunks"
    assert choose_backends(OPEN, ALL, [spec], torch.bfloat16) == ChosenBackends("triton", "triton")
    for asked in (AskedBackends("flashinfer"), AskedBackends(decode="sgl_kernel")):
        with pytest.raises(ConfigError, match=reason):
            choose_backends(asked, ALL, [spec], torch.bfloat16)


@pytest.mark.parametrize(
    ("asked", "special", "expected"),
    [
        (OPEN, {}, ChosenBackends("triton", "sgl_kernel")),
        (AskedBackends("flashinfer"), {}, ChosenBackends("triton", "sgl_kernel")),
        (AskedBackends("triton"), {}, ChosenBackends("triton", "triton")),
        (OPEN, {"window": 7}, ChosenBackends("triton", "triton")),
        (OPEN, {"head_dim": 576, "latent_dim": 512}, ChosenBackends("triton", "triton")),
    ],
)
def test_steps_with_drafts_take_what_needs_no_lengths(
    installed: set[str], asked: AskedBackends, special: dict[str, Any], expected: ChosenBackends
) -> None:
    specs = [replace(PLAIN, **special)]
    task = AttentionTask(specs, torch.bfloat16, torch.bfloat16)
    chosen = choose_backends(asked, ALL, specs, torch.bfloat16)
    assert choose_for_late_rows(chosen, ALL, task, host_reads=False) == LateAttention(expected, "")
    assert choose_for_late_rows(chosen, ALL, task, host_reads=True) == LateAttention(chosen, "")


def test_without_a_backend_for_late_rows_steps_wait(installed: set[str]) -> None:
    task = AttentionTask([PLAIN], torch.bfloat16, torch.bfloat16)
    native = ChosenBackends("torch_native", "torch_native")
    assert "gathers keys" in choose_for_late_rows(native, ALL, task, host_reads=False).why_exact
    installed.remove("triton")
    fast = ChosenBackends("flashinfer", "sgl_kernel")
    found = choose_for_late_rows(fast, ALL, task, host_reads=False)
    assert found.names == fast and "flashinfer must know how long rows are" in found.why_exact


def test_chosen_keys_are_gathered_on_the_host(installed: set[str]) -> None:
    """So lengths must be known there, and no step is captured; and results depend on how wide a step is."""
    spec = replace(LATENT, chosen=ChosenKeys(top_k=4, layer=0, index_dim=8))
    found = choose_backends(OPEN, ALL, [spec], torch.bfloat16)
    assert found == ChosenBackends("triton", "triton")
    task = AttentionTask([spec], torch.bfloat16, torch.bfloat16)
    assert "gathered on the host" in choose_for_late_rows(found, ALL, task, host_reads=False).why_exact
    assert choose_for_late_rows(found, ALL, task, host_reads=True).why_exact == ""
    with pytest.raises(ConfigError, match=r"invariant_torch: .* choose the tokens they attend to"):
        choose_backends(OPEN, ("invariant_torch",), [spec], torch.bfloat16)
    pool = layout_of([spec], torch.float32).make_store([spec], 0, SpaceShape(3, 4), torch.device("cpu"))
    backend = create_attention_backend(
        ChosenBackends("torch_native", "torch_native"), pool, [torch.zeros(2, 3, dtype=torch.int32)], [spec]
    )
    assert decode_capture(backend) is None and prompt_capture(backend, [spec]) is None


def test_a_model_that_attends_over_no_keys_has_nothing_to_plan() -> None:
    """Its decode steps can be captured, and no step waits for lengths."""
    none = ChosenBackends("none", "none")
    assert choose_backends(AskedBackends("auto"), ("flashinfer", "triton"), [], torch.bfloat16) == none
    task = AttentionTask([], torch.bfloat16, torch.bfloat16)
    assert choose_for_late_rows(none, ("flashinfer", "triton"), task, host_reads=False) == LateAttention(none, "")
    pool = layout_of([], torch.bfloat16).make_store([], 0, SpaceShape(1 << 20, 16), torch.device("cpu"))
    backend = create_attention_backend(none, pool, [torch.zeros(1, 1, dtype=torch.int32)], [])
    assert pool.nbytes == 0 and decode_capture(backend) is backend
    for asked, named in ((AskedBackends("triton"), "--att"), (AskedBackends(decode="sgl_kernel"), "--decode-att")):
        with pytest.raises(ConfigError, match=f"{named}.* no layer of the model attends over keys"):
            choose_backends(asked, ("triton", "sgl_kernel"), [], torch.bfloat16)
