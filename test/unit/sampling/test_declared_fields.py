"""A sampling feature or a field is added in one file and one table: the rest of the API is made from that."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from mysglang.srt.sampling.request_field import declared
from mysglang.srt.sampling.sampling_params import FIELDS

ROOT = Path(__file__).parents[3]
PACKAGE = ROOT / "python" / "mysglang" / "srt"


def test_a_new_feature_with_its_fields_is_a_file_and_a_row_of_the_table() -> None:
    path = os.pathsep.join(str(ROOT / folder) for folder in ("python", "sgl-kernel/python", "test"))
    told = subprocess.run(
        [sys.executable, "-m", "fixtures.own_feature"],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert (told.returncode, told.stdout) == (0, "as declared\n"), told.stderr


@pytest.mark.parametrize(
    ("field", "files"),
    [
        ("min_p", {"sampling/drawing.py", "kernels/sampling.py", "kernels/cuda/sampling.py"}),
        ("frequency_penalty", {"sampling/penalties.py", "managers/request_traces.py"}),
        ("spaces_between_special_tokens", {"sampling/sampling_params.py"}),
    ],
)
def test_who_names_a_field(field: str, files: set[str]) -> None:
    """Its own file, and whoever does something with it: no list of fields beside the declarations."""
    found = {str(path.relative_to(PACKAGE)) for path in PACKAGE.rglob("*.py") if field in path.read_text("utf-8")}
    assert found == files


def test_names_are_told_apart() -> None:
    for dialect in ("openai", "responses", "ollama", "anthropic"):
        names = [name for each in FIELDS if (name := each.name_on(dialect)) is not None]
        assert len(names) == len(set(names)), dialect
    openai = {each.name_on("openai") for each in FIELDS}
    assert not openai & {alias for each in FIELDS for alias in each.told.aliases}


def test_every_default_is_within_its_bounds() -> None:
    for each in FIELDS:
        assert each.default is None or all(bound.holds(each.default) for bound in each.told.bounds), each.name
        assert each.told.text.endswith("."), each.name


def test_a_field_without_a_declaration_is_noticed() -> None:
    class Forgotten(msgspec.Struct):
        some: int = 1

    with pytest.raises(AssertionError, match="nothing is declared of some"):
        declared(Forgotten)
