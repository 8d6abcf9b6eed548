"""Facts that the user said earlier in the conversation: name, age, city, pet, favourites … and facts that were never
said.
"""

from collections.abc import Callable
from random import Random

from mysglang.eval.exam import Item, Turn
from tiny_world import words
from tiny_world.fact_banks import CAPITALS

Facet = tuple[tuple[str, ...], str, tuple[str, ...], str, str, Callable[[Random], str]]


def _from(bank: tuple[str, ...]) -> Callable[[Random], str]:
    return lambda rng: rng.choice(bank)


_FACETS: dict[str, Facet] = {
    "name": (
        ("My name is {x}.", "I am {x}.", "Hi, I'm {x}.", "Hello, my name is {x}.", "Call me {x}.",
            "People call me {x}.", "This is {x} speaking."),
        "Nice to meet you, {x}!",
        ("What is my name?", "What's my name?", "Do you remember my name?", "Who am I?", "Can you tell me my name?",
            "What did I say my name was?"),
        "Your name is {x}.", "I do not know your name yet. Please tell me.", _from(words.NAMES),
    ),
    "age": (
        ("I am {x} years old.", "I'm {x} years old.", "My age is {x}.", "I turned {x} this year."),
        "You are {x} years old. I will remember that.",
        ("How old am I?", "What is my age?", "Do you remember how old I am?", "Can you tell me my age?"),
        "You are {x} years old.", "I do not know your age yet. Please tell me.", lambda rng: str(rng.randint(5, 99)),
    ),
    "city": (
        ("I live in {x}.", "My home is in {x}.", "I am from {x}.", "My city is {x}."),
        "{x} is a nice place. I will remember that.",
        ("Where do I live?", "Which city do I live in?", "What city am I from?", "Do you remember where I live?"),
        "You live in {x}.", "I do not know where you live yet. Please tell me.", _from(tuple(CAPITALS.values())),
    ),
    "pet": (
        ("I have a pet {x}.", "My pet is a {x}.", "I just got a {x} as a pet."),
        "How lovely! I will remember your {x}.",
        ("What pet do I have?", "Which animal is my pet?", "What kind of pet do I have?", "Do you remember my pet?"),
        "You have a pet {x}.", "I do not know your pet yet. Please tell me.",
            _from(tuple(a for a in words.CATEGORIES["animal"] if a != "elephant")),
    ),
    "color": (
        ("My favorite color is {x}.", "I like {x} best of all colors.", "The color I love most is {x}.",
            "My favourite colour is {x}."),
        "{X} is a beautiful color. I will remember that.",
        ("What is my favorite color?", "Which color do I like best?", "Do you remember my favorite color?",
            "What's my favourite colour?"),
        "Your favorite color is {x}.", "I do not know your favorite color yet. Please tell me.",
            _from(words.CATEGORIES["color"]),
    ),
    "food": (
        ("My favorite food is {x}.", "I love to eat {x}.", "I like {x} more than any other food."),
        "{X} is tasty. I will remember that.",
        ("What is my favorite food?", "What do I love to eat?", "Which food do I like best?",
            "Do you remember my favorite food?"),
        "Your favorite food is {x}.", "I do not know your favorite food yet. Please tell me.",
            _from(words.CATEGORIES["food"]),
    ),
    "job": (
        ("I work as a {x}.", "My job is {x}.", "I am a {x} by trade."),
        "That is important work. I will remember that.",
        ("What is my job?", "What do I work as?", "Do you remember my job?", "What do I do for a living?"),
        "Your job is {x}.", "I do not know your job yet. Please tell me.", _from(words.CATEGORIES["job"]),
    ),
    "secret": (
        ("The secret word is {x}.", "Remember this word: {x}.", "Please remember the word {x}.",
            "The code word is {x}."),
        "I will remember the word {x}.",
        ("What is the secret word?", "Which word should you remember?", "What was the word?", "What is the code word?"),
        "The word is {x}.", "You have not told me a word yet.", _from(words.OBJECTS),
    ),
    "list": (
        ("I need to buy {x}.", "My shopping list is {x}.", "On my shopping list are {x}."),
        "I will remember that: {x}.",
        ("What do I need to buy?", "What is on my shopping list?", "Can you tell me my shopping list?",
            "What was I going to buy?"),
        "You need to buy {x}.", "You have not told me your shopping list yet.", lambda rng: _shopping(rng),
    ),
}  # fmt: skip


def _shopping(rng: Random) -> str:
    bank = words.CATEGORIES["food"] + words.CATEGORIES["fruit"] + words.CATEGORIES["vegetable"]
    chosen = rng.sample(bank, rng.randint(2, 4))
    return ", ".join(chosen[:-1]) + " and " + chosen[-1]


def make(rng: Random, fillers: Callable[[Random], Item]) -> Item:
    """One to three things said, `fillers` in between, and a question about one of them or, seldom, another one."""
    told = rng.sample(tuple(_FACETS), rng.choice((1, 1, 2, 3)))
    values = {facet: _FACETS[facet][5](rng) for facet in told}
    turns: list[Turn] = []
    for facet in told:
        turns += _telling(rng, facet, values[facet])
    for _ in range(rng.choice((0, 0, 0, 1, 1, 2, 3))):
        turns += fillers(rng).turns
    asked = rng.choice(told) if rng.random() < 0.85 else rng.choice(tuple(_FACETS))
    known = asked in values
    _, _, questions, answer, unknown, _ = _FACETS[asked]
    reply = answer.format(x=values[asked]) if known else unknown
    thought = "The user told me this before." if known else "The user has not told me this."
    question = rng.choice(questions)
    turns += [Turn("user", question), Turn("assistant", reply, thought=thought)]
    return Item("memory", f"{sorted(values.items())} {question}", tuple(turns))


def make_telling(rng: Random) -> Item:
    """The user says something about themselves."""
    facet = rng.choice(tuple(_FACETS))
    value = _FACETS[facet][5](rng)
    turns = _telling(rng, facet, value)
    return Item("chat", turns[0].content, tuple(turns))


def make_unknown(rng: Random) -> Item:
    """A question about a fact that the user has not said yet."""
    _, _, questions, _, unknown, _ = _FACETS[rng.choice(tuple(_FACETS))]
    question = rng.choice(questions)
    return Item(
        "memory",
        question,
        (Turn("user", question), Turn("assistant", unknown, thought="The user has not told me this.")),
    )


def _telling(rng: Random, facet: str, value: str) -> list[Turn]:
    statements, reaction, *_ = _FACETS[facet]
    said = rng.choice(statements).format(x=value)
    said = said.replace("a " + value, words.with_article(value)) if facet in ("pet", "job") else said
    reply = reaction.format(x=value, X=value[0].upper() + value[1:])
    return [Turn("user", said), Turn("assistant", reply, thought="The user tells me something. I will remember it.")]
