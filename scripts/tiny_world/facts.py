"""Questions about facts. Each is asked in many ways, and what may be held out is the pair of fact and way of asking."""

from collections.abc import Callable
from random import Random

from mysglang.eval.exam import Item
from tiny_world import fact_banks as bank
from tiny_world import words
from tiny_world.items import exchange
from tiny_world.phrases import decorate, upper_first

_CAPITAL = ("What is the capital of {x}?", "What's the capital of {x}?", "Which city is the capital of {x}?",
    "Name the capital of {x}.",
            "Tell me the capital of {x}.", "Capital of {x}?", "Do you know the capital of {x}?",
                "What is {x}'s capital?",
            "The capital of {x} is which city?", "I need the capital of {x}.", "What city is the capital of {x}?",
            "Could you name the capital of {x}?")  # fmt: skip
_COUNTRY = ("Which country has {x} as its capital?", "{x} is the capital of which country?",
    "What country is {x} the capital of?",
            "{x} is the capital of what country?", "Of which country is {x} the capital?")  # fmt: skip
_OPPOSITE = ("What is the opposite of {x}?", "What's the opposite of {x}?", "Opposite of {x}?",
    "Tell me the opposite of {x}.",
             "Give me the opposite of the word {x}.", "What is the opposite of the word '{x}'?",
                 "Which word is the opposite of {x}?",
             "Name the opposite of {x}.")  # fmt: skip
_COLOR = ("What color is {x}?", "What colour is {x}?", "Which color does {x} have?", "Tell me the color of {x}.",
    "What is the color of {x}?",
          "What is the colour of {x}?", "Do you know what color {x} is?")  # fmt: skip
_SOUND = ("What sound does {x} make?", "Which sound does {x} make?", "What noise does {x} make?", "How does {x} sound?",
          "What does {x} do to make a sound?", "Tell me the sound of {x}.")  # fmt: skip
_YOUNG = ("What is a young {x} called?", "What is a baby {x} called?", "What do you call a young {x}?",
    "What do you call a baby {x}?",
          "Name the baby of the {x}.", "What is the word for a young {x}?")  # fmt: skip
_LEGS = (
    "How many legs does {x} have?",
    "How many legs has {x}?",
    "Tell me how many legs {x} has.",
    "What is the number of legs of {x}?",
)
_HOME = ("Where does {x} live?", "What is the home of {x}?", "What is {x}'s home called?", "Tell me where {x} lives.")
_JOB = (
    "Who {x}?",
    "What do you call a person who {x}?",
    "Which job does a person who {x} have?",
    "What is the job of someone who {x}?",
)
_PLURAL = ("What is the plural of {x}?", "What's the plural of {x}?", "Plural of {x}?", "Give me the plural of {x}.",
           "What is the plural of the word '{x}'?", "Tell me the plural of {x}.",
               "How do you say more than one {x}?")  # fmt: skip
_SPEAK = ("What language do people speak in {x}?", "Which language is spoken in {x}?",
    "What is the main language of {x}?",
          "What language is spoken in {x}?", "Tell me the language of {x}.")  # fmt: skip
_NEXT = ("Which {k} comes after {x}?", "What {k} comes after {x}?", "What is the {k} after {x}?",
    "What comes after {x}?",
         "Tell me the {k} that follows {x}.", "Which {k} follows {x}?")  # fmt: skip
_BEFORE = ("Which {k} comes before {x}?", "What {k} comes before {x}?", "What is the {k} before {x}?",
    "What comes before {x}?",
           "Tell me the {k} before {x}.")  # fmt: skip
_KIND = (
    "What kind of thing is {x}?",
    "What is {x}?",
    "What type of thing is {x}?",
    "Tell me what {x} is.",
    "Describe {x} in one sentence.",
)
_IS = ("Is {x} {k}?", "Is it true that {x} is {k}?", "Would you say {x} is {k}?", "Tell me, is {x} {k}?")

_EXTRA_PLURALS = ("child", "man", "woman", "tooth", "foot", "person", "ox", "loaf", "wife", "tomato", "half", "calf",
    "box", "city", "baby",
                  "story", "church", "dish", "glass", "house", "window", "teacher", "leaf", "knife", "boat",
                      "day")  # fmt: skip
_PLURALIZED = (
    *words.OBJECTS,
    *words.CATEGORIES["animal"],
    *words.CATEGORIES["fruit"],
    *words.CATEGORIES["bird"],
    *_EXTRA_PLURALS,
)
_MEMBERS = tuple((member, kind) for kind, members in words.CATEGORIES.items() if kind not in ("season", "color",
    "planet")
                 for member in members)  # fmt: skip
_HOME_PREPOSITION = {"web": "on", "sea": "in", "forest": "in"}


def make(rng: Random) -> Item:
    """One question about one fact."""
    question, answer = rng.choice(_MAKERS)(rng)
    return exchange("facts", question, decorate(rng, question), answer, "I know this fact.")


