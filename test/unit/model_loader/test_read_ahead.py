"""Reading ahead: what the kernel is asked for and how far ahead; order and errors of tensors that are read early."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from fixtures.patience import PATIENCE_S
from mysglang.srt.model_loader import read_ahead, weight_files
from mysglang.srt.model_loader.read_ahead import PageAhead, in_order_ahead
from mysglang.srt.model_loader.weight_files import Progress, SafetensorsFile


class Asked:
    """In the place of the kernel: the bytes that were asked for, and a wait until there are so many."""

    def __init__(self) -> None:
        self.ranges: list[tuple[int, int]] = []
        self._more = threading.Condition()

    def __call__(self, descriptor: int, begin: int, count: int) -> None:
        with self._more:
            self.ranges.append((begin, count))
            self._more.notify()

    def wait_for(self, requests: int) -> list[tuple[int, int]]:
        with self._more:
            assert self._more.wait_for(lambda: len(self.ranges) >= requests, timeout=PATIENCE_S)
            return list(self.ranges)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_ahead, "WINDOW", 100)
    monkeypatch.setattr(read_ahead, "REQUEST", 40)


def test_all_of_all_files_is_asked_for_within_a_window(small: None, tmp_path: Path) -> None:
    paths = [tmp_path / "a", tmp_path / "gone", tmp_path / "b"]
    for path, size in ((paths[0], 130), (paths[2], 50)):
        path.write_bytes(bytes(size))
    asked = Asked()
    ahead = PageAhead(paths, asked)
    # Nothing is copied yet: as many requests as begin within the window.
    assert asked.wait_for(3) == [(0, 40), (40, 40), (80, 40)]
    ahead.note_copied(20)
    assert asked.wait_for(4)[3:] == [(120, 10)]
    ahead.note_copied(110)
    assert asked.wait_for(6)[4:] == [(0, 40), (40, 10)]
    ahead.close()
    assert len(asked.ranges) == 6


def test_it_may_be_left_early(small: None, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(bytes(1000))
    asked = Asked()
    ahead = PageAhead([tmp_path / "a"], asked)
    asked.wait_for(3)
    ahead.close()
    assert len(asked.ranges) == 3


def test_results_keep_their_order_and_errors_their_turn() -> None:
    later = threading.Event()
    ran: list[int] = []

    def call(number: int) -> Callable[[], int]:
        def run() -> int:
            if number == 0:
                assert later.wait(PATIENCE_S), "the next ones do not run meanwhile"
            if number == 2:
                later.set()
            if number == 4:
                raise ValueError("four")
            ran.append(number)
            return number

        return run

    found = []
    with pytest.raises(ValueError, match="four"):
        found += list(in_order_ahead((call(number) for number in range(4)), workers=3))
        for number in in_order_ahead((call(number) for number in (3, 4, 5)), workers=3):
            found.append(number)
    assert found == [0, 1, 2, 3, 3]


def test_a_long_file_says_how_far_it_is(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weight_files, "GIB", 1 << 20)
    save_file({name: torch.zeros(1 << 18) for name in "abcd"}, tmp_path / "m.safetensors")
    file = SafetensorsFile(tmp_path / "m.safetensors")
    times = iter([0.0, 2.0, 12.0, 13.0, 14.0])
    progress = Progress([file], show=True, clock=lambda: next(times))
    with caplog.at_level(logging.INFO):
        for name in file.names:
            progress.note(file, name, file.stored_bytes(name))
    progress.close()
    assert caplog.messages == ["Loaded 2.0 of 4.0 GiB (0.17 GiB/s).", "Loaded m.safetensors (1 of 1)."]
