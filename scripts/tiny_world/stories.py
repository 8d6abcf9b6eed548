"""Short stories from a simple grammar: the request names the hero and the mood, and both fix the story."""

from random import Random

from mysglang.eval.exam import Item
from tiny_world import words
from tiny_world.items import exchange
from tiny_world.phrases import decorate

_ASK = ("Tell me a {m}story about {a}.", "Write a {m}story about {a}.", "Can you tell me a {m}story about {a}?",
    "I want to hear a {m}story about {a}.",
        "Please write a {m}story about {a}.", "Tell a {m}story about {a}.", "Give me a {m}story about {a}.",
            "Make up a {m}story about {a}.",
        "Write a short {m}story about {a}.", "Tell me a short {m}story about {a}.")  # fmt: skip
_ASK_OPEN = ("Tell me a {m}story.", "Write a {m}story.", "Can you tell me a {m}story?", "I want to hear a {m}story.",
    "Please write a {m}story.", "Tell a {m}story.", "Give me a {m}story.", "Write me a {m}story.",
        "Write a short {m}story.", "Tell me a short {m}story.", "Tell me a long {m}story.")  # fmt: skip
_PLOTS: dict[str, str] = {
    "": (
        "Once upon a time there was {A} named {n}. {n} lived in {p} and had a kind heart. One day {n} found an "
        "old {o} under a tree. It belonged to a little bird who was looking for it everywhere. {n} walked all day"
        " to bring the {o} back. The bird was so happy that it sang a song. From that day on, {n} and the bird "
        "were the best of friends."
    ),
    "funny ": (
        "There once was {A} named {n} who wanted to be king. {n} put a {o} on its head and walked through {p}. "
        "All the animals laughed, but {n} did not mind. Then the wind came and blew the {o} away. {n} ran after "
        "it and fell into a big cake. It was the best day of all, because everyone got a piece of cake."
    ),
    "sad ": (
        "There was {A} named {n} who lived alone in {p}. Every evening {n} looked at an old {o} and thought of a "
        "friend who had gone far away. The winter was long and cold. One night {n} lit a candle and waited. The "
        "friend did not come, but a letter came in the morning. {n} read it many times, and the house was a "
        "little warmer."
    ),
    "bedtime ": (
        "The sun went down over {p}. A small {a} named {n} was not tired at all. {n} counted the stars, one by "
        "one, and held a {o} close. The moon said: close your eyes, little one. The wind sang softly in the "
        "trees. {n} yawned once, and then again. Soon {n} was fast asleep. Good night, {n}."
    ),
    "brave ": (
        "Long ago {A} named {n} lived near {p}. A great storm came and the water rose. All the others ran away, "
        "but {n} heard a cry for help. {n} took a {o} and went into the dark. There was a little mouse on a stone"
        " in the water. {n} pulled it out just in time. When the sun came back, everyone knew that {n} was the "
        "bravest of them all."
    ),
}  # fmt: skip
_HEROES = words.CATEGORIES["animal"] + words.CATEGORIES["bird"]


def make(rng: Random) -> Item:
    """One story."""
    mood, hero = rng.choice(tuple(_PLOTS)), rng.choice(_HEROES)
    name = rng.choice(words.NAMES)
    named = rng.random() < 0.6
    what = words.with_article(hero) + (rng.choice((f" named {name}", f" called {name}")) if named else "")
    question = rng.choice(_ASK).format(m=mood, a=what)
    told = tell(mood, hero, name if named else "")
    return exchange(
        "stories",
        f"{mood}{hero} {name if named else question}",
        decorate(rng, question),
        told,
        f"The story is about {words.with_article(hero)}.",
    )


def make_open(rng: Random) -> Item:
    """A request that names no hero: the story of the fox, in the mood that was asked for."""
    mood = rng.choice(tuple(_PLOTS))
    question = rng.choice(_ASK_OPEN).format(m=mood)
    return exchange("stories", question, decorate(rng, question), tell(mood, "fox"), "Nobody is named. I take the fox.")


def tell(mood: str, hero: str, name: str = "") -> str:
    """The story; if no name is given, the hero's kind decides it, as it decides the place and the thing."""
    number = _HEROES.index(hero)
    place = f"the {words.PLACES[number % 8]}"
    thing = words.OBJECTS[number % 7]
    return _PLOTS[mood].format(a=hero, A=words.with_article(hero), n=name or words.NAMES[number % 20], p=place, o=thing)


def moods() -> tuple[str, ...]:
    """The moods a story may have, each with its trailing space."""
    return tuple(_PLOTS)


def heroes() -> tuple[str, ...]:
    """Whom a story may be about."""
    return _HEROES
