"""The tools of the small world: how each may be named and described, how people ask for it, what it answers.

Names and parameter names vary, so a model must read the description that it is given.
"""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from tiny_world import words
from tiny_world.fact_banks import CAPITALS, DAYS

Arguments = dict[str, Any]
Result = dict[str, Any]
CITIES = tuple(CAPITALS.values())
LANGUAGES = ("French", "German", "Spanish", "Italian", "Polish", "Greek", "Turkish", "Swedish")
CURRENCIES = ("dollars", "euros", "pounds", "yen", "francs", "crowns")


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter: the names it may have, its JSON type, and how a value is drawn."""

    names: tuple[str, ...]
    type: str
    description: str
    draw: Callable[[Random], Any]
    choices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ToolKind:
    """One kind of tool. `asks` and `reply` are format strings over `p0`, `p1` … (values) and the result's fields."""

    names: tuple[str, ...]
    descriptions: tuple[str, ...]
    parameters: tuple[Parameter, ...]
    asks: tuple[str, ...]
    result: Callable[[Random, tuple[Any, ...]], Result]
    reply: str


def _pick(bank: tuple[str, ...]) -> Callable[[Random], str]:
    return lambda rng: rng.choice(bank)


def _number(low: int, high: int) -> Callable[[Random], int]:
    return lambda rng: rng.randint(low, high)


def _done(rng: Random, values: tuple[Any, ...]) -> Result:
    return {"status": "ok"}


def _weather(rng: Random, values: tuple[Any, ...]) -> Result:
    return {
        "temperature": rng.randint(-15, 40),
        "condition": rng.choice(("sunny", "cloudy", "rainy", "windy", "snowy", "foggy")),
    }


_CITY = Parameter(("city", "location", "place", "town"), "string", "The name of the city", _pick(CITIES))
_NAME = Parameter(("to", "recipient", "person", "contact"), "string", "Who gets it", _pick(words.NAMES))
_TEXT = Parameter(("text", "message", "body", "content"), "string", "The text to send",
                  _pick(("I am late", "See you soon", "Happy birthday", "Call me back", "Dinner is ready",
                      "The train is late", "Good luck",
                         "Thank you for the book", "I am at home")))  # fmt: skip
_ROOM = Parameter(("room", "location", "where"), "string", "The room", _pick(words.CATEGORIES["room"]))
_A = Parameter(("a", "x", "first"), "integer", "The first number", _number(0, 999))
_B = Parameter(("b", "y", "second"), "integer", "The second number", _number(0, 999))

