"""CUDA_VISIBLE_DEVICES is read as CUDA reads it; a machine without a driver has no GPU."""

from __future__ import annotations

import pytest

from mysglang.srt.utils.hardware import Hardware, detect_hardware, usable_cores, visible

FOUR = (10.0, 20.0, 30.0, 40.0)


@pytest.mark.parametrize(
    ("named", "left"),
    [
        (None, FOUR),
        ("", ()),
        ("-1", ()),
        ("2", (30.0,)),
        ("3,0", (40.0, 10.0)),
        (" 1 , 2 ", (20.0, 30.0)),
        ("0,9,1", (10.0,)),
        ("GPU-abc", (10.0,)),
        ("MIG-abc,1", (10.0, 20.0)),
        ("NoDevFiles", ()),
    ],
)
def test_visible(named: str | None, left: tuple[float, ...]) -> None:
    environment = {} if named is None else {"CUDA_VISIBLE_DEVICES": named}
    assert visible(FOUR, environment) == left


def test_nothing_is_visible_where_there_is_nothing() -> None:
    assert visible((), {"CUDA_VISIBLE_DEVICES": "GPU-abc,0"}) == ()


def test_hidden_gpus_are_not_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert detect_hardware().num_gpus == 0


def test_counts() -> None:
    assert Hardware(gpu_memory=FOUR).num_gpus == 4


def test_this_process_has_a_core_at_least() -> None:
    assert usable_cores() >= 1
