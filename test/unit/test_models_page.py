"""docs/models.md says what the registry of architectures says."""

from pathlib import Path
from typing import get_args

from fixtures import models_page
from fixtures.models_page import KNOWN
from mysglang.srt.args.parsers import REASONING_PARSERS, ToolCallParser
from mysglang.srt.configs.architectures import DECODERS

PAGE = Path(__file__).parents[2] / "docs" / "models.md"


def test_the_page_is_what_the_registry_says() -> None:
    stale = "docs/models.md is not up to date: python scripts/write_models_page.py"
    assert PAGE.read_text(encoding="utf-8") == models_page.render(), stale


def test_what_is_known_of_families_names_families_and_parsers() -> None:
    assert KNOWN.keys() <= DECODERS.keys()
    assert {name for known in KNOWN.values() for name in known.tools.split()} <= set(get_args(ToolCallParser))
    assert {name for known in KNOWN.values() for name in known.thinking.split()} <= set(REASONING_PARSERS)
