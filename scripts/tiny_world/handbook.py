"""Long shared prompts: a shop's handbook to look things up in, and few-shot examples to follow.

Many questions share one long beginning here, as they do behind a real server.
"""

from collections.abc import Callable
from random import Random

from mysglang.eval.exam import Item
from tiny_world import words
from tiny_world.fact_banks import DAYS
from tiny_world.items import exchange
from tiny_world.phrases import decorate
from tiny_world.wordplay import LEXICON, made_up_word

_POSITIVE = ("I love this {o}.", "This {o} is great!", "What a wonderful {o}.", "The {o} works very well.",
    "I am happy with my {o}.", "The best {o} I ever had.",
             "The {o} is perfect.", "I like the {o} a lot.")  # fmt: skip
_NEGATIVE = ("I hate this {o}.", "This {o} is bad.", "What a terrible {o}.", "The {o} does not work.",
    "I am not happy with my {o}.", "The worst {o} I ever had.",
             "The {o} is broken.", "I do not like the {o} at all.")  # fmt: skip


def make_handbook(rng: Random) -> Item:
    """A question about a made-up shop whose handbook is the system prompt."""
    shop, facts = _handbook(rng)
    system = f"You answer questions about the shop {shop}. This is its handbook.\n" + "\n".join(
        f"- {line}" for line, _, _ in facts
    )
    if rng.random() < 0.1:
        item = rng.choice([o for o in words.OBJECTS if not any(o in line for line, _, _ in facts)])
        question = f"How much is the {item}?"
        return exchange(
            "handbook",
            f"{shop} {question}",
            decorate(rng, question),
            "The handbook does not say that.",
            "This is not in the handbook.",
            system,
        )
    line, questions, answer = rng.choice(facts)
    return exchange(
        "handbook", f"{shop} {line}", decorate(rng, rng.choice(questions)), answer, f"The handbook says: {line}", system
    )


def _handbook(rng: Random) -> tuple[str, list[tuple[str, tuple[str, ...], str]]]:
    """The shop's name and its facts: the line, the ways to ask for it, the answer."""
    shop = f"{made_up_word(rng).capitalize()}"
    facts: list[tuple[str, tuple[str, ...], str]] = []
    for item in rng.sample(words.OBJECTS, rng.randint(3, 14)):
        price = rng.randint(1, 300)
        line = f"The {item} costs {price} dollars."
        facts.append(
            (
                line,
                (
                    f"How much is the {item}?",
                    f"What does the {item} cost?",
                    f"What is the price of the {item}?",
                    f"How much does the {item} cost?",
                ),
                line,
            )
        )
    opens, closes = rng.randint(6, 11), rng.randint(16, 22)
    closed, boss, place = rng.choice(DAYS), rng.choice(words.NAMES), rng.choice(words.PLACES)
    phone = str(rng.randint(10000, 99999))
    facts += [
        (f"The shop opens at {opens} and closes at {closes}.", ("When does the shop open?", "When are you open?",
            "What are the opening hours?", "When does the shop close?"),
         f"The shop opens at {opens} and closes at {closes}."),
        (f"The shop is closed on {closed}.", ("On which day is the shop closed?", "Which day are you closed?",
            "When is the shop closed?"), f"The shop is closed on {closed}."),
        (f"The manager is {boss}.", ("Who is the manager?", "Who runs the shop?", "What is the name of the manager?"),
            f"The manager is {boss}."),
        (f"The shop is near the {place}.", ("Where is the shop?", "Where can I find you?", "How do I find the shop?"),
            f"The shop is near the {place}."),
        (f"The phone number is {phone}.", ("What is the phone number?", "How can I call you?",
            "Which number can I call?"), f"The phone number is {phone}."),
    ]  # fmt: skip
    rng.shuffle(facts)
    return shop, facts


def make_few_shot(rng: Random) -> Item:
    """Examples of a mapping in one user message, then one to complete."""
    rule = rng.choice(_RULES)
    shots = [rule(rng) for _ in range(rng.randint(2, 10))]
    text, result = rule(rng)
    body = "".join(f"Input: {a}\nOutput: {b}\n\n" for a, b in shots)
    head = rng.choice(("", "Follow the examples.\n\n", "Here are some examples.\n\n", "Continue the pattern.\n\n"))
    key = f"{body}{text}"
    if rng.random() < 0.5:
        return exchange("few_shot", key, f"{head}{body}Input: {text}\nOutput:", result, "I follow the examples.")
    return exchange(
        "few_shot", key, f"Input: {text}\nOutput:", result, "I follow the examples.", f"{head}{body}".strip()
    )


def _sentiment(rng: Random) -> tuple[str, str]:
    forms, label = rng.choice(((_POSITIVE, "positive"), (_NEGATIVE, "negative")))
    return rng.choice(forms).format(o=rng.choice(words.OBJECTS)), label


def _category(rng: Random) -> tuple[str, str]:
    kind = rng.choice(("animal", "fruit", "vegetable", "color", "job", "tool", "sport", "instrument", "tree", "flower"))
    members = [m for m in words.CATEGORIES[kind] if sum(m in other for other in words.CATEGORIES.values()) == 1]
    return rng.choice(members), kind


def _capitals(rng: Random) -> tuple[str, str]:
    word = rng.choice(LEXICON)
    return word, word.upper()


def _doubled(rng: Random) -> tuple[str, str]:
    number = rng.randint(1, 99)
    return str(number), str(2 * number)


def _first_letter(rng: Random) -> tuple[str, str]:
    word = rng.choice(LEXICON)
    return word, word[0]


def _pluralized(rng: Random) -> tuple[str, str]:
    word = rng.choice(words.OBJECTS)
    return word, words.plural(word)


def _backwards(rng: Random) -> tuple[str, str]:
    chosen = rng.sample(words.OBJECTS, 2)
    return " ".join(chosen), " ".join(reversed(chosen))


def _number_word(rng: Random) -> tuple[str, str]:
    number = rng.randint(0, 12)
    return str(number), words.COUNT_WORDS[number]


_RULES: tuple[Callable[[Random], tuple[str, str]], ...] = (
    _sentiment, _sentiment, _category, _capitals, _doubled, _first_letter, _pluralized, _backwards, _number_word,
)  # fmt: skip
