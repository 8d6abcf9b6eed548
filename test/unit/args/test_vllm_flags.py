"""The page "Coming from vLLM", and what the command line says about the flags that the page lists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mysglang.srt.args.groups import option_named, unknown
from mysglang.srt.args.sglang_flags import SGLANG_OPTIONS
from mysglang.srt.args.vllm_flags import VLLM_OPTIONS

PAGE = (Path(__file__).parents[3] / "docs" / "coming_from_vllm.md").read_text(encoding="utf-8")
_FLAG = re.compile(r"--[a-z][a-z-]*")


def rows() -> list[tuple[str, str]]:
    """Returns each flag of vLLM in the tables of the page, with what the page says about it."""
    flags = PAGE.partition("## Flags")[2].partition("## Requests")[0]
    cells = [line.split(" | ", 1) for line in flags.splitlines() if line.startswith("| ")]
    return [(flag, theirs[1]) for theirs in cells for flag in _FLAG.findall(theirs[0])]


@pytest.mark.parametrize(("flag", "ours"), rows())
def test_a_flag_of_the_page_is_known_by_name(flag: str, ours: str) -> None:
    name = flag.removeprefix("--").replace("-", "_")
    if option_named(name) is not None or name in SGLANG_OPTIONS:
        return
    assert name in VLLM_OPTIONS
    assert set(_FLAG.findall(VLLM_OPTIONS[name])) <= set(_FLAG.findall(ours))


def test_the_page_is_read() -> None:
    assert len(rows()) > 50


@pytest.mark.parametrize("name", VLLM_OPTIONS)
def test_what_is_advised_can_be_given(name: str) -> None:
    assert option_named(name) is None and name not in SGLANG_OPTIONS
    assert all(option_named(flag.removeprefix("--")) for flag in _FLAG.findall(VLLM_OPTIONS[name]))


def test_the_message_names_the_flag_to_give() -> None:
    assert unknown("--max-model-len") == "--max-model-len is an option of vLLM: give --context-length."
