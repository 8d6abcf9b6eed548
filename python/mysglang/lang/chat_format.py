"""ChatFormat: which text comes before and after each message of a conversation.

A program may generate in the middle of a message and go on with text of its own, so a whole-conversation template is
not enough: the interpreter needs the pieces. A backend that can render the model's own template finds the pieces with
`derive`; for other backends there is a table of known formats, chosen by the name of the model.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

Message: TypeAlias = dict[str, Any]
"""A message as OpenAI's API has it: `role` and `content`."""

Render: TypeAlias = Callable[[list[Message], bool], str]
"""The model's template over a conversation; the flag asks for the beginning of an answer at the end."""

ROLES = ("system", "user", "assistant")


@dataclass(frozen=True, slots=True)
class ChatFormat:
    """A prefix and a suffix for each role."""

    name: str
    pieces: dict[str, tuple[str, str]]
    """{role: (prefix, suffix)}. A role that is missing is one that the format does not have."""
    opening: str = ""
    """Text before a conversation that has no system message, such as a default system message."""
    default_system_prompt: str | None = None
    """Content of the system message of a conversation that brings none."""
    stop_str: tuple[str, ...] = ()
    """Texts that end an answer, in addition to the model's own end-of-text token."""
    user_joins_system: bool = False
    """True: the first user message continues the system message, without a prefix of its own (Llama 2)."""

    def around(self, role: str, history: Sequence[Message]) -> tuple[str, str]:
        """Returns the prefix and the suffix of a message of `role` after `history`. Raises ValueError for a role that
        the format does not have.
        """
        if role not in self.pieces:
            raise ValueError(f"the chat format {self.name!r} has no messages of the role {role!r}.")
        prefix, suffix = self.pieces[role]
        if self.user_joins_system and role == "user" and [message["role"] for message in history] == ["system"]:
            return "", suffix
        if not history and role != "system":
            prefix = self.opening + prefix
        return prefix, suffix


class Underivable(Exception):
    """A template is not made of messages with a fixed text before and after each."""


_MARKS = ("AAAA1", "BBBB2", "CCCC3", "DDDD4")
"""Contents that no template changes, and that are nowhere in one."""


def derive(render: Render, bos: str = "") -> ChatFormat:
    """Returns the format of the template that `render` renders. Raises Underivable.

    `bos` is the text that the tokenizer puts before every prompt; a template writes it, too, and it must not be there
    twice. The pieces are found by rendering short conversations of known contents and cutting at those contents.
    """
    user, assistant, again, system = _MARKS
    asked = [{"role": "user", "content": user}]
    answered = [*asked, {"role": "assistant", "content": assistant}]
    head, between, after_answer, tail = _cut(
        render([*answered, {"role": "user", "content": again}], True), (user, assistant, again)
    )
    user_suffix = _cut(render(asked, False), (user,))[1]
    assistant_suffix = _cut(render(answered, False), (user, assistant))[2]
    if not (between.startswith(user_suffix) and tail.startswith(user_suffix)):
        raise Underivable("the text after a user's message depends on what follows")
    if not after_answer.startswith(assistant_suffix):
        raise Underivable("the text after an answer depends on what follows")
    user_prefix = after_answer.removeprefix(assistant_suffix)
    head = head.removeprefix(bos)
    if not head.endswith(user_prefix):
        raise Underivable("the first message of a user differs from later ones")
    pieces = {
        "user": (user_prefix, user_suffix),
        "assistant": (tail.removeprefix(user_suffix), assistant_suffix),
    }
    derived = ChatFormat("the model's own", pieces, opening=head.removesuffix(user_prefix) if user_prefix else head)
    return _with_system(derived, render, bos, system, user)


def _with_system(derived: ChatFormat, render: Render, bos: str, system: str, user: str) -> ChatFormat:
    """Returns `derived` with the text around a system message, if the template accepts one."""
    conversation = [{"role": "system", "content": system}, {"role": "user", "content": user}]
    try:
        head, between, _ = _cut(render(conversation, False), (system, user))
    except Exception:  # a template refuses a role with an error of its own, which a server passes on in yet another
        return derived
    user_prefix = derived.pieces["user"][0]
    joins = not (user_prefix and between.endswith(user_prefix))
    suffix = between if joins else between.removesuffix(user_prefix)
    pieces = {**derived.pieces, "system": (head.removeprefix(bos), suffix)}
    return replace(derived, pieces=pieces, user_joins_system=joins)


def _cut(rendered: str, marks: Sequence[str]) -> list[str]:
    """Returns the texts around the marks, one more than there are marks."""
    pieces = []
    for mark in marks:
        piece, found, rendered = rendered.partition(mark)
        if not found:
            raise Underivable("the template leaves a message out, or changes it")
        pieces.append(piece)
    return [*pieces, rendered]


