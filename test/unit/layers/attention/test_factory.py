"""Which attention backend is taken for which layers."""

from dataclasses import replace

import pytest
import torch

from fixtures.attention_cases import PLAIN
from mysglang.srt.errors import ConfigError
from mysglang.srt.layers.attention import factory

ALL = ("flashinfer", "triton", "torch_native")


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    names = {"flashinfer", "triton"}
    monkeypatch.setattr(factory.importlib.util, "find_spec", lambda name: name if name in names else None)
    return names


def test_the_first_that_can(installed: set[str]) -> None:
    assert factory.choose_backend(None, ALL, [PLAIN], torch.bfloat16) == "flashinfer"
    assert factory.choose_backend("auto", ALL, [PLAIN], torch.float32) == "triton"
    assert factory.choose_backend(None, ALL, [PLAIN, replace(PLAIN, head_dim=80)], torch.bfloat16) == "triton"
    installed.clear()
    assert factory.choose_backend(None, ALL, [PLAIN], torch.bfloat16) == "torch_native"


@pytest.mark.parametrize(
    ("asked", "available", "dtype", "said"),
    [
        ("flashinfer", ("torch_native",), torch.bfloat16, "Choose one of torch_native"),
        ("flashinfer", ALL, torch.float32, "does not compute in torch.float32"),
        ("nonsense", ALL, torch.bfloat16, "nonsense does not run here"),
    ],
)
def test_what_cannot_is_refused(
    installed: set[str], asked: str, available: tuple[str, ...], dtype: torch.dtype, said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        factory.choose_backend(asked, available, [PLAIN], dtype)


def test_what_was_asked_for_is_taken(installed: set[str]) -> None:
    assert factory.choose_backend("torch_native", ALL, [PLAIN], torch.bfloat16) == "torch_native"
