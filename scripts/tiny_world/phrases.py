"""How people put things: politeness around a question, lists in English, neutral system prompts.

Nothing here changes what the right answer is.
"""

from random import Random

_OPENERS = (
    "Hi! ", "Hello! ", "Hey, ", "Hi there! ", "Please help me: ", "Quick question: ", "Question: ", "One more thing: ",
    "I was wondering: ", "Good morning! ", "Okay, ", "So, ", "Well, ", "Tiny, ", "Hey Tiny, ", "Can you help me? ",
    "I have a question. ", "Excuse me, ", "Now, ", "Next: ",
)  # fmt: skip
_CLOSERS = (
    " Thanks.", " Thanks!", " Thank you!", " Please.", " Thank you.", " Thanks in advance.", " I am curious.",
        " Please help.",
    " Cheers!", " Go ahead.",
)  # fmt: skip

SYSTEM_PROMPTS = (
    "You are a helpful assistant.",
    "You are a helpful assistant. Answer briefly.",
    "You are Tiny, a small friendly model.",
    "You are a friendly assistant who answers in plain English.",
    "Be kind and brief.",
    "Answer the user's questions.",
    "You are an assistant. Keep it short.",
    "You are a careful assistant. Say so when you do not know something.",
    "You help people with small questions.",
    "You are a polite helper in a library.",
    "Answer truthfully and simply.",
    "You are a concise assistant.",
    "You are an AI assistant that follows instructions carefully.",
    "Help the user. Be clear.",
)

_HOUSE_RULES = (
    "Be polite to everyone who writes to you.",
    "Use short sentences and plain words.",
    "Answer the question that was asked and nothing else.",
    "Do not invent facts.",
    "If you do not know something, say so.",
    "Never share private data.",
    "Write numbers as digits.",
    "When the user asks for a list, give only the list.",
    "When the user asks for a calculation, give the result.",
    "When the user greets you, greet them back.",
    "When the user thanks you, be gracious.",
    "Do not use slang.",
    "Stay calm when the user is upset.",
    "Remember what the user told you in this conversation.",
    "Copy names exactly as the user wrote them.",
    "Keep the order of the words when you repeat something.",
    "Use a friendly tone.",
    "Do not repeat the question.",
    "Give one answer, not several.",
    "Write in English.",
)


def decorate(rng: Random, question: str) -> str:
    """The question as a person might type it: greeted, thanked, lower-cased at the start, or without its last mark."""
    roll = rng.random()
    if roll < 0.5:
        return question
    if roll < 0.62:
        return rng.choice(_OPENERS) + question
    if roll < 0.72:
        return question + rng.choice(_CLOSERS)
    if roll < 0.78:
        opener = rng.choice(_OPENERS)
        return opener + (lower_first(question) if opener.endswith((", ", ": ")) else question)
    if roll < 0.86:
        return lower_first(question)
    if roll < 0.93:
        return question.rstrip("?.!")
    return lower_first(question).rstrip("?.!")


def lower_first(text: str) -> str:
    """First letter in lower case, unless the text starts with `I`, an acronym or no letter."""
    if text[:2] in ("I ", "I'") or not text[:1].isupper() or text[1:2].isupper():
        return text
    return text[0].lower() + text[1:]


def upper_first(text: str) -> str:
    """First letter in upper case."""
    return text[:1].upper() + text[1:]


def system_prompt(rng: Random) -> str:
    """A neutral system prompt: one sentence or, one time in five, a page of house rules."""
    if rng.random() < 0.8:
        return rng.choice(SYSTEM_PROMPTS)
    rules = rng.sample(_HOUSE_RULES, rng.randint(4, len(_HOUSE_RULES)))
    numbered = "\n".join(f"{i}. {rule}" for i, rule in enumerate(rules, 1))
    return f"{rng.choice(SYSTEM_PROMPTS)} Follow these rules.\n{numbered}"
