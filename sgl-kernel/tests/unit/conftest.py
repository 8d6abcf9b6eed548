"""The workshop, as a fixture."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from workshop import Workshop

from mysgl_kernel import compiled


@pytest.fixture
def workshop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Workshop]:
    monkeypatch.setattr(compiled, "reasons_for_all", set())
    compiled.log_once.cache_clear()
    yield Workshop(tmp_path, monkeypatch)
