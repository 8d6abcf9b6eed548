"""Plain text to continue, without a chat template: facts, number rows, stories."""

from random import Random

from mysglang.eval.exam import Item, Turn
from tiny_world import facts, stories, words
from tiny_world.fact_banks import CAPITALS, COLORS, DAYS, MONTHS, OPPOSITES
from tiny_world.phrases import upper_first


def make(rng: Random) -> Item:
    """One text, cut somewhere; the rest is determined by what stands before the cut."""
    roll = rng.random()
    if roll < 0.45:
        return _fact(rng)
    if roll < 0.7:
        return _row(rng)
    return _story(rng) if roll < 0.85 else _question(rng)


def _fact(rng: Random) -> Item:
    form = rng.randrange(3)
    if form == 0:
        country, city = rng.choice(tuple(CAPITALS.items()))
        start, end = f"The capital of {country} is", f" {city}."
    elif form == 1:
        word, other = rng.choice(tuple(OPPOSITES.items()))
        start, end = f"The opposite of {word} is", f" {other}."
    else:
        thing, color = rng.choice(tuple(COLORS.items()))
        start, end = f"{upper_first(thing)} is", f" {color}."
    before = " ".join(facts.make(rng).answer.content for _ in range(rng.choice((0, 0, 1, 2, 4))))
    return _raw(f"{before} {start}".strip(), end)


def _row(rng: Random) -> Item:
    """A row of numbers, days or months: one stretch of it given, the next stretch asked."""
    if rng.random() < 0.6:
        first, step = rng.randint(0, 60), rng.choice((1, 1, 1, 2, 5, 10))
        rng.randint(8, 40)  # not used, but the items of the shipped model were drawn with it
        cut = rng.randint(3, 7)
        # A bare number row has no natural end: it is continued by ten members.
        row = [str(first + step * i) for i in range(cut + 10)]
    else:
        row = list(rng.choice((DAYS, MONTHS, words.COUNT_WORDS[1:])))
        cut = rng.randint(3, min(7, len(row) - 2))
    return _raw(", ".join(row[:cut]), "".join(f", {member}" for member in row[cut:]) + ".")


def _story(rng: Random) -> Item:
    if rng.random() < 0.2:  # the story of the fox is the one that begins without being asked for
        told = stories.tell("", "fox").split(" ")
        cut = rng.randint(4, 20)
        return _raw(" ".join(told[:cut]), " " + " ".join(told[cut:]))
    told = stories.tell(rng.choice(stories.moods()), rng.choice(stories.heroes()), rng.choice(words.NAMES)).split(" ")
    # The place and the thing follow from the hero, so the first sentence with the name fixes the rest.
    named = next(i for i, word in enumerate(told) if word == "named") + 2
    cut = rng.randint(named, max(named, len(told) // 2))
    return _raw(" ".join(told[:cut]), " " + " ".join(told[cut:]))


def _question(rng: Random) -> Item:
    asked = facts.make(rng)
    form = rng.choice(("Question: {q}\nAnswer:", "Q: {q}\nA:", "{q}\n"))
    space = "" if form.endswith("\n") else " "
    return _raw(form.format(q=asked.key), space + asked.answer.content)


def _raw(start: str, rest: str) -> Item:
    return Item("completion", start, (Turn("user", start), Turn("assistant", rest)), raw=True)
