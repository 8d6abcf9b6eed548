"""Counting: number ranges up, down and by steps, words of a sentence, letters of a word, members of a list."""

from random import Random

from mysglang.eval.exam import Item
from tiny_world import words
from tiny_world.items import exchange
from tiny_world.phrases import decorate
from tiny_world.wordplay import LEXICON, sentence

_UP = ("Count from {a} to {b}.", "Please count from {a} to {b}.", "Can you count from {a} to {b}?",
    "List the numbers from {a} to {b}.",
       "Write the numbers from {a} to {b}.", "Count up from {a} to {b}.")  # fmt: skip
_DOWN = ("Count down from {b} to {a}.", "Count backwards from {b} to {a}.", "Please count down from {b} to {a}.")
_STEPS = ("Count from {a} to {b} by {s}.", "Count from {a} to {b} in steps of {s}.", "Count by {s} from {a} to {b}.")
_WORDS = ("How many words are in this sentence: {x}", "Count the words: {x}", "How many words does this have: {x}",
          "Count the words in this sentence: {x}")  # fmt: skip
_LETTERS = ("How many letters are in the word {x}?", "How many letters does {x} have?", "Count the letters in {x}.",
            "Count the letters of the word '{x}'.")  # fmt: skip
_TIMES = (
    "How often does the word {w} appear here: {x}",
    "How many times do you see {w} in this list: {x}",
    "Count how often {w} appears: {x}",
)
_SIZE = ("How many things are in this list: {x}", "Count the items: {x}", "How many items are there: {x}")


def make(rng: Random) -> Item:
    """One counting item."""
    return rng.choice((_range, _range, _range, _words, _letters, _times, _size))(rng)


def _range(rng: Random) -> Item:
    start = rng.choice((1, 1, rng.randint(0, 90)))
    length = rng.choice((rng.randint(2, 12), rng.randint(2, 12), rng.randint(10, 60), rng.randint(20, 99)))
    roll = rng.random()
    form: tuple[str, ...]
    if roll < 0.55:
        step, form, values = 1, _UP, range(start, start + length + 1)
    elif roll < 0.8:
        step, form, values = -1, _DOWN, range(start + length, start - 1, -1)
    else:
        step, form = rng.choice((2, 3, 5, 10)), _STEPS
        values = range(start - start % step, start - start % step + step * min(length, 20) + 1, step)
    low, high = min(values), max(values)
    question = rng.choice(form).format(a=low, b=high, s=step)
    if low == 1 and step == 1 and rng.random() < 0.5:
        question = rng.choice((f"Count to {high}.", f"Please count to {high}.", f"Can you count to {high}?"))
    answer = ", ".join(map(str, values))
    return exchange(
        "counting",
        f"{low} {high} {step}",
        decorate(rng, question),
        answer,
        f"I start at {values[0]} and stop at {values[-1]}.",
    )


def _words(rng: Random) -> Item:
    text = sentence(rng)
    number = len(text.split())
    numbered = ", ".join(f"{i} {word.strip('.')}" for i, word in enumerate(text.split(), 1))
    return exchange("counting", text, rng.choice(_WORDS).format(x=text), f"There are {number} words.", numbered + ".")


def _letters(rng: Random) -> Item:
    word = rng.choice(LEXICON)
    question = rng.choice(_LETTERS).format(x=word)
    thought = ", ".join(f"{i} {letter}" for i, letter in enumerate(word, 1)) + "."
    return exchange("counting", question, decorate(rng, question), f"The word {word} has {len(word)} letters.", thought)


def _times(rng: Random) -> Item:
    pool = rng.sample(words.OBJECTS, 3)
    listed = [rng.choice(pool) for _ in range(rng.randint(3, 9))]
    number = listed.count(pool[0])
    question = rng.choice(_TIMES).format(w=pool[0], x=" ".join(listed))
    times = "1 time" if number == 1 else f"{number} times"
    return exchange(
        "counting",
        question,
        question,
        f"The word {pool[0]} appears {times}.",
        f"I look for {pool[0]} and find {number}.",
    )


def _size(rng: Random) -> Item:
    listed = rng.sample(words.OBJECTS, rng.randint(2, 10))
    text = ", ".join(listed)
    numbered = ", ".join(f"{i} {word}" for i, word in enumerate(listed, 1))
    return exchange(
        "counting", text, rng.choice(_SIZE).format(x=text), f"There are {len(listed)} items.", numbered + "."
    )
