"""Long prompts around an item: pages of foreign text in the system prompt, or a long talk before the question.

The right answer never changes. Agents send system prompts of many thousand tokens that say nothing about the question.
The foreign text is the reference text that comes with Python (`pydoc_data`), so its words differ between versions.
"""

from collections.abc import Callable
from dataclasses import replace
from random import Random

from mysglang.eval.exam import Item, Turn

_SHORTEST, _LONGEST = 900, 21_000

LONG_PIECE = _SHORTEST
"""Characters from which a prompt piece has no weight in training: the model must not learn foreign text, nor its
indentation, which it would then write into JSON."""


def draw_characters(rng: Random) -> int:
    """A length in characters; every order of magnitude is as likely. The tokenizer needs a token for about three."""
    return int(_SHORTEST * (_LONGEST / _SHORTEST) ** rng.random())


def with_long_talk(rng: Random, item: Item, characters: int, exchange: Callable[[Random], tuple[Turn, ...]]) -> Item:
    """The item after about `characters` of other exchanges, drawn from `exchange`.

    The talk stands after the first exchange of a longer item: what was said there must be remembered across it.
    """
    talk: list[Turn] = []
    while characters > 0:
        turns = exchange(rng)
        talk += turns
        characters -= sum(len(turn.content) + 40 for turn in turns)
    at = 2 if len(item.turns) > 2 and item.turns[1].role == "assistant" else 0
    return replace(item, turns=(*item.turns[:at], *talk, *item.turns[at:]))
