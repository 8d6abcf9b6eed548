"""The small world is deterministic and fair, and the exam of the package is what it writes."""

from collections import Counter
from itertools import islice, pairwise
from pathlib import Path
from random import Random

import pytest

from mysglang.eval import exam
from mysglang.eval.exam import EXAM_FILE, TINY, Item, chat_template, prompt_text
from tiny_world import render, words
from tiny_world.__main__ import exam_text
from tiny_world.items import HELD_OUT_ONE_IN, is_held_out
from tiny_world.world import MAKERS, TASKS, held_out_items, training_items


def test_the_same_seed_gives_the_same_items() -> None:
    assert list(islice(training_items(5), 200)) == list(islice(training_items(5), 200))
    assert list(islice(training_items(5), 20)) != list(islice(training_items(6), 20))
    assert held_out_items(3) == held_out_items(3)
    assert held_out_items(3, seed=1) != held_out_items(3)


def test_the_held_out_set_has_every_task_and_no_item_twice() -> None:
    items = held_out_items(8)
    assert Counter(item.task for item in items) == dict.fromkeys(TASKS, 8)
    assert len({(item.task, item.key) for item in items}) == len(items)
    assert all(map(is_held_out, items))


def test_training_never_sees_a_held_out_question() -> None:
    """Neither as the scored turn nor as an earlier one."""
    held_out = {pair for item in held_out_items(40) if stands_alone(item) for pair in exchanges(item)}
    seen = {pair for item in islice(training_items(9), 4000) if not item.raw for pair in exchanges(item)}
    assert len(held_out) > 300
    assert not held_out & seen


def stands_alone(item: Item) -> bool:
    """The answer follows from the question alone; whether something is remembered depends on what was said before."""
    return item.task != "memory" and len(item.turns) == 2 and not item.system and not item.tools and not item.raw


def exchanges(item: Item) -> set[tuple[str, str]]:
    """Each question with the answer that follows it."""
    return {(asked.content, given.content) for asked, given in pairwise(item.turns) if given.role == "assistant"}


def test_about_one_in_sixteen_is_held_out() -> None:
    rng = Random(3)
    share = sum(is_held_out(MAKERS["copy"][1](rng)) for _ in range(4000)) / 4000
    assert share == pytest.approx(1 / HELD_OUT_ONE_IN, rel=0.3)


@pytest.mark.parametrize("task", TASKS)
def test_every_prompt_has_one_answer(task: str) -> None:
    rng = Random(task)
    answers: dict[str, str] = {}
    for _ in range(400):
        item = MAKERS[task][1](rng)
        *_, answer = render.pieces(item)
        assert answers.setdefault(render.prompt_text(item), answer.text) == answer.text
        assert answer.learned and answer.text.endswith(render.END)


def test_arithmetic_is_right() -> None:
    rng = Random(4)
    for _ in range(300):
        answer = MAKERS["arithmetic"][1](rng).answer.content
        if " = " in answer:
            expression, result = answer.split(" = ")
            assert eval(expression.replace("/", "//")) == int(result)


def test_fast_rendering_equals_the_template() -> None:
    template = chat_template()
    for item in [*held_out_items(6), *islice(training_items(2), 200)]:
        assert prompt_text(template, item) == render.prompt_text(item)


def test_the_template_and_the_training_copy_are_one() -> None:
    copy = Path(__file__).parents[3] / "scripts" / "train_tiny" / "chat_template.jinja"
    assert copy.read_text(encoding="utf-8") == (TINY / "chat_template.jinja").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("one", "many"), [("box", "boxes"), ("city", "cities"), ("key", "keys"), ("wolf", "wolves"), ("fish", "fish")]
)
def test_plurals(one: str, many: str) -> None:
    assert words.plural(one) == many


def test_the_exam_of_the_package_is_what_is_written() -> None:
    assert exam.TASKS == TASKS
    assert EXAM_FILE.read_text(encoding="utf-8") == exam_text(), "make the exam again: python -m tiny_world"
    assert exam.exam_items(3) == held_out_items(3)
