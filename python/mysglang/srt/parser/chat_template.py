"""ChatTemplate: one Jinja template, compiled once; what it wants is read from its source.

Rendering is bounded in time and size, and whatever goes wrong in it is the request's fault. Does not know where
templates come from, nor what they are given (`template_manager.py`).
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Literal, TypeAlias

import jinja2
from jinja2 import nodes

from mysglang.srt.errors import InvalidRequest
from mysglang.srt.parser.jinja_environment import chat_environment

MAX_RENDER_S = 2.0
"""A conversation that fills the largest context takes some milliseconds."""

MAX_RENDERED = 64 << 20
"""Characters; twice the largest request body."""

ContentFormat: TypeAlias = Literal["string", "openai"]

# What a template can raise when it meets values that it did not expect.
_FAILURES = (jinja2.TemplateError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError)

# By one of these a template tells a content that is a string from one that is a list.
_KIND_TESTS = {"string", "iterable", "sequence", "mapping"}


class ChatTemplate:
    """A compiled template. Raises jinja2.TemplateSyntaxError if `source` is none."""

    def __init__(self, source: str) -> None:
        environment = chat_environment()
        tree = environment.parse(source)
        self._template = environment.from_string(source)
        self.content_format: ContentFormat = "openai" if _loops_over_content(tree) else "string"
        """Whether it takes a message's content as a list of parts, or only as a string."""
        tests = {test.name for test in tree.find_all(nodes.Test)}
        self.takes_strings = self.content_format == "string" or not tests.isdisjoint(_KIND_TESTS)
        """Whether it takes a content that is a string, too."""
        self.source = source
        self.variables = frozenset(name.name for name in tree.find_all(nodes.Name) if name.ctx == "load")
        """What it asks for, if only under some condition."""
        self.knows_developer = "developer" in source
        """Whether it has a word for OpenAI's newer name of the system role."""

    def render(self, variables: Mapping[str, object]) -> str:
        """The prompt. Raises InvalidRequest with the template's own words, or what it stumbled over."""
        pieces: list[str] = []
        size, deadline = 0, time.monotonic() + MAX_RENDER_S
        try:
            for piece in self._template.generate(variables):
                pieces.append(piece)
                size += len(piece)
                if size > MAX_RENDERED or time.monotonic() > deadline:
                    raise InvalidRequest("The chat template makes too much of these messages.", param="messages")
        except _FAILURES as error:
            raise InvalidRequest(f"The chat template refuses these messages: {error}", param="messages") from error
        return "".join(pieces)


def _loops_over_content(tree: nodes.Template) -> bool:
    """Whether some `for` goes over a message's content, directly or by a variable or macro argument of that name."""
    names = {"content"}
    for assigned in tree.find_all(nodes.Assign):
        if isinstance(assigned.target, nodes.Name) and _is_content(assigned.node, names):
            names.add(assigned.target.name)
    return any(_is_content(loop.iter, names) for loop in tree.find_all(nodes.For))


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
