"""The small world as a whole: which tasks there are and how often, training conversations, the held-out set.

Everything is a pure function of its seed. Held-out items never enter a training conversation, nor its earlier turns.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from random import Random

from mysglang.eval.exam import Item, Turn, with_long_system
from tiny_world import (
    arithmetic,
    chat,
    completion,
    counting,
    facts,
    handbook,
    json_objects,
    lists,
    long_context,
    memory,
    phrases,
    stories,
    tools,
    wordplay,
)
from tiny_world.items import is_held_out

Maker = Callable[[Random], Item]


def _plain_filler(rng: Random) -> Item:
    """A short training exchange to stand between what was said and what is asked."""
    return _on_side(rng, rng.choice((chat.make, facts.make, facts.make, arithmetic.make, lists.make)), held_out=False)


def _memory(rng: Random) -> Item:
    return memory.make_unknown(rng) if rng.random() < 0.05 else memory.make(rng, _plain_filler)


def _thinking(rng: Random) -> Item:
    """Any single-turn task, answered after a thought."""
    numbers = (arithmetic.make, arithmetic.make, counting.make)
    make = rng.choice((*numbers, lists.make, wordplay.make_letters, facts.make, wordplay.make_reverse))
    item = make(rng)
    return replace(item, task="thinking", thinking=True)


# How often each task is drawn for training. Its name here is the one reported by the evaluation.
MAKERS: dict[str, tuple[int, Maker]] = {
    "chat": (7, chat.make),
    "facts": (12, facts.make),
    "arithmetic": (18, arithmetic.make),
    "lists": (8, lists.make),
    "copy": (7, wordplay.make_copy),
    "reverse": (4, wordplay.make_reverse),
    "letters": (8, wordplay.make_letters),
    "counting": (7, counting.make),
    "json": (8, json_objects.make),
    "tool_call": (9, tools.make_call),
    "tool_answer": (5, tools.make_answer),
    "no_tool": (4, tools.make_unneeded),
    "memory": (8, _memory),
    "stories": (2, stories.make),
    "handbook": (9, handbook.make_handbook),
    "few_shot": (6, handbook.make_few_shot),
    "persona": (2, chat.make_persona),
    "unknown": (4, chat.make_outside),
    "completion": (6, completion.make),
    "thinking": (8, _thinking),
}

TASKS = tuple(MAKERS)
LONG_SHARE, BURIED_SHARE = 0.012, 0.05
"""Share of the training conversations that get a long context, and share among those whose system prompt decides the
answer: to find it in foreign text is harder. Together about a quarter of the tokens."""
_LED_BY_SYSTEM = ("handbook", "persona")
_WEIGHTS = tuple(weight for weight, _ in MAKERS.values())
# Exchanges that need no system prompt and no tools, so that they may stand before or after each other.
_CHAINABLE = (
    "chat",
    "facts",
    "arithmetic",
    "lists",
    "copy",
    "reverse",
    "letters",
    "counting",
    "unknown",
    "stories",
    "memory",
)
_CHAIN_WEIGHTS = tuple(MAKERS[name][0] for name in _CHAINABLE)


def _on_side(rng: Random, maker: Maker, held_out: bool) -> Item:
    while is_held_out(item := maker(rng)) is not held_out:
        pass
    return item


def training_items(seed: int) -> Iterator[Item]:
    """An endless stream of training conversations, the same for the same seed."""
    rng = Random(f"tiny world {seed}")
    while True:
        item = conversation(rng)
        share = BURIED_SHARE if item.task in _LED_BY_SYSTEM else LONG_SHARE
        yield _lengthened(rng, item) if rng.random() < share else item


def _lengthened(rng: Random, item: Item) -> Item:
    """The item in a long context: foreign text in its system prompt, a long talk before its question, or both."""
    if item.raw:
        return item
    characters = long_context.draw_characters(rng)
    talks = not item.tools and item.task in _CHAINABLE
    share = rng.choice((0.0, 0.0, 0.5, 1.0)) if talks else 0.0
    if share:
        item = long_context.with_long_talk(rng, item, int(characters * share), _unremarkable)
    return with_long_system(rng, item, int(characters * (1 - share))) if share < 1 else item


def _unremarkable(rng: Random) -> tuple[Turn, ...]:
    """An exchange that tells nothing which a later question might ask for."""
    return _plain_filler(rng).turns


def _exchange(rng: Random) -> tuple[Turn, ...]:
    name = rng.choices(_CHAINABLE, _CHAIN_WEIGHTS)[0]
    return _on_side(rng, memory.make_telling if name == "memory" else MAKERS[name][1], held_out=False).turns


def conversation(rng: Random) -> Item:
    """One training conversation: a task, often with a system prompt, earlier exchanges, idle tools, or thinking."""
    name = rng.choices(TASKS, _WEIGHTS)[0]
    # A story without a hero is trained and not asked for in the held-out set, whose items stay what they were.
    maker = stories.make_open if name == "stories" and rng.random() < 0.25 else MAKERS[name][1]
    item = _on_side(rng, maker, held_out=False)
    if item.raw:
        return item
    if not item.system and rng.random() < 0.3:
        item = replace(item, system=phrases.system_prompt(rng))
    if not item.thinking and item.answer.thought and rng.random() < 0.08:
        item = replace(item, thinking=True)
    # A handbook or "always say X" would change what earlier answers ought to be; neutral prompts do not.
    if name in _CHAINABLE or name in ("tool_call", "tool_answer", "no_tool", "thinking"):
        if name in _CHAINABLE and rng.random() < 0.04:
            item = replace(item, tools=tools.offered(rng))
        item = replace(item, turns=_earlier(rng) + item.turns)
    return item


def _earlier(rng: Random) -> tuple[Turn, ...]:
    """Earlier turns of the same conversation: usually none, sometimes a long talk."""
    roll = rng.random()
    number = 0 if roll < 0.62 else rng.randint(1, 2) if roll < 0.88 else rng.randint(3, 12)
    before: tuple[Turn, ...] = ()
    for _ in range(number):
        before += _exchange(rng)
    return before


def held_out_items(per_task: int, seed: int = 0) -> list[Item]:
    """`per_task` different held-out items of every task, the same for the same seed; some with a system prompt."""
    chosen: list[Item] = []
    for name, (_, maker) in MAKERS.items():
        rng = Random(f"tiny world held out {seed} {name}")
        seen: set[str] = set()
        while len(seen) < per_task:
            item = _on_side(rng, maker, held_out=True)
            if item.key in seen:
                continue
            seen.add(item.key)
            if not item.system and not item.raw and rng.random() < 0.3:
                item = replace(item, system=phrases.system_prompt(rng))
            chosen.append(item)
    return chosen
