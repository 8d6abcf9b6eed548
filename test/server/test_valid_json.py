"""A small run of benchmark/constrained/valid_json.py: every document is valid, and other answers do not change."""

import json
import os
import subprocess
import sys

import pytest

from fixtures.server_process import REPOSITORY, python_path

COUNT = 4
"""A document of each schema."""


@pytest.mark.slow
@pytest.mark.parametrize("more", [[], ["--jump-forward", "--at-once", "3"]], ids=["usual", "jump-forward"])
def test_every_document_is_valid(more: list[str]) -> None:
    script = REPOSITORY / "benchmark" / "constrained" / "valid_json.py"
    environment = os.environ | {"PYTHONPATH": python_path("python")}
    run = subprocess.run(
        [sys.executable, str(script), "--count", str(COUNT), *more], capture_output=True, text=True, env=environment
    )
    assert run.returncode == 0, run.stdout + run.stderr
    found = json.loads(run.stdout.splitlines()[-1])
    assert found["alone"] == found["in_company"] == {"valid": COUNT}
    assert found["different_documents"] > COUNT // 2
