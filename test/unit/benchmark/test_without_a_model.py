"""Benchmarks that need no model run to their end: each has parts of its own that stand for parts of a server."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    "command",
    [
        "first_step/bench.py --case 1x128 --rounds 1",
        "scheduler_cpu/bench.py --rows 4 --steps 150",
        "scheduler_cpu/waits.py --loads rate32 --seconds 1",
    ],
    ids=["first_step", "scheduler_cpu", "waits"],
)
def test_prints_its_figures_last(command: str) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "python"), str(ROOT / "sgl-kernel/python")])}
    words = [sys.executable, *command.split()]
    ran = subprocess.run(words, cwd=ROOT / "benchmark", env=environment, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout.splitlines()[-1]), ran.stderr