def _capital(rng: Random) -> tuple[str, str]:
    country, city = rng.choice(tuple(bank.CAPITALS.items()))
    if rng.random() < 0.7:
        return rng.choice(_CAPITAL).format(x=country), f"The capital of {country} is {city}."
    return rng.choice(_COUNTRY).format(x=city), f"{city} is the capital of {country}."


def _opposite(rng: Random) -> tuple[str, str]:
    word, other = rng.choice(tuple(bank.OPPOSITES.items()))
    if rng.random() < 0.5:
        word, other = other, word
    return rng.choice(_OPPOSITE).format(x=word), f"The opposite of {word} is {other}."


def _color(rng: Random) -> tuple[str, str]:
    thing, color = rng.choice(tuple(bank.COLORS.items()))
    return rng.choice(_COLOR).format(x=thing), f"{upper_first(thing)} is {color}."


def _sound(rng: Random) -> tuple[str, str]:
    animal, sound = rng.choice(tuple(bank.SOUNDS.items()))
    animal = words.with_article(animal)
    return rng.choice(_SOUND).format(x=animal), f"{upper_first(animal)} {sound}."


def _young(rng: Random) -> tuple[str, str]:
    animal, young = rng.choice(tuple(bank.YOUNG.items()))
    return rng.choice(_YOUNG).format(x=animal), f"A young {animal} is called {words.with_article(young)}."


def _legs(rng: Random) -> tuple[str, str]:
    animal, legs = rng.choice(tuple(bank.LEGS.items()))
    return rng.choice(_LEGS).format(x=animal), f"{upper_first(animal)} has {legs or 'no'} legs."


def _home(rng: Random) -> tuple[str, str]:
    animal, home = rng.choice(tuple(bank.HOMES.items()))
    article = "the" if home in ("sea", "forest") else words.with_article(home).split()[0]
    place = f"{_HOME_PREPOSITION.get(home, 'in')} {article} {home}"
    animal = words.with_article(animal)
    return rng.choice(_HOME).format(x=animal), f"{upper_first(animal)} lives {place}."


def _job(rng: Random) -> tuple[str, str]:
    work, job = rng.choice(tuple(bank.JOBS.items()))
    return rng.choice(_JOB).format(x=work), f"{upper_first(words.with_article(job))} {work}."


def _plural(rng: Random) -> tuple[str, str]:
    noun = rng.choice(_PLURALIZED)
    return rng.choice(_PLURAL).format(x=noun), f"The plural of {noun} is {words.plural(noun)}."


def _language(rng: Random) -> tuple[str, str]:
    country, language = rng.choice(tuple(bank.LANGUAGES.items()))
    return rng.choice(_SPEAK).format(x=country), f"People in {country} speak {language}."


def _calendar(rng: Random) -> tuple[str, str]:
    kind, names = rng.choice((("day", bank.DAYS), ("month", bank.MONTHS)))
    here = rng.randrange(len(names))
    if rng.random() < 0.5:
        after = names[(here + 1) % len(names)]
        return rng.choice(_NEXT).format(k=kind, x=names[here]), f"{after} comes after {names[here]}."
    return rng.choice(_BEFORE).format(k=kind, x=names[here]), f"{names[here - 1]} comes before {names[here]}."


def _amount(rng: Random) -> tuple[str, str]:
    what, (_, answer) = rng.choice(tuple(bank.AMOUNTS.items()))
    return rng.choice(("How many {x}?", "Tell me how many {x}.", "Do you know how many {x}?")).format(x=what), answer


def _kind(rng: Random) -> tuple[str, str]:
    member, kind = rng.choice(_MEMBERS)
    thing, klass = words.with_article(member), words.with_article(kind)
    return rng.choice(_KIND).format(x=thing), f"{upper_first(thing)} is {_first_kind(member, klass)}."


def _is_kind(rng: Random) -> tuple[str, str]:
    member, kind = rng.choice(_MEMBERS)
    kinds = [k for k, members in words.CATEGORIES.items() if member in members]
    asked = kind if rng.random() < 0.5 else rng.choice(tuple(words.CATEGORIES))
    thing = words.with_article(member)
    question = rng.choice(_IS).format(x=thing, k=words.with_article(asked))
    if asked in kinds:
        return question, f"Yes, {thing} is {words.with_article(asked)}."
    return question, f"No, {thing} is {_first_kind(member, words.with_article(kind))}."


def _first_kind(member: str, otherwise: str) -> str:
    """A word in two categories (an orange) is always described by the first one."""
    kinds = [k for k, members in words.CATEGORIES.items() if member in members]
    return words.with_article(kinds[0]) if kinds else otherwise


def _various(rng: Random) -> tuple[str, str]:
    return rng.choice(tuple(bank.MISCELLANY.items()))


_MAKERS: tuple[Callable[[Random], tuple[str, str]], ...] = (
    _capital, _capital, _capital, _opposite, _opposite, _color, _sound, _young, _legs, _home, _job, _plural, _plural,
    _language, _calendar, _calendar, _amount, _kind, _is_kind, _is_kind, _various,
)  # fmt: skip