def _tagged(name: str, begin: str, end: str, assistant: str = "assistant", **more: Any) -> ChatFormat:
    """Returns a format whose messages all have the same form and differ only in the role's name."""
    names = {"system": "system", "user": "user", "assistant": assistant}
    return ChatFormat(name, {role: (begin.format(names[role]), end) for role in ROLES}, **more)


_VICUNA = (
    "A chat between a curious user and an artificial intelligence assistant. "
    "The assistant gives helpful, detailed, and polite answers to the user's questions."
)
_CHATML = ("<|im_start|>{}\n", "<|im_end|>\n")
_KNOWN = [
    ChatFormat("default", {"system": ("SYSTEM:", "\n"), "user": ("USER:", "\n"), "assistant": ("ASSISTANT:", "\n")}),
    ChatFormat("claude", {"system": ("", ""), "user": ("\n\nHuman: ", ""), "assistant": ("\n\nAssistant:", "")}),
    _tagged("chatml", *_CHATML, stop_str=("<|im_end|>",)),
    _tagged("qwen", *_CHATML, stop_str=("<|im_end|>",), default_system_prompt="You are a helpful assistant."),
    ChatFormat(
        "vicuna_v1.1",
        {"system": ("", " "), "user": ("USER:", " "), "assistant": ("ASSISTANT:", "</s>")},
        default_system_prompt=_VICUNA,
    ),
    ChatFormat(
        "llama-2-chat",
        {
            "system": ("[INST] <<SYS>>\n", "\n<</SYS>>\n\n"),
            "user": ("[INST] ", " [/INST]"),
            "assistant": ("", " </s><s>"),
        },
        user_joins_system=True,
    ),
    _tagged("llama-3-instruct", "<|start_header_id|>{}<|end_header_id|>\n\n", "<|eot_id|>", stop_str=("<|eot_id|>",)),
    _tagged("llama-4", "<|header_start|>{}<|header_end|>\n\n", "<|eot|>", stop_str=("<|eot|>",)),
    ChatFormat(
        "yi-1.5",
        {
            "system": ("", ""),
            "user": ("<|im_start|>user\n", "<|im_end|>\n<|im_start|>assistant\n"),
            "assistant": ("", "<|im_end|>\n"),
        },
        stop_str=("<|im_end|>",),
    ),
    ChatFormat(
        "gemma-it",
        {
            "system": ("", ""),
            "user": ("<start_of_turn>user\n", "<end_of_turn>\n"),
            "assistant": ("<start_of_turn>model\n", "<end_of_turn>\n"),
        },
    ),
    ChatFormat(
        "c4ai-command-r",
        {
            role: (f"<|START_OF_TURN_TOKEN|><|{token}_TOKEN|>", "<|END_OF_TURN_TOKEN|>")
            for role, token in zip(ROLES, ("SYSTEM", "USER", "CHATBOT"), strict=True)
        },
    ),
    _tagged(
        "granite-3-instruct",
        "<|start_of_role|>{}<|end_of_role|>",
        "<|end_of_text|>",
        stop_str=("<|end_of_text|>",),
    ),
    ChatFormat(
        "deepseek-v3",
        {"system": ("", ""), "user": ("<｜User｜>", ""), "assistant": ("<｜Assistant｜>", "<｜end▁of▁sentence｜>")},
        stop_str=("<｜end▁of▁sentence｜>",),
    ),
]
CHAT_FORMATS = {known.name: known for known in _KNOWN}

_BY_MODEL = [
    (r"deepseek-(v3|r1)(?!.*base)", "deepseek-v3"),
    (r"vicuna|llava-v1\.5", "vicuna_v1.1"),
    (r"llama-2.*chat|(mistral|mixtral).*instruct|codellama.*instruct", "llama-2-chat"),
    (r"llama-3.*instruct", "llama-3-instruct"),
    (r"llama-4.*instruct", "llama-4"),
    (r"qwen.*(chat|instruct)|qwen3", "qwen"),
    (r"yi-1\.5.*chat", "yi-1.5"),
    (r"gemma.*it", "gemma-it"),
    (r"command-r", "c4ai-command-r"),
    (r"granite.*instruct", "granite-3-instruct"),
    (r"claude", "claude"),
    (r"tinyllama|chatml", "chatml"),
]


def chat_format(name: str) -> ChatFormat:
    """Returns a known format by its name. Raises ValueError."""
    if name not in CHAT_FORMATS:
        raise ValueError(f"there is no chat format {name!r}; known are {', '.join(sorted(CHAT_FORMATS))}.")
    return CHAT_FORMATS[name]


def chat_format_of_model(model: str) -> ChatFormat:
    """Returns the format of a model by its name or path; the plain "default" for a name that says nothing."""
    for pattern, name in _BY_MODEL:
        if re.search(pattern, model, re.IGNORECASE):
            return CHAT_FORMATS[name]
    return CHAT_FORMATS["default"]
