"""The words that users and readers of the code meet are plain: docs, help texts, docstrings and comments.

`fixtures/plain_words.py` has the words and openings.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from fixtures.markdown import WIDTH, fill
from fixtures.plain_words import (
    MAX_WORDS,
    complaints,
    complaints_of_messages,
    complaints_of_source,
    prose_of_markdown,
)
from mysglang.srt.args.field import Option
from mysglang.srt.args.groups import group_options

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
OPTIONS = [option for members in group_options().values() for option in members]


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.flag)
def test_the_help_of_a_flag_is_plain(option: Option) -> None:
    assert not list(complaints(option.help))
    assert option.help.endswith(".") and option.help[0].isupper(), "a help text is a sentence, or several"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_is_plain(page: Path) -> None:
    assert not list(complaints(prose_of_markdown(page.read_text(encoding="utf-8"))))


@pytest.mark.parametrize("folder", ["python", "sgl-kernel", "test", "scripts", "benchmark", "examples"])
def test_docstrings_and_comments_are_plain(folder: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{complaint}"
        for path in sorted((ROOT / folder).rglob("*.py"))
        for complaint in complaints_of_source(path.read_text(encoding="utf-8"))
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("folder", ["python/mysglang", "sgl-kernel/python", "scripts"])
def test_messages_are_plain(folder: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{complaint}"
        for path in sorted((ROOT / folder).rglob("*.py"))
        if "tiny_world" not in path.parts  # sentences of people, from which the embedded model learned
        for complaint in complaints_of_messages(path.read_text(encoding="utf-8"))
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "text",
    [
        "Whoever waits gets it.",
        "A key is kept. Of a key, a part is stored.",
        "Likewise for rows.",
        "Requests who wait are served.",
        "It lets in who comes first.",
        "The list stands in one place.",
        "That no surrogate comes is seen to elsewhere.",
        "Which state a row has is said by the step.",
        "word " * (MAX_WORDS + 1) + ".",
    ],
)
def test_hard_words_are_found(text: str) -> None:
    assert list(complaints(text))


def test_plain_words_pass() -> None:
    text = "Of course a request waits. It is evicted first: the cache is full. `$$` stands for any text. "
    assert not list(complaints(text * 5))
    assert not list(complaints_of_source('class A:\n    whole: bool\n    """True if all heads have one norm."""'))


@pytest.mark.parametrize(
    "source",
    [
        '"""What is kept."""',
        '"""Those of a key."""',
        'x = 1\n"""The same for rows."""',
        'def f():\n    """Counts rows.\n\n    Who comes first is served.\n    """',
        "x = 1  # nobody waits",
        'class A:\n    whole: bool = False\n    """The norm takes all heads."""',
        "# one line of a comment\n# and whoever reads it",
    ],
)
def test_hard_words_of_a_source_are_found(source: str) -> None:
    assert list(complaints_of_source(source))


def test_hard_words_of_a_message_are_found() -> None:
    source = 'raise ValueError(f"no slot of {name}, and nobody frees one")\nprint("nobody")'
    assert len(list(complaints_of_messages(source))) == 1


def test_drawings_shapes_and_parameters_of_a_docstring_are_no_long_sentences() -> None:
    words = " ".join(["word"] * (MAX_WORDS - 5))
    text = f"A step.\n\n    {words} {words}\n\nrows: [{words}] ids. columns: [{words}] {words}. limit: {words}."
    assert not list(complaints_of_source(f'"""{text}"""'))


def test_code_tables_and_links_of_a_page_are_no_long_sentences() -> None:
    page = (
        "# Whoever\n\n```bash\nwhoever likewise\n```\n\n| a | b |\n| --- | --- |\n| one | two |\n\n[text](whoever.md)\n"
    )
    assert [line.partition(" ")[0] for line in complaints(prose_of_markdown(page))] == ["'whoever'"]


def test_long_lines_of_a_page_are_filled() -> None:
    words = " ".join(["word"] * 40)
    page = f"# {words}\n\n- {words} - {words}\n- short\n\n```\n{words}\n```\n\n| {words} |\n"
    filled = fill(page)
    assert filled.split() == page.split() and fill(filled) == filled, "only the ends of lines change"
    kept = {f"# {words}", words, f"| {words} |", "- short"}
    assert kept <= set(filled.splitlines())
    item = [line for line in filled.splitlines() if line not in kept and "word" in line]
    assert item[0].startswith("- word") and all(line.startswith("  word") and len(line) <= WIDTH for line in item[1:])
