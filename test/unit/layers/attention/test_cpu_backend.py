"""The C++ backend against the slow reference, on every story, layer kind and page size."""

from dataclasses import replace

import pytest
import torch

from fixtures.attention_cases import LATENT, PLAIN, Step, check_shared_pages, check_story, every_spec, every_story
from mysgl_kernel.cpu import attention
from mysglang.srt.errors import ConfigError
from mysglang.srt.forward.forward_batch import AttentionSpec
from mysglang.srt.layers.attention.cpu_backend import CpuBackend
from mysglang.srt.layers.attention.factory import AskedBackends, ChosenBackends, choose_backends

pytestmark = pytest.mark.skipif(not attention.available(), reason="no g++")


@pytest.mark.parametrize("page_size", [1, 16])
@every_spec
@every_story
def test_equals_the_reference(story: list[Step], spec: AttentionSpec, page_size: int) -> None:
    check_story(CpuBackend, story, spec, page_size=page_size, dtype=torch.bfloat16, tolerance=2e-2)


@every_story
def test_latent_rows(story: list[Step]) -> None:
    """Few heads and many, of sizes that the kernel takes."""
    for heads in (6, 52):
        spec = replace(LATENT, num_heads=heads, head_dim=96, latent_dim=64, scale=96**-0.5)
        check_story(CpuBackend, story, spec, page_size=16, dtype=torch.bfloat16, tolerance=2e-2)


def test_rows_that_share_pages_of_the_same_step() -> None:
    check_shared_pages(CpuBackend, dtype=torch.bfloat16)


def test_what_it_does_not_take_goes_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    both, odd = ("cpu", "torch_native"), replace(PLAIN, head_dim=80)
    assert choose_backends(AskedBackends(), both, [PLAIN], torch.bfloat16) == ChosenBackends("cpu", "cpu")
    plain = ChosenBackends("torch_native", "torch_native")
    assert choose_backends(AskedBackends(), both, [PLAIN], torch.float32) == plain
    assert choose_backends(AskedBackends(), both, [PLAIN, odd], torch.bfloat16) == plain
    with pytest.raises(ConfigError, match="takes heads of 32, 64"):
        choose_backends(AskedBackends("cpu"), both, [odd], torch.bfloat16)
    wide = replace(LATENT, head_dim=576, latent_dim=512)
    assert choose_backends(AskedBackends(), both, [wide], torch.bfloat16) == ChosenBackends("cpu", "cpu")
    with pytest.raises(ConfigError, match="takes latent rows of multiples of 32"):
        choose_backends(AskedBackends("cpu"), both, [LATENT], torch.bfloat16)
    monkeypatch.setenv("MYSGLANG_REFERENCE_OPS", "1")
    assert choose_backends(AskedBackends(), both, [PLAIN], torch.bfloat16) == plain
    monkeypatch.delenv("MYSGLANG_REFERENCE_OPS")
    monkeypatch.setattr(attention, "available", lambda: False)
    with pytest.raises(ConfigError, match="neither built nor can be compiled"):
        choose_backends(AskedBackends("cpu"), both, [PLAIN], torch.bfloat16)
