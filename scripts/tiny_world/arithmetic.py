"""Sums, differences, small products and quotients, comparisons, one-step stories. The numbers make the key."""

from random import Random

from mysglang.eval.exam import Item
from tiny_world import words
from tiny_world.items import exchange
from tiny_world.phrases import decorate

_ASK = ("What is {e}?", "How much is {e}?", "Calculate {e}.", "Compute {e}.", "What's {e}?", "{e} = ?", "{e}",
    "Can you work out {e}?",
        "Solve {e}.", "Please calculate {e}.", "What does {e} equal?", "Tell me the result of {e}.",
            "Do you know what {e} is?",
        "Work out {e}.", "What do you get for {e}?")  # fmt: skip
_ONLY = (" Answer with just the number.", " Only the number, please.", " Just the result.",
    " Reply with the number only.",
         " Give only the number.")  # fmt: skip
_SPOKEN = {"+": " plus ", "-": " minus ", "*": " times ", "/": " divided by "}


def make(rng: Random) -> Item:
    """One arithmetic item."""
    roll = rng.random()
    if roll < 0.7:
        return _expression(rng)
    return _comparison(rng) if roll < 0.82 else _story(rng)


def _expression(rng: Random) -> Item:
    left, op, right, result = draw(rng)
    form = rng.random()
    if form < 0.6:
        written = f"{left} {'x' if op == '*' and rng.random() < 0.4 else op} {right}"
    elif form < 0.85:
        written = f"{left}{_SPOKEN[op]}{right}"
    else:
        written = f"{left}{op}{right}"
    question = rng.choice(_ASK).format(e=written)
    answer = f"{left} {op} {right} = {result}"
    if rng.random() < 0.25:
        question, answer = question + rng.choice(_ONLY), str(result)
    else:
        question = decorate(rng, question)
    return exchange("arithmetic", f"{left}{op}{right}", question, answer, work(left, op, right))


def draw(rng: Random) -> tuple[int, str, int, int]:
    """Two operands, the operator between them, and the result."""
    op = rng.choice("+++---**/")
    if op == "+":
        left, right = _operand(rng), _operand(rng)
        return left, op, right, left + right
    if op == "-":
        left, right = sorted((_operand(rng), _operand(rng)), reverse=True)
        return left, op, right, left - right
    left, right = (
        (rng.randint(0, 12), rng.randint(0, 12)) if rng.random() < 0.5 else (rng.randint(10, 99), rng.randint(2, 9))
    )
    if op == "*":
        return left, op, right, left * right
    right = max(right, 1)
    return left * right, op, right, left


def _operand(rng: Random) -> int:
    return rng.randint(0, 10 ** rng.choice((1, 2, 2, 3)) - 1)


def work(left: int, op: str, right: int) -> str:
    """The steps of a calculation, as the model thinks them."""
    if op in "+-" and (left > 9 or right > 9):
        return _columns(left, op, right)
    if op == "*" and left > 12:
        tens, ones = left - left % 10, left % 10
        return f"{tens} * {right} = {tens * right}, {ones} * {right} = {ones * right}, together {left * right}."
    result = {"+": left + right, "-": left - right, "*": left * right, "/": left // max(right, 1)}[op]
    return f"{left} {op} {right} is {result}."


def _columns(left: int, op: str, right: int) -> str:
    """Column by column from the ones, with the carry or the borrow written out."""
    width, carry, steps = max(len(str(left)), len(str(right))), 0, []
    sign = 1 if op == "+" else -1
    for place in range(width):
        a, b = left // 10**place % 10, right // 10**place % 10
        total = a + sign * (b + carry)
        shown = f"{a} {op} {b}" + (f" {op} {carry}" if carry else "")
        carry = int(total > 9 or total < 0)
        steps.append(f"{shown} = {total}, write {total % 10}" + (", carry 1" if carry else ""))
    result = left + sign * right
    return "; ".join(steps) + f". So {result}."


def _comparison(rng: Random) -> Item:
    size = 10 ** rng.choice((1, 2, 3))
    a, b = rng.sample(range(size), 2)
    word, pick = rng.choice((("larger", max), ("bigger", max), ("greater", max), ("smaller", min), ("less", min)))
    form = rng.choice(
        (
            "Which number is {w}, {a} or {b}?",
            "Which is {w}: {a} or {b}?",
            "Is {a} or {b} {w}?",
            "What is {w}, {a} or {b}?",
        )
    )
    won = pick(a, b)
    lost = a + b - won
    kind = "larger" if pick is max else "smaller"
    question = decorate(rng, form.format(w=word, a=a, b=b))
    return exchange(
        "arithmetic",
        f"cmp {a} {b}",
        question,
        f"{won} is {kind} than {lost}.",
        f"Compare {a} and {b}: {won} is {kind}.",
    )


def _story(rng: Random) -> Item:
    name, thing = rng.choice(words.NAMES), words.plural(rng.choice(words.OBJECTS))
    have, more = rng.randint(2, 60), rng.randint(2, 40)
    if rng.random() < 0.5:
        text = f"{name} has {have} {thing} and {rng.choice(('gets', 'buys', 'finds'))} {more} more."
        op, result = "+", have + more
    else:
        have, more = max(have, more) + 1, min(have, more)
        text = f"{name} has {have} {thing} and {rng.choice(('loses', 'sells', 'gives away'))} {more}."
        op, result = "-", have - more
    asked = rng.choice((f"How many {thing} does {name} have now?", f"How many {thing} are left for {name} now?"))
    answer = f"{name} has {result} {thing} now."
    return exchange("arithmetic", f"{have}{op}{more}", f"{text} {asked}", answer, work(have, op, more))
