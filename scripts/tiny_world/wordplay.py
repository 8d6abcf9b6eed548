"""Copying, reversing and taking words apart. The words themselves are the key."""

from random import Random

from mysglang.eval.exam import Item
from tiny_world import words
from tiny_world.items import exchange

_COPY = ("Repeat after me: {x}", "Repeat exactly: {x}", "Copy this text: {x}", "Say this: {x}", "Echo: {x}",
    "Please repeat: {x}",
         "Write exactly this: {x}", "Repeat the following words: {x}", "Copy the following: {x}",
         "Type this back to me: {x}",
         "Output exactly the following: {x}", "Say: {x}")  # fmt: skip
_REVERSE = ("Reverse the order of these words: {x}", "Reverse this list: {x}", "Write these words backwards: {x}",
            "Say these words in reverse order: {x}", "Reverse: {x}", "Put these words in reverse order: {x}",
            "List these words from last to first: {x}")  # fmt: skip
_SPELL = (
    "Spell the word {x}.",
    "How do you spell {x}?",
    "Spell {x}.",
    "Spell '{x}' letter by letter.",
    "Can you spell {x}?",
)
_EDGE = ("What is the {w} letter of {x}?", "What's the {w} letter in the word {x}?", "Tell me the {w} letter of '{x}'.")
_CAPS = (
    "Write {x} in capital letters.",
    "Write '{x}' in upper case.",
    "Make this upper case: {x}",
    "Convert {x} to capital letters.",
)
_NTH = ("What is the {w} word in this list: {x}", "Which word is {w} in: {x}", "Tell me the {w} word of: {x}")
_ORDINALS = ("first", "second", "third", "fourth", "fifth")

_CODE = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.@#"
_FOREIGN = (
    "hello", "world", "café", "naïve", "straße", "привет", "世界", "日本", "🙂", "🚀", "é", "ñandú", "αβγ", "foo",
    "bar", "OK",
)  # fmt: skip

LEXICON = tuple(
    dict.fromkeys(
        [word for members in words.CATEGORIES.values() for word in members]
        + [*words.OBJECTS, *words.PLACES, *words.ADJECTIVES, *words.VERBS]
    )
)


def make_copy(rng: Random) -> Item:
    """Repeat a text exactly: a word list, a sentence, or made-up words, numbers and codes."""
    roll = rng.random()
    if roll < 0.4:
        text = rng.choice((" ", ", ")).join(_some(rng, rng.randint(1, 9)))
    elif roll < 0.7:
        text = sentence(rng)
    else:
        text = " ".join(_odd_word(rng) for _ in range(rng.randint(1, 6)))
    return exchange("copy", text, rng.choice(_COPY).format(x=text), text, "I repeat the text.")


def make_reverse(rng: Random) -> Item:
    """A short word list from last to first."""
    chosen = _some(rng, rng.randint(2, 7))
    joint = rng.choice((" ", ", "))
    backwards = joint.join(reversed(chosen))
    question = rng.choice(_REVERSE).format(x=joint.join(chosen))
    return exchange(
        "reverse", " ".join(chosen), question, backwards, f"The last word is {chosen[-1]}, so I start there."
    )


def make_letters(rng: Random) -> Item:
    """Spelling, first and last letters, capital letters, the n-th word of a list."""
    word = rng.choice(LEXICON)
    form = rng.randrange(4)
    if form == 0:
        question = rng.choice(_SPELL).format(x=word)
        return exchange("letters", question, question, "-".join(word.upper()), f"{word} has {len(word)} letters.")
    if form == 1:
        which, letter = rng.choice((("first", word[0]), ("last", word[-1])))
        question = rng.choice(_EDGE).format(w=which, x=word)
        return exchange(
            "letters",
            question,
            question,
            f"The {which} letter of {word} is {letter}.",
            f"I spell it: {'-'.join(word)}.",
        )
    if form == 2:
        text = " ".join(_some(rng, rng.randint(1, 3)))
        question = rng.choice(_CAPS).format(x=text)
        return exchange("letters", f"caps {text}", question, text.upper(), "I write it in capital letters.")
    chosen = _some(rng, rng.randint(3, 7))
    place = rng.randrange(min(5, len(chosen)))
    question = rng.choice(_NTH).format(w=_ORDINALS[place], x=", ".join(chosen))
    key = f"nth {place} {chosen}"
    return exchange(
        "letters", key, question, f"The {_ORDINALS[place]} word is {chosen[place]}.", "I count along the list."
    )


def sentence(rng: Random) -> str:
    """A plain sentence of the small world."""
    adjective, noun, verb = (
        rng.choice(words.ADJECTIVES),
        rng.choice(words.CATEGORIES["animal"]),
        rng.choice(words.VERBS),
    )
    form = rng.randrange(4)
    if form == 0:
        return f"The {adjective} {noun} {verb} {rng.choice(words.ADVERBS)}."
    if form == 1:
        return f"{rng.choice(words.NAMES)} {verb} in the {rng.choice(words.PLACES)}."
    if form == 2:
        one, other, place = rng.choice(words.NAMES), rng.choice(words.NAMES), rng.choice(words.PLACES)
        return f"{one} and {other} see a {adjective} {noun} near the {place}."
    thing, room = rng.choice(words.OBJECTS), rng.choice(words.CATEGORIES["room"])
    return f"There is {words.with_article(adjective)} {thing} in the {room}."


def made_up_word(rng: Random) -> str:
    """A word that means nothing, such as `tavoli`."""
    return "".join(rng.choice(words.SYLLABLES) for _ in range(rng.randint(2, 4)))


def _odd_word(rng: Random) -> str:
    roll = rng.random()
    if roll < 0.4:
        return made_up_word(rng)
    if roll < 0.6:
        return str(rng.randint(0, 99999))
    if roll < 0.75:
        return made_up_word(rng).capitalize()
    if roll < 0.9:
        return "".join(rng.choice(_CODE) for _ in range(rng.randint(2, 8)))
    return rng.choice(_FOREIGN)


def _some(rng: Random, number: int) -> list[str]:
    return rng.sample(LEXICON, number)
