"""ChatTemplate: one Jinja template, compiled once. Its source shows which inputs it uses.

Rendering is bounded in work and size, and whatever goes wrong in it is the request's fault. Does not know where
templates come from, nor what they are given (`template_manager.py`).
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Literal, TypeAlias

import jinja2
from jinja2 import nodes

from mysglang.srt.errors import InvalidRequest
from mysglang.srt.parser.jinja_environment import ChatEnvironment, GuardedContext
from mysglang.srt.parser.template_guard import Guard, NotQuick, TooMuchWork
from mysglang.srt.parser.template_methods import METHODS

QUICK_UNITS = 30_000
"""Units of work (`template_guard.py`) that may be done on the event loop: some milliseconds at most."""

MAX_UNITS = 3_000_000
"""Units for a short conversation; about half a second at most."""

UNITS_PER_VALUE = 256
"""Units allowed for each value in the conversation, in addition to one for each character."""

MAX_CPU_S = 2.0
"""Seconds of processor time, however long the conversation is."""

MAX_RENDERED = 64 << 20
"""Characters; twice the largest request body."""

MAX_REASON = 1000
"""Characters of what a template says."""

ContentFormat: TypeAlias = Literal["string", "openai"]

THOUGHTS = "reasoning_content"
"""The field with the thoughts of a message."""

_OTHER_THOUGHTS = ("thinking", "reasoning")
"""Other names of it: in the templates of gpt-oss and LFM2.5, and in those that were written for vLLM."""

# Errors that a template can raise when it meets values that it did not expect.
_FAILURES = (
    jinja2.TemplateError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError,
    MemoryError,
)  # fmt: skip

TOO_MUCH = "The chat template makes too much of these messages."

# Tests by which a template distinguishes content that is a string from content that is a list.
_KIND_TESTS = {"string", "iterable", "sequence", "mapping"}


class TooMuchTemplate(InvalidRequest):
    """Raised when a template takes more time or writes more text than its conversation justifies."""


class ChatTemplate:
    """A compiled template. Raises jinja2.TemplateSyntaxError if `source` is invalid."""

    def __init__(self, source: str) -> None:
        self._environment = ChatEnvironment()
        tree, self._template = self._environment.compiled(source)
        self.content_format: ContentFormat = "openai" if _loops_over_content(tree) else "string"
        """"openai" if it takes a message's content as a list of parts, else "string"."""
        tests = list(tree.find_all(nodes.Test))
        self.takes_strings = self.content_format == "string" or any(test.name in _KIND_TESTS for test in tests)
        """True if it also takes content that is a string."""
        self.tests_no_content = any(test.name == "none" and _is_content(test.node, {"content"}) for test in tests)
        """True if it asks somewhere whether a message has no content."""
        self.source = source
        self.variables = frozenset(name.name for name in tree.find_all(nodes.Name) if name.ctx == "load")
        """Names of all variables that it uses, also under a condition only."""
        self.knows_developer = any(const.value == "developer" for const in tree.find_all(nodes.Const))
        """True if it handles "developer", OpenAI's newer name of the system role."""
        self.thought_field = _thought_field(tree, source)
        """The name of the thoughts in a message that it reads."""

    def render(
        self, variables: Mapping[str, object], *, quick: bool = False, cancelled: threading.Event | None = None
    ) -> str:
        """Renders the prompt. With `quick`, raises NotQuick if this takes longer than the event loop may be blocked.
        Setting `cancelled` ends it early. Raises InvalidRequest with the template's own message, or with the reason
        why the template failed.
        """
        allowance = None if quick else lambda: MAX_UNITS + _units(variables)
        guard = Guard(self._environment, METHODS, QUICK_UNITS, allowance, MAX_CPU_S, cancelled)
        context = self._template.new_context(dict(variables))
        assert isinstance(context, GuardedContext)
        context.guard = guard
        pieces: list[str] = []
        size = 0
        try:
            for piece in self._template.root_render_func(context):
                pieces.append(piece)
                size += len(piece)
                if size > MAX_RENDERED:
                    raise TooMuchWork
        except NotQuick:
            raise
        except TooMuchWork:
            raise TooMuchTemplate(TOO_MUCH, param="messages") from None
        except _FAILURES as error:
            reason = str(error)[:MAX_REASON]
            raise InvalidRequest(f"The chat template refuses these messages: {reason}", param="messages") from error
        return "".join(pieces)


def _units(variables: Mapping[str, object]) -> int:
    """Returns the number of work units that a conversation of this size may use."""
    units, stack = 0, list(variables.values())
    while stack:
        value = stack.pop()
        units += UNITS_PER_VALUE
        if isinstance(value, str):
            units += len(value)
        elif isinstance(value, dict):
            stack.extend(value.values())
        elif isinstance(value, list):
            stack.extend(value)
    return units


def _loops_over_content(tree: nodes.Template) -> bool:
    """True if some `for` iterates over a message's content, directly or through a variable or macro argument of that
    name.
    """
    names = {"content"}
    for assigned in tree.find_all(nodes.Assign):
        if isinstance(assigned.target, nodes.Name) and _is_content(assigned.node, names):
            names.add(assigned.target.name)
    return any(_is_content(loop.iter, names) for loop in tree.find_all(nodes.For))


def _thought_field(tree: nodes.Template, source: str) -> str:
    """Returns our name of thoughts, unless the template reads a field of another name and none of ours."""
    if THOUGHTS in source:
        return THOUGHTS
    read = {node.attr for node in tree.find_all(nodes.Getattr)}
    return next((name for name in _OTHER_THOUGHTS if name in read), THOUGHTS)


def _is_content(node: nodes.Node | None, names: set[str]) -> bool:
    match node:
        case nodes.Filter():
            return _is_content(node.node, names)
        case nodes.Getattr():
            return node.attr == "content"
        case nodes.Getitem():
            return isinstance(node.arg, nodes.Const) and node.arg.value == "content"
        case nodes.Name():
            return node.name in names
    return False
