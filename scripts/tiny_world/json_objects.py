"""JSON objects from a described schema: names, types and values are in the text, the answer is one line of JSON."""

import json
from collections.abc import Callable
from random import Random
from typing import Any

from mysglang.eval.exam import Item
from tiny_world import words
from tiny_world.fact_banks import CAPITALS, DAYS, MONTHS
from tiny_world.items import exchange

Draw = Callable[[Random], Any]

_TYPE_NAMES = {
    str: ("string",),
    int: ("integer", "number", "int"),
    bool: ("boolean", "bool"),
    list: ("array", "list", "list of strings"),
}


def _things(rng: Random) -> list[str]:
    return rng.sample(words.OBJECTS, rng.randint(1, 4))


def _of(bank: tuple[str, ...]) -> Draw:
    return lambda rng: rng.choice(bank)


def _up_to(limit: int) -> Draw:
    return lambda rng: rng.randint(1, limit)


def _either(rng: Random) -> bool:
    return rng.random() < 0.5


FIELDS: dict[str, Draw] = {
    "name": _of(words.NAMES), "age": _up_to(99), "city": _of(tuple(CAPITALS.values())), "country": _of(tuple(CAPITALS)),
    "job": _of(words.CATEGORIES["job"]), "color": _of(words.CATEGORIES["color"]), "price": _up_to(500),
        "quantity": _up_to(50),
    "item": _of(words.OBJECTS), "animal": _of(words.CATEGORIES["animal"]), "fruit": _of(words.CATEGORIES["fruit"]),
        "day": _of(DAYS),
    "month": _of(MONTHS), "year": lambda rng: rng.randint(1900, 2030), "score": _up_to(100), "active": _either,
        "married": _either,
    "tags": _things, "items": _things, "size": _of(("small", "medium", "large")), "title": _of(words.OBJECTS),
        "id": _up_to(9999),
    "count": _up_to(100), "student": _either, "friends": lambda rng: rng.sample(words.NAMES, rng.randint(1, 3)),
        "food": _of(words.CATEGORIES["food"]),
    "in_stock": _either, "first_name": _of(words.NAMES), "weight": _up_to(120),
        "sport": _of(words.CATEGORIES["sport"]), "room": _of(words.CATEGORIES["room"]),
    "answer": _of(words.OBJECTS), "ok": _either, "level": _up_to(10), "pet": _of(words.CATEGORIES["animal"]),
        "done": _either, "status": _of(("open", "closed", "new", "late")),
}  # fmt: skip

_ASK = ("Make a JSON object with these fields: {f}. {v}", "Create a JSON object with {f}. {v}",
    "Write a JSON object with the fields {f}. {v}",
        "Give me JSON with {f}. {v}", "Return a JSON object with the fields {f}. {v}",
            "I need a JSON object. Fields: {f}. {v}",
        "{v} Write this as a JSON object with the fields {f}.", "{v} Return JSON with {f}.",
            "{v} Make a JSON object with {f}.")  # fmt: skip
_SYSTEMS = ("Answer only with JSON.", "You answer with a JSON object and nothing else.", "Reply in JSON.",
    "You are an API. Reply with JSON only.",
            "You turn text into JSON. Return only the JSON object.")  # fmt: skip
_SCHEMA_SYSTEMS = ("Answer with a JSON object that fits this schema: {s}", "Reply with JSON only. The schema is {s}",
                   "Return only JSON that matches this JSON schema:\n{s}")  # fmt: skip
_SCHEMA_ASK = ("{v}", "Use this: {v}", "Here is the data: {v}", "{v} Give me the JSON.", "Fill in the schema. {v}")
_SCHEMA_TYPES = {
    str: {"type": "string"},
    int: {"type": "integer"},
    bool: {"type": "boolean"},
    list: {"type": "array", "items": {"type": "string"}},
}


def make(rng: Random) -> Item:
    """One JSON item: described in words, as name-value pairs, as a schema in the system prompt, or as a sentence."""
    if rng.random() < 0.2:
        return _person(rng)
    names = rng.sample(tuple(FIELDS), rng.randint(1, 6))
    record = {name: FIELDS[name](rng) for name in names}
    answer = json.dumps(record)
    thought = f"The fields are {', '.join(names)}."
    roll = rng.random()
    if roll < 0.3:
        schema = {
            "type": "object",
            "properties": {n: _SCHEMA_TYPES[type(v)] for n, v in record.items()},
            "required": names,
        }
        system = rng.choice(_SCHEMA_SYSTEMS).format(s=json.dumps(schema))
        question = rng.choice(_SCHEMA_ASK).format(v=_values(rng, record))
        return exchange("json", answer, question, answer, thought, system)
    typed = rng.random() < 0.7
    fields = ", ".join(f"{n} ({rng.choice(_TYPE_NAMES[type(v)])})" if typed else n for n, v in record.items())
    question = rng.choice(_ASK).format(f=fields, v=_values(rng, record))
    system = rng.choice(_SYSTEMS) if roll < 0.5 else ""
    return exchange("json", answer, question, answer, thought, system)


def _values(rng: Random, record: dict[str, Any]) -> str:
    """The values in words, in the order of the record."""
    style = rng.randrange(3)
    if style == 0:
        return "Values: " + ", ".join(f"{name} = {_said(value)}" for name, value in record.items()) + "."
    if style == 1:
        return "\n".join(f"{name}: {_said(value)}" for name, value in record.items())
    return " ".join(f"The {name} is {_said(value)}." for name, value in record.items())


def _said(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return " and ".join(value)
    return str(value)


def _person(rng: Random) -> Item:
    """A sentence about a person, read into name, age and city or job."""
    name, age = rng.choice(words.NAMES), rng.randint(1, 99)
    if rng.random() < 0.5:
        city = rng.choice(tuple(CAPITALS.values()))
        text = rng.choice(
            (
                f"{name} is {age} years old and lives in {city}.",
                f"{name}, {age}, lives in {city}.",
                f"{name} lives in {city} and is {age}.",
            )
        )
        record: dict[str, Any] = {"name": name, "age": age, "city": city}
    else:
        job = rng.choice(words.CATEGORIES["job"])
        text = rng.choice(
            (
                f"{name} is {age} years old and works as {words.with_article(job)}.",
                f"{name}, {words.with_article(job)}, is {age}.",
            )
        )
        record = {"name": name, "age": age, "job": job}
    fields = ", ".join(record)
    form = rng.choice(("Read this into JSON with the fields {f}: {t}", "{t} Turn this into a JSON object with {f}.",
        "Extract {f} as JSON: {t}",
                       "Extract the {f} from this text as a JSON object: {t}"))  # fmt: skip
    return exchange(
        "json", json.dumps(record), form.format(f=fields, t=text), json.dumps(record), f"The fields are {fields}."
    )
