"""Which questions are asked, and how they are made longer."""

from collections import Counter
from pathlib import Path
from random import Random

import pytest

from mysglang.eval.exam import EXAM_FILE, TASKS, exam_items, with_long_system
from mysglang.srt.errors import ConfigError


def test_a_seed_draws_as_many_of_each_task() -> None:
    first, drawn = exam_items(5), exam_items(5, seed=1)
    for items in (first, drawn, exam_items(5, seed=2)):
        assert Counter(item.task for item in items) == dict.fromkeys(TASKS, 5)
        assert len({(item.task, item.key) for item in items}) == len(items)
    assert drawn == exam_items(5, seed=1) != first
    assert exam_items(3) == [item for at, item in enumerate(first) if at % 5 < 3]


def test_tasks_come_in_the_order_of_the_exam() -> None:
    assert [item.task for item in exam_items(1, tasks=("counting", "copy", "copy"))] == ["copy", "counting"]


def test_more_questions_than_there_are_is_an_error_with_the_number() -> None:
    with pytest.raises(ConfigError, match=r"--per-task 81: .* has only 80 questions of the task 'chat'"):
        exam_items(81)


@pytest.mark.parametrize("text", [None, "{}\n", '{"task": "copy", "key": "k", "turns": 3}\n', "no JSON"])
def test_a_file_that_holds_no_questions_is_named(text: str | None, tmp_path: Path) -> None:
    file = tmp_path / "other.jsonl"
    if text is not None:
        file.write_text(text)
    with pytest.raises(ConfigError, match=r"--exam .*other\.jsonl"):
        exam_items(1, file=file)


def test_another_file_is_read_instead(tmp_path: Path) -> None:
    lines = EXAM_FILE.read_text(encoding="utf-8").splitlines(keepends=True)
    (tmp_path / "other.jsonl").write_text("".join(lines[2:4]), encoding="utf-8")
    assert exam_items(2, tasks=("chat",), file=tmp_path / "other.jsonl") == exam_items(4, tasks=("chat",))[2:]


def test_a_long_system_prompt_keeps_the_own_one_and_all_turns() -> None:
    for item in exam_items(4):
        longer = with_long_system(Random(1), item, 3_000)
        assert longer.turns == item.turns and longer.key == item.key
        if item.raw:
            assert longer == item
        else:
            assert item.system in longer.system
            assert 2_500 < len(longer.system) - len(item.system) < 3_300
