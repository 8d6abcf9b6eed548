"""A small run of benchmark/constrained/valid_json.py: every document is valid, and other answers do not change."""

import json
import runpy
import sys

import pytest

from fixtures.server_process import REPOSITORY
from fixtures.warm_start import warm_engines

COUNT = 4
"""A document of each schema."""
SCRIPT = REPOSITORY / "benchmark" / "constrained" / "valid_json.py"


@pytest.mark.slow
@pytest.mark.parametrize("more", [[], ["--jump-forward", "--at-once", "3"]], ids=["usual", "jump-forward"])
def test_every_document_is_valid(
    more: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The script runs in this process, because starting Python and torch takes longer than the script."""
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), "--count", str(COUNT), *more])
    with warm_engines(), pytest.raises(SystemExit) as end:
        runpy.run_path(str(SCRIPT), run_name="__main__")
    printed = capsys.readouterr()
    assert end.value.code == 0, printed.out + printed.err
    found = json.loads(printed.out.splitlines()[-1])
    assert found["alone"] == found["in_company"] == {"valid": COUNT}
    assert found["different_documents"] > COUNT // 2
