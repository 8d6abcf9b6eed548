"""docs/models.md says what the registry of architectures says."""

from pathlib import Path
from typing import get_args

from fixtures import models_page
from fixtures.models_page import KNOWN
from mysglang.srt.args.parsers import REASONING_PARSERS, ToolCallParser
from mysglang.srt.configs.architectures import DECODERS
from mysglang.srt.models.registry import how_served

PAGE = Path(__file__).parents[2] / "docs" / "models.md"


STALE = "docs/models.md is not up to date: python scripts/write_models_page.py"
EVERY = 9
"""One in this many of the models without code of ours is examined again, because each takes a while."""


def test_the_page_is_what_the_registry_says() -> None:
    page = PAGE.read_text(encoding="utf-8")
    own = models_page.render_own()
    assert page.startswith(own), STALE
    served, refused = (rows(part) for part in page.removeprefix(own).split("## Not served"))
    assert sorted([*served, *refused]) == models_page.others(), STALE
    for name in [*list(served)[::EVERY], *list(refused)[::EVERY]]:
        serving = how_served(name)
        assert serving.by == ("transformers" if name in served else "nobody"), STALE
        assert models_page.line_of(name, serving) == {**served, **refused}[name], STALE


def rows(text: str) -> dict[str, str]:
    """Architecture -> its list item, as one line."""
    items = text.replace("\n  ", " ").splitlines()
    return {line.split("`")[1]: line for line in items if line.startswith("- `")}


def test_what_is_known_of_families_names_families_and_parsers() -> None:
    assert KNOWN.keys() <= DECODERS.keys()
    assert {name for known in KNOWN.values() for name in known.tools.split()} <= set(get_args(ToolCallParser))
    assert {name for known in KNOWN.values() for name in known.thinking.split()} <= set(REASONING_PARSERS)
