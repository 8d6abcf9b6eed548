"""A decode step whose rows are those of the step before compares no array with another: it knows the arrays again."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fixtures.late_scheduler import LateScheduler, Setup


@pytest.mark.parametrize("together", [False, True], ids=["one step of prompts each", "one step of all prompts"])
def test_arrays_are_known_again(together: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the step of the prompts had the same rows, in another array."""
    scheduler = LateScheduler(Setup())
    for number in range(6):
        scheduler.send(
            f"r{number}", [7] * 20 + [number + 1], 60, ignore_eos=True, to_come=5 - number if together else 0
        )
        if not together:
            scheduler.turn(2)
    scheduler.turn(8)
    assert len(scheduler.worker.steps[-1].slots) == 6 and scheduler.worker.steps[-1].shared is not None
    compared: list[tuple[Any, Any]] = []
    monkeypatch.setattr(np, "array_equal", lambda one, other: compared.append((one, other)) or True)
    # The late device and the oracles compare, too: only the scheduler's own turn counts.
    for _ in range(5):
        scheduler.assembled.loop.step()
    monkeypatch.undo()
    assert not compared
    scheduler.run()
