"""Tool calls, the answers after them, and questions that need no tool although tools are there."""

import json
from random import Random
from typing import Any

from mysglang.eval.exam import Item, Json, ToolCall, Turn
from tiny_world import arithmetic, facts, words
from tiny_world.phrases import decorate
from tiny_world.tool_bank import TOOLS, Parameter, ToolKind
from tiny_world.wordplay import made_up_word

_EXPLICIT = (
    "Call {t} with {a}.",
    "Use {t} with {a}.",
    "Please call the tool {t} with {a}.",
    "Run {t} with {a}.",
    "Use the {t} tool with {a}.",
)


def make_call(rng: Random) -> Item:
    """The user's wish, answered by one call (or two, when it names two places)."""
    if rng.random() < 0.2:
        return _made_up(rng)
    kind = rng.choice(TOOLS)
    names, tools, name = _offer(rng, kind)
    values = tuple(parameter.draw(rng) for parameter in kind.parameters)
    question = rng.choice(kind.asks).format(**_numbered(values))
    calls: tuple[ToolCall, ...] = (ToolCall(name, dict(zip(names, values, strict=True))),)
    if len(values) == 1 and isinstance(values[0], str) and rng.random() < 0.15:
        other = kind.parameters[0].draw(rng)
        if other != values[0]:
            question = rng.choice(kind.asks).format(p0=f"{values[0]} and {other}")
            calls = (*calls, ToolCall(name, {names[0]: other}))
    key = f"{name} {[dict(c.arguments) for c in calls]}"
    answer = Turn("assistant", "", calls, thought=f"I should call {name}.")
    return Item("tool_call", key, (Turn("user", decorate(rng, question)), answer), tools=tools)


def make_answer(rng: Random) -> Item:
    """The plain sentence after the tool has answered."""
    kind = rng.choice(TOOLS)
    names, tools, name = _offer(rng, kind)
    values = tuple(parameter.draw(rng) for parameter in kind.parameters)
    result = kind.result(rng, values)
    reply = kind.reply.format(**_numbered(values), **result)
    call = Turn(
        "assistant", "", (ToolCall(name, dict(zip(names, values, strict=True))),), thought=f"I should call {name}."
    )
    question = decorate(rng, rng.choice(kind.asks).format(**_numbered(values)))
    answer = Turn("assistant", reply, thought="The tool has answered. I tell the user.")
    turns = (Turn("user", question), call, Turn("tool", json.dumps(result)), answer)
    return Item("tool_answer", f"{name} {[dict(c.arguments) for c in call.calls]}", turns, tools=tools)


def make_unneeded(rng: Random) -> Item:
    """A question that the model answers itself although tools are offered."""
    plain = facts.make(rng) if rng.random() < 0.7 else arithmetic.make(rng)
    excluded = ("add", "multiply") if plain.task == "arithmetic" else ("get_time",)
    kind = rng.choice([tool for tool in TOOLS if tool.names[0] not in excluded])
    tools = tuple(_describe(rng, kind)[1] for kind in (kind,))
    return Item("no_tool", plain.key, plain.turns, tools=tools)


def offered(rng: Random) -> tuple[Json, ...]:
    """Some tools that are not needed."""
    return tuple(_describe(rng, kind)[1] for kind in rng.sample(TOOLS[3:9], rng.randint(1, 2)))


def _offer(rng: Random, kind: ToolKind) -> tuple[list[str], tuple[Json, ...], str]:
    """The kind's parameter names, the offered tools (with up to three others, in any order), and the tool's name."""
    names, schema = _describe(rng, kind)
    name = schema["function"]["name"]
    tools = [schema]
    for other in rng.sample(TOOLS, rng.choice((0, 0, 1, 2, 3))):
        if not set(other.names) & set(kind.names):
            tools.append(_describe(rng, other)[1])
    rng.shuffle(tools)
    return names, tuple(tools), name


def _describe(rng: Random, kind: ToolKind) -> tuple[list[str], Json]:
    names: list[str] = []
    properties: dict[str, Any] = {}
    for parameter in kind.parameters:
        name = rng.choice([n for n in parameter.names if n not in names])
        names.append(name)
        properties[name] = _property(rng, parameter)
    return names, _function(rng.choice(kind.names), rng.choice(kind.descriptions), properties, names)


def _property(rng: Random, parameter: Parameter) -> dict[str, Any]:
    described: dict[str, Any] = {"type": parameter.type}
    if rng.random() < 0.5:
        described["description"] = parameter.description
    if parameter.choices:
        described["enum"] = list(parameter.choices)
    return described


def _function(name: str, description: str, properties: dict[str, Any], required: list[str]) -> Json:
    parameters = {"type": "object", "properties": properties, "required": required}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


def _made_up(rng: Random) -> Item:
    """An invented tool: the user names it and its arguments outright."""
    count = rng.randint(1, 3)
    verb = made_up_word(rng)
    name = rng.choice(
        (verb, f"{verb}_{rng.choice(words.OBJECTS)}", f"get_{verb}", f"{rng.choice(words.OBJECTS)}_{verb}")
    )
    names = rng.sample((*words.OBJECTS[:20], "a", "b", "x", "y", "n", "mode", "value", "size", "count"), count)
    arguments: dict[str, Any] = {
        n: rng.choice((rng.randint(0, 999), rng.choice(words.OBJECTS), made_up_word(rng))) for n in names
    }
    properties = {n: {"type": "integer" if isinstance(v, int) else "string"} for n, v in arguments.items()}
    tools = [_function(name, f"{verb.capitalize()} something", properties, names)]
    if rng.random() < 0.5:
        tools.append(_describe(rng, rng.choice(TOOLS))[1])
        rng.shuffle(tools)
    listed = " and ".join(f"{n} {rng.choice(('=', 'is', 'set to'))} {v}" for n, v in arguments.items())
    question = rng.choice(_EXPLICIT).format(t=name, a=listed)
    answer = Turn("assistant", "", (ToolCall(name, arguments),), thought=f"I should call {name}.")
    return Item("tool_call", f"{name} {arguments}", (Turn("user", question), answer), tools=tuple(tools))


def _numbered(values: tuple[Any, ...]) -> dict[str, Any]:
    return {f"p{i}": value for i, value in enumerate(values)}
