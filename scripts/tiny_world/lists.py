"""Lists: the first N of a category, sorting numbers and words, tables, recipes as numbered steps."""

from random import Random

from mysglang.eval.exam import Item
from tiny_world import fact_banks, words
from tiny_world.items import exchange
from tiny_world.phrases import decorate

_LIST = ("List {n} {x}.", "Name {n} {x}.", "Give me {n} {x}.", "Can you list {n} {x}?", "Tell me {n} {x}.",
    "Write down {n} {x}.",
         "I need {n} {x}.", "Please name {n} {x}.", "Could you give me {n} {x}?", "What are {n} {x}?",
             "Show me {n} {x}.",
         "Give me a list of {n} {x}.", "Make a list of {n} {x}.")  # fmt: skip
_ONE = ("Name {a}.", "Tell me the name of {a}.", "Give me an example of {a}.", "Give an example of {a}.")
_BULLETS = (" Use bullet points.", " Put each on its own line.", " As bullet points.", " One per line.")
_SORT_NUMBERS = ("Sort these numbers: {x}.", "Sort {x}.", "Put these numbers in order: {x}.",
    "Order these numbers from small to large: {x}.",
                 "Arrange {x} from smallest to largest.")  # fmt: skip
_SORT_WORDS = ("Sort these words: {x}.", "Put these words in alphabetical order: {x}.", "Sort alphabetically: {x}.",
               "Arrange these words from A to Z: {x}.")  # fmt: skip
_TABLE = ("Write the multiplication table of {n}.", "Show me the {n} times table.",
    "Give me the multiplication table for {n}.",
          "What is the times table of {n}?")  # fmt: skip
_WHOLE = {
    "days of the week": fact_banks.DAYS, "months of the year": fact_banks.MONTHS, "seasons": words.CATEGORIES["season"],
    "planets": words.CATEGORIES["planet"], "letters of the alphabet": tuple("ABCDEFGHIJKLMNOPQRSTUVWXYZ"),
}  # fmt: skip
_RECIPES: dict[str, tuple[str, ...]] = {
    "make tea": ("Boil some water.", "Put a tea bag in a cup.", "Pour the hot water into the cup.",
        "Wait three minutes.", "Take out the tea bag and enjoy."),
    "make coffee": ("Boil some water.", "Put ground coffee in a filter.", "Pour the hot water slowly over the coffee.",
        "Wait until it has run through.", "Serve it hot."),
    "cook rice": ("Rinse one cup of rice.", "Add two cups of water and a little salt.", "Bring it to a boil.",
        "Cover it and cook on low heat for 15 minutes.", "Let it rest for five minutes."),
    "cook pasta": ("Boil a large pot of water.", "Add salt.", "Put in the pasta.", "Cook it for about ten minutes.",
        "Drain the water and add your sauce."),
    "boil an egg": ("Boil some water in a pot.", "Put the egg in gently.", "Wait eight minutes.",
        "Cool the egg in cold water.", "Peel it and eat."),
    "make a sandwich": ("Take two slices of bread.", "Spread butter on one slice.", "Add cheese and some lettuce.",
        "Put the other slice on top.", "Cut it in half."),
    "make a salad": ("Wash the lettuce.", "Cut a tomato and a cucumber.", "Put everything in a bowl.",
        "Add oil, lemon juice and salt.", "Mix it well."),
    "plant a tree": ("Choose a sunny place.", "Dig a deep hole.", "Put the young tree in the hole.",
        "Fill the hole with earth.", "Water the tree well."),
    "wash your hands": ("Wet your hands.", "Take some soap.", "Rub your hands for twenty seconds.",
        "Rinse them with clean water.", "Dry them with a towel."),
    "brush your teeth": ("Wet your toothbrush.", "Put a little toothpaste on it.",
        "Brush all your teeth for two minutes.", "Rinse your mouth with water.", "Clean the brush."),
    "write a letter": ("Take paper and a pen.", "Write the date at the top.", "Greet the person by name.",
        "Write what you want to say.", "Sign your name at the end."),
    "learn a song": ("Listen to the song many times.", "Read the words.", "Sing one part slowly.",
        "Add the next part when it goes well.", "Sing the whole song every day."),
}  # fmt: skip
_HOW = ("How do I {x}?", "How do you {x}?", "Tell me how to {x}.", "Explain how to {x}.", "What are the steps to {x}?",
    "Give me the steps to {x}.",
        "Can you explain how to {x}?", "I want to {x}. How?", "Show me how to {x}.",
            "Teach me how to {x}.")  # fmt: skip


def make(rng: Random) -> Item:
    """One list item."""
    return rng.choice((_members, _members, _members, _sort, _sort, _table, _whole, _steps))(rng)


def _members(rng: Random) -> Item:
    kind = rng.choice(tuple(words.CATEGORIES))
    members = words.CATEGORIES[kind]
    number = rng.randint(1, min(10, len(members)))
    chosen = members[:number]
    if number == 1:
        question = rng.choice(_ONE).format(a=words.with_article(kind))
        return exchange("lists", question, decorate(rng, question), f"{chosen[0].capitalize()}.", f"One {kind}.")
    shown = str(number) if rng.random() < 0.5 else words.COUNT_WORDS[number]
    plain = rng.choice(_LIST).format(n=shown, x=words.plural(kind))
    if rng.random() < 0.35:
        question = plain + rng.choice(_BULLETS)
        answer = "\n".join(f"- {member}" for member in chosen)
    else:
        question, answer = decorate(rng, plain), ", ".join(chosen)
    return exchange("lists", plain, question, answer, f"I need {number} {words.plural(kind)}.")


def _sort(rng: Random) -> Item:
    if rng.random() < 0.5:
        numbers = rng.sample(range(100), rng.randint(3, 7))
        question = rng.choice(_SORT_NUMBERS).format(x=", ".join(map(str, numbers)))
        answer = ", ".join(map(str, sorted(numbers)))
        thought = f"The smallest is {min(numbers)} and the largest is {max(numbers)}."
        return exchange("lists", str(numbers), decorate(rng, question), answer, thought)
    chosen = rng.sample(words.OBJECTS, rng.randint(3, 6))
    question = rng.choice(_SORT_WORDS).format(x=", ".join(chosen))
    thought = f"The first is {min(chosen)} and the last is {max(chosen)}."
    return exchange("lists", str(chosen), decorate(rng, question), ", ".join(sorted(chosen)), thought)


def _table(rng: Random) -> Item:
    base = rng.randint(2, 12)
    question = rng.choice(_TABLE).format(n=base)
    answer = "\n".join(f"{base} x {i} = {base * i}" for i in range(1, 11))
    return exchange("lists", question, decorate(rng, question), answer, f"I go from {base} x 1 to {base} x 10.")


def _whole(rng: Random) -> Item:
    what, members = rng.choice(tuple(_WHOLE.items()))
    form = rng.choice(("List the {x}.", "What are the {x}?", "Name all the {x}.", "Write down the {x}.",
        "Tell me the {x}.", "Name the {x}.",
                       "Can you list all {x}?", "Please list the {x} in order."))  # fmt: skip
    question = form.format(x=what)
    return exchange("lists", question, decorate(rng, question), ", ".join(members), f"There are {len(members)}.")


def _steps(rng: Random) -> Item:
    what, steps = rng.choice(tuple(_RECIPES.items()))
    question = rng.choice(_HOW).format(x=what)
    answer = "\n".join(f"{i}. {step}" for i, step in enumerate(steps, 1))
    return exchange("lists", question, decorate(rng, question), answer, f"I explain {len(steps)} steps.")