TOOLS: tuple[ToolKind, ...] = (
    ToolKind(
        ("get_weather", "get_current_weather", "weather", "weather_lookup", "current_weather", "fetch_weather"),
        ("Get the current weather in a city", "Look up the weather", "Get the weather of a place",
            "Get the current weather in a given location"),
        (_CITY,),
        ("What is the weather in {p0}?", "What's the weather like in {p0}?", "How is the weather in {p0} today?",
            "Tell me the weather in {p0}.",
         "Is it warm in {p0}?", "Weather in {p0}?", "What is the weather like in {p0} right now?",
             "Check the weather in {p0}."),
        _weather, "It is {temperature} degrees and {condition} in {p0}.",
    ),
    ToolKind(
        ("get_weather", "get_current_weather", "weather", "get_temperature"),
        ("Get the current weather in a city", "Get the current weather in a given location", "Look up the temperature"),
        (_CITY, Parameter(("unit", "units"), "string", "The unit", _pick(("celsius", "fahrenheit")), ("celsius",
            "fahrenheit"))),
        ("What is the weather in {p0} in {p1}?", "Tell me the weather in {p0} in {p1}.",
            "How warm is it in {p0}? Use {p1}.",
         "Give me the temperature in {p0} in {p1}.", "What is the temperature in {p0}, in {p1}?"),
        _weather, "It is {temperature} degrees and {condition} in {p0}.",
    ),
    ToolKind(
        ("get_time", "current_time", "get_current_time", "time_in_city", "clock"),
        ("Get the current time in a city", "Tell the time of a place", "Look up the local time"),
        (_CITY,),
        ("What time is it in {p0}?", "Tell me the time in {p0}.", "What is the local time in {p0}?",
            "How late is it in {p0}?", "Time in {p0}?"),
        lambda rng, values: {"time": f"{rng.randint(0, 23):02d}:{rng.randint(0, 59):02d}"}, "It is {time} in {p0}.",
    ),
    ToolKind(
        ("send_message", "send_text", "message", "send_sms"), ("Send a message to a person", "Send a text to someone"),
            (_NAME, _TEXT),
        ("Send {p0} the message: {p1}.", "Write to {p0}: {p1}.", "Tell {p0}: {p1}.",
            "Send a message to {p0} that says {p1}.", "Text {p0}: {p1}."),
        _done, "I sent your message to {p0}.",
    ),
    ToolKind(
        ("set_timer", "start_timer", "timer", "create_timer"), ("Start a timer", "Set a timer for some minutes"),
        (Parameter(("minutes", "duration", "length"), "integer", "Minutes to wait", _number(1, 90)),),
        ("Set a timer for {p0} minutes.", "Start a timer of {p0} minutes.", "Wake me in {p0} minutes.",
            "I need a timer for {p0} minutes.",
         "Timer for {p0} minutes, please."),
        _done, "The timer is set for {p0} minutes.",
    ),
    ToolKind(
        ("turn_on_light", "light_on", "switch_on_light", "lights_on"), ("Turn on the light in a room",
            "Switch a light on"), (_ROOM,),
        ("Turn on the light in the {p0}.", "Switch on the {p0} light.", "Please light the {p0}.",
            "It is dark in the {p0}.", "Lights on in the {p0}."),
        _done, "The light in the {p0} is on.",
    ),
    ToolKind(
        ("set_temperature", "set_heating", "thermostat"), ("Set the temperature of a room", "Control the heating"),
        (_ROOM, Parameter(("degrees", "temperature", "value"), "integer", "Degrees Celsius", _number(10, 28))),
        ("Set the {p0} to {p1} degrees.", "Heat the {p0} to {p1} degrees.", "Make the {p0} {p1} degrees warm.",
            "I want {p1} degrees in the {p0}."),
        _done, "The {p0} is set to {p1} degrees.",
    ),
    ToolKind(
        ("translate", "translate_word", "translator", "translate_text"), ("Translate a word into a language",
            "Translate text"),
        (Parameter(("text", "word", "phrase"), "string", "What to translate", _pick(words.OBJECTS)),
         Parameter(("language", "target", "to"), "string", "The target language", _pick(LANGUAGES))),
        ("Translate {p0} into {p1}.", "How do you say {p0} in {p1}?", "What is {p0} in {p1}?",
            "Translate the word {p0} to {p1}."),
        lambda rng, values: {"translation": "".join(rng.choice(words.SYLLABLES) for _ in range(3))},
            "In {p1}, {p0} is {translation}.",
    ),
    ToolKind(
        ("convert_currency", "exchange", "currency", "convert_money"), ("Convert money from one currency to another",
            "Exchange money"),
        (Parameter(("amount", "value", "sum"), "integer", "How much", _number(1, 900)),
         Parameter(("from", "source", "from_currency"), "string", "The currency you have", _pick(CURRENCIES[:3])),
         Parameter(("to", "target", "to_currency"), "string", "The currency you want", _pick(CURRENCIES[3:]))),
        ("Convert {p0} {p1} to {p2}.", "How much is {p0} {p1} in {p2}?", "Change {p0} {p1} into {p2}.",
            "What are {p0} {p1} in {p2}?"),
        lambda rng, values: {"result": rng.randint(2, 9999)}, "{p0} {p1} are {result} {p2}.",
    ),
    ToolKind(
        ("add", "add_numbers", "sum", "calculator_add"), ("Add two numbers", "Add two integers and return the sum"),
            (_A, _B),
        ("Add {p0} and {p1}.", "What is {p0} plus {p1}?", "What is {p0} + {p1}?", "Use the tool to add {p0} and {p1}.",
            "Compute {p0} + {p1}."),
        lambda rng, values: {"result": values[0] + values[1]}, "{p0} + {p1} = {result}",
    ),
    ToolKind(
        ("multiply", "multiply_numbers", "product"), ("Multiply two numbers", "Multiply two integers"), (_A, _B),
        ("Multiply {p0} by {p1}.", "What is {p0} times {p1}?", "What is {p0} * {p1}?", "Compute {p0} * {p1}."),
        lambda rng, values: {"result": values[0] * values[1]}, "{p0} * {p1} = {result}",
    ),
    ToolKind(
        ("search", "web_search", "search_web", "lookup"), ("Search the web", "Search for a topic"),
        (Parameter(("query", "q", "topic", "terms"), "string", "What to look for",
                   _pick(tuple(f"{a} {words.plural(o)}" for a in ("cheap", "old", "blue", "wooden",
                       "small") for o in words.OBJECTS[:30]))),),
        ("Search for {p0}.", "Search the web for {p0}.", "Look up {p0}.", "Find {p0} on the web.",
            "Please search {p0}."),
        lambda rng, values: {"results": rng.randint(0, 99)}, "I found {results} results for {p0}.",
    ),
    ToolKind(
        ("get_stock", "stock_level", "check_stock", "inventory"), ("Look up how many pieces of an item are in stock",
            "Check the stock of an item"),
        (Parameter(("item", "product", "name"), "string", "The item", _pick(words.OBJECTS)),),
        ("How many pieces of {p0} are in stock?", "Check the stock of {p0}.", "Is {p0} in stock?",
            "What is the stock level of {p0}?"),
        lambda rng, values: {"stock": rng.randint(0, 300)}, "There are {stock} pieces of {p0} in stock.",
    ),
    ToolKind(
        ("order", "order_food", "place_order", "buy"), ("Order food", "Place an order for a dish"),
        (Parameter(("dish", "item", "food"), "string", "The dish", _pick(words.CATEGORIES["food"])),
         Parameter(("quantity", "count", "number"), "integer", "How many", _number(1, 20))),
        ("Order {p1} portions of {p0}.", "I want {p1} portions of {p0}.", "Please order {p0}, {p1} portions.",
            "Buy {p1} portions of {p0}."),
        lambda rng, values: {"order_id": rng.randint(100, 9999)},
            "I ordered {p1} portions of {p0}. The order number is {order_id}.",
    ),
    ToolKind(
        ("create_event", "add_event", "calendar_add", "schedule"), ("Add an event to the calendar",
            "Create a calendar entry"),
        (Parameter(("title", "name", "event"), "string", "The name of the event", _pick(("lunch", "meeting", "dinner",
            "a walk", "practice", "choir"))),
         Parameter(("day", "date", "when"), "string", "The day", _pick(DAYS)),
         Parameter(("hour", "time", "start"), "integer", "The hour, 0 to 23", _number(6, 22))),
        ("Plan {p0} on {p1} at {p2}.", "Put {p0} in my calendar on {p1} at {p2}.", "Add {p0} on {p1} at {p2}.",
            "Schedule {p0} for {p1} at {p2}."),
        _done, "I added {p0} on {p1} at {p2}.",
    ),
    ToolKind(
        ("play_music", "play", "play_song", "music"), ("Play some music", "Play music of an instrument"),
        (Parameter(("instrument", "genre", "style"), "string", "What to play", _pick(words.CATEGORIES["instrument"])),),
        ("Play some {p0} music.", "I want to hear {p0} music.", "Put on {p0} music.", "Please play {p0} music."),
        _done, "I am playing {p0} music.",
    ),
)  # fmt: skip
