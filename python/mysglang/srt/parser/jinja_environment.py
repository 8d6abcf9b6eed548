"""The environment that chat templates run in. It has the functions that transformers offers to templates, and no access
beyond it.

A template comes with a model or from the operator, and works on what a client sent. So it cannot touch Python's
insides, and whatever it does is paid for out of a Guard's limit. Knows no message.
"""

from __future__ import annotations

from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from mysglang.srt.parser.template_code import MAX_SOURCE, GuardedCode, check_tree
from mysglang.srt.parser.template_filters import FILTERS, GLOBALS, TESTS
from mysglang.srt.parser.template_guard import Guard

_COMPILE_FAILURES = (SyntaxError, RecursionError, MemoryError, ValueError, OverflowError)


class GenerationTag(Extension):
    """A template tag: `{% generation %}` marks what the model wrote, for training. Here its body is rendered
    unchanged.
    """

    tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body).set_lineno(line)


class GuardedContext(Context):
    """The variables of one rendering, and its guard."""

    guard: Guard


class ChatEnvironment(ImmutableSandboxedEnvironment):
    """Jinja with transformers' settings, filters and functions, and a guard around all of them."""

    code_generator_class = GuardedCode
    context_class = GuardedContext

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, optimized=False, extensions=[GenerationTag, "jinja2.ext.loopcontrols"]
        )
        self.filters = dict(FILTERS)
        self.tests = dict(TESTS)
        self.globals = dict(GLOBALS)

    def compiled(self, source: str) -> tuple[nodes.Template, jinja2.Template]:
        """Returns the tree and the template. Raises TemplateSyntaxError, also for a template that is too large to
        compile.
        """
        if len(source) > MAX_SOURCE:
            raise jinja2.TemplateSyntaxError(f"it has {len(source)} characters, and the limit is {MAX_SOURCE}", 1)
        try:
            tree = self.parse(source)
            check_tree(tree)
            # The generator changes the tree that it is given.
            template = jinja2.Template.from_code(self, self.compile(self.parse(source)), self.globals)
        except _COMPILE_FAILURES as error:
            raise jinja2.TemplateSyntaxError(f"Jinja cannot compile it: {error}", 1) from error
        return tree, template

    def getitem(self, obj: Any, argument: Any) -> Any:
        """Follows one step of an attribute's path in a filter. Each part of the path is short."""
        try:
            return obj[argument]
        except (TypeError, LookupError):
            readable = isinstance(obj, (Namespace, tuple)) and isinstance(argument, str) and argument[:1] != "_"
            undefined = self.undefined(None, obj, argument)
            return getattr(obj, argument, undefined) if readable else undefined
