"""Every code block of the documentation has a language, its data can be read, and its flags exist."""

from __future__ import annotations

import json

import pytest
import yaml

from fixtures.doc_blocks import SHELL, Block, blocks, blocks_of
from mysglang.srt.args.cli import parse

BLOCKS = blocks()
DATA = [block for block in BLOCKS if block.language in ("json", "yaml")]
LAUNCHES = [block for block in BLOCKS if list(block.launches())]


def test_a_block_with_commands_has_a_language() -> None:
    unlabelled = [str(block) for block in BLOCKS if not block.language and block.has_commands]
    assert not unlabelled, "label the block: bash, console or text"


@pytest.mark.parametrize("block", DATA, ids=str)
def test_data_can_be_read(block: Block) -> None:
    read = json.loads if block.language == "json" else yaml.safe_load
    assert read(block.code)


@pytest.mark.parametrize("block", LAUNCHES, ids=str)
def test_the_flags_of_a_server_exist(block: Block) -> None:
    for flags in block.launches():
        parse(flags)


def test_a_reason_is_given_for_what_is_not_run() -> None:
    assert all(block.not_run or "not-run" not in block.options for block in BLOCKS)
    assert sum(block.language in (*SHELL, "python") and not block.not_run for block in BLOCKS) > 15


def test_a_block_is_read() -> None:
    page = '# Title\n\n```bash {not-run="needs docker"}\npython -m mysglang.launch_server \\\n  --port 1\n```\n'
    (block,) = blocks_of("page.md", page)
    assert (block.line, block.language, block.not_run) == (3, "bash", "needs docker")
    assert block.has_commands and list(block.launches()) == [["--port", "1"]]
