"""A long talk changes how long a prompt is, and nothing of what is right."""

from random import Random

from mysglang.eval.exam import Turn
from tiny_world.long_context import draw_characters, with_long_talk
from tiny_world.world import held_out_items

TALK = (Turn("user", "Hello!"), Turn("assistant", "Hello! How can I help you?"))


def test_a_long_talk_stands_between_what_was_told_and_the_question() -> None:
    for item in held_out_items(6):
        if item.raw:
            continue
        longer = with_long_talk(Random(1), item, 2_000, lambda rng: TALK)
        added = len(longer.turns) - len(item.turns)
        assert added % 2 == 0 and added * 80 > 2_000
        assert longer.turns[-1] == item.turns[-1] and longer.turns[-2] == item.turns[-2]
        if item.task == "memory" and len(item.turns) > 2:
            assert longer.turns[:2] == item.turns[:2]


def test_lengths_reach_from_a_page_to_the_context() -> None:
    rng = Random(2)
    lengths = [draw_characters(rng) for _ in range(2_000)]
    assert min(lengths) < 1_000 and max(lengths) > 20_000
    assert sum(length < 4_350 for length in lengths) / len(lengths) > 0.45
