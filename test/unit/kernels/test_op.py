"""How an op chooses its implementation."""

import importlib
import logging
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from mysgl_kernel import compiled
from mysglang.srt.kernels.op import Op, head_view

MODULE = """
def double(x):
    return "installed"
"""

PICKY = """
able = False

def available():
    return able

def double(x):
    return "picky"
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A package with one good module, one that this device is not good enough for, and one that is broken."""
    monkeypatch.setattr(compiled, "reasons_for_all", set())
    (tmp_path / "fast_ops").mkdir()
    (tmp_path / "fast_ops" / "__init__.py").touch()
    (tmp_path / "fast_ops" / "good.py").write_text(MODULE)
    (tmp_path / "fast_ops" / "picky.py").write_text(PICKY)
    (tmp_path / "fast_ops" / "broken.py").write_text("import not_installed_anywhere\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "fast_ops"
    for name in [name for name in sys.modules if name.startswith("fast_ops")]:
        del sys.modules[name]


def reference(x: Tensor) -> str:
    return "reference"


X = torch.zeros(1)


def test_the_reference_where_nothing_better_is(package: str) -> None:
    assert Op("double", reference=reference)(X) == "reference"
    assert Op("double", reference=reference, cuda=f"{package}.good:double")(X) == "reference"


def test_the_implementation_of_the_device(package: str) -> None:
    assert Op("double", reference=reference, cpu=f"{package}.good:double")(X) == "installed"
    meta = torch.zeros(1, device="meta")
    assert Op("double", reference=reference, cpu=f"{package}.good:double")(meta) == "reference"


def test_the_first_that_is_installed(package: str) -> None:
    op = Op("double", reference=reference, cpu=("not_installed_anywhere.x:double", f"{package}.good:double"))
    assert op(X) == "installed"
    assert Op("double", reference=reference, cpu="not_installed_anywhere:double")(X) == "reference"


def test_the_first_that_can_run_here(
    package: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    op = Op("double", reference=reference, cpu=(f"{package}.picky:double", f"{package}.good:double"))
    assert [op(X), op(X)] == ["installed", "installed"]
    (line,) = caplog.messages
    assert line.startswith("double: fast_ops.picky is not available")
    monkeypatch.setattr(importlib.import_module(f"{package}.picky"), "able", True)
    assert op.choose("cpu")(X) == "picky"


def test_a_reason_for_all_kernels_is_said_once(
    package: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The kernels' package has logged it, and a line for each op would hide that."""
    monkeypatch.setattr(compiled, "reasons_for_all", {"no folder"})
    op = Op("double", reference=reference, cpu=(f"{package}.picky:double", f"{package}.good:double"))
    assert op(X) == "installed"
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


def test_a_broken_module_is_not_passed_over(package: str) -> None:
    with pytest.raises(ModuleNotFoundError, match="not_installed_anywhere"):
        Op("double", reference=reference, cpu=f"{package}.broken:double")(X)
    with pytest.raises(AttributeError):
        Op("double", reference=reference, cpu=f"{package}.good:missing")(X)


def test_what_stands_on_kernels_that_are_not_installed_is_passed_over(
    package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mysglang.srt.kernels.op.KERNELS", "not_installed_anywhere")
    op = Op("double", reference=reference, cpu=(f"{package}.broken:double", f"{package}.good:double"))
    assert op(X) == "installed"


def test_references_can_be_forced(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MYSGLANG_REFERENCE_OPS", "1")
    assert Op("double", reference=reference, cpu=f"{package}.good:double")(X) == "reference"


def test_heads_of_a_slice_are_a_view() -> None:
    qkv = torch.zeros(3, 24)
    heads = head_view(qkv[:, 8:16], 4)
    heads.fill_(1)
    assert heads.shape == (3, 2, 4) and qkv.sum() == 24 and qkv[:, 8:16].sum() == 24
