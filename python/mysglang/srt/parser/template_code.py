"""GuardedCode: Jinja's code generator, with a price on all that a template does.

Every turn of a loop and every call of a macro pays for the nodes of its body; operators, attributes, calls and texts
go through the Guard. Nothing is computed while a template is compiled. What has no place in a chat template, or is too
large to compile quickly, is refused by `check_tree`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame, MacroRef

MAX_SOURCE = 128 << 10
"""Characters of a template. The largest in use have about 30,000."""
MAX_NODES = 12_000
"""Jinja takes about 0.1 ms for each."""
MAX_DEPTH = 150
"""Nodes inside each other; Python itself takes at most 100 blocks and 200 brackets."""
MAX_SCOPES = 20
"""Loops, macros and the like inside each other: Jinja looks through the body of each again."""
MAX_NAMES = 300
"""Different names in a template: Jinja copies the table of them for every branch."""

CALL_PRICE, MACRO_PRICE = 6, 24
"""Units that a call costs, and additional units of a macro call. Every other node costs one unit."""

_CALLS = (nodes.Call, nodes.Filter, nodes.Test)
_SCOPES = (nodes.For, nodes.Macro, nodes.CallBlock, nodes.FilterBlock, nodes.AssignBlock, nodes.With, nodes.Scope)
_FOREIGN = (nodes.Extends, nodes.Block, nodes.Include, nodes.Import, nodes.FromImport)
_VERBS = "add sub mul div floordiv pow mod compare chain contains cut built key spread text tilde attr item method call"
_PLAIN_COMPARES = frozenset({"eq", "ne", "lt", "lteq", "gt", "gteq"})
_SIGNS = {"eq": "==", "ne": "!=", "lt": "<", "lteq": "<=", "gt": ">", "gteq": ">="}


def check_tree(tree: nodes.Template) -> None:
    """Raises TemplateSyntaxError for a template that cannot be compiled here."""
    count = 0
    names: set[str] = set()
    stack: list[tuple[nodes.Node, int, int]] = [(tree, 0, 0)]
    while stack:
        node, depth, scopes = stack.pop()
        count += 1
        if isinstance(node, _FOREIGN):
            raise jinja2.TemplateSyntaxError("a chat template has no other templates or blocks", node.lineno)
        if isinstance(node, nodes.Name):
            names.add(node.name)
        scopes += isinstance(node, _SCOPES)
        if depth > MAX_DEPTH or scopes > MAX_SCOPES:
            raise jinja2.TemplateSyntaxError("it is nested too deeply", node.lineno)
        if count > MAX_NODES or len(names) > MAX_NAMES:
            raise jinja2.TemplateSyntaxError("it is too large", node.lineno)
        stack.extend((child, depth + 1, scopes) for child in node.iter_child_nodes())


def _binary(verb: str) -> Callable[[GuardedCode, nodes.BinExpr, Frame], None]:
    def visit(self: GuardedCode, node: nodes.BinExpr, frame: Frame) -> None:
        self._call(verb, [node.left, node.right], frame)

    return visit


class GuardedCode(CodeGenerator):
    """Generates Python code that calls a Guard, from a tree that has passed `check_tree`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._verbs: dict[int, str] = {}
        """Node id -> text that is written before the node; a bracket closes it."""
        self._prices: dict[int, int] = {}
        """Id of a body's list -> its price."""

    def write_commons(self) -> None:
        super().write_commons()
        self.writeline("guard = context.guard")
        self.writeline("concat, spend = guard.concat, guard.spend")
        verbs = _VERBS.split()
        self.writeline(f"{', '.join(verbs)} = {', '.join(f'guard.{verb}' for verb in verbs)}")

    def visit(self, node: nodes.Node, *args: Any, **kwargs: Any) -> Any:
        verb = self._verbs.pop(id(node), None)
        if verb is None:
            return super().visit(node, *args, **kwargs)
        self.write(verb)
        super().visit(node, *args, **kwargs)
        self.write(")")
        return None

    # -- bodies that run many times

    def blockvisit(self, body: Iterable[nodes.Node], frame: Frame) -> None:
        price = self._prices.pop(id(body), None)
        if price is not None:
            self.writeline(f"spend({price})")
        super().blockvisit(body, frame)

    def visit_For(self, node: nodes.For, frame: Frame) -> None:
        self._prices[id(node.body)] = _price(node.body)
        if node.test is not None:
            self._verbs[id(node.test)] = f"(spend({_price([node.test])}) or "
        super().visit_For(node, frame)

    def macro_body(self, node: nodes.Macro | nodes.CallBlock, frame: Frame) -> tuple[Frame, MacroRef]:
        self._prices[id(node.body)] = _price(node.body) + MACRO_PRICE
        return super().macro_body(node, frame)

    # -- what is written out

    def _output_child_to_const(self, node: nodes.Expr, frame: Frame, finalize: Any) -> str:
        if not isinstance(node, (nodes.TemplateData, nodes.Const)):
            raise nodes.Impossible
        return super()._output_child_to_const(node, frame, finalize)

    def _output_child_pre(self, node: nodes.Expr, frame: Frame, finalize: Any) -> None:
        self.write("text(")

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:
        self._call("tilde", node.nodes, frame)

    # -- operators

    def visit_Add(self, node: nodes.BinExpr, frame: Frame) -> None:
        operands: list[nodes.Expr] = []
        left: nodes.Expr = node
        while isinstance(left, nodes.Add):
            operands.append(left.right)
            left = left.left
        self._call("add", [left, *reversed(operands)], frame)

    visit_Sub = _binary("sub")
    visit_Mul = _binary("mul")
    visit_Div = _binary("div")
    visit_FloorDiv = _binary("floordiv")
    visit_Pow = _binary("pow")
    visit_Mod = _binary("mod")

    def visit_Compare(self, node: nodes.Compare, frame: Frame) -> None:
        kinds = [operand.op for operand in node.ops]
        values = [node.expr, *(operand.expr for operand in node.ops)]
        if len(kinds) > 1:
            self._call("chain", values, frame, repr(tuple(kinds)))
        elif kinds[0] in _PLAIN_COMPARES and any(isinstance(value, nodes.Const) for value in values):
            # A constant ends the comparison after its own length.
            self.write("(")
            self.visit(values[0], frame)
            self.write(f" {_SIGNS[kinds[0]]} ")
            self.visit(values[1], frame)
            self.write(")")
        else:
            self._call("compare", values, frame, repr(kinds[0]))

    # -- values

    def visit_List(self, node: nodes.List, frame: Frame) -> None:
        self._built(super().visit_List, node, frame)

    def visit_Tuple(self, node: nodes.Tuple, frame: Frame) -> None:
        if node.ctx != "load":
            super().visit_Tuple(node, frame)
        else:
            self._built(super().visit_Tuple, node, frame)

    def visit_Dict(self, node: nodes.Dict, frame: Frame) -> None:
        for pair in node.items:
            if not isinstance(pair.key, nodes.Const):
                self._verbs[id(pair.key)] = "key("
        self._built(super().visit_Dict, node, frame)

    def visit_Getattr(self, node: nodes.Getattr, frame: Frame) -> None:
        self._call("attr", [node.node], frame, after=f", {node.attr!r}")

    def visit_Getitem(self, node: nodes.Getitem, frame: Frame) -> None:
        if isinstance(node.arg, nodes.Slice):
            self._call("cut", [node.node, node.arg.start, node.arg.stop, node.arg.step], frame)
        else:
            self._call("item", [node.node, node.arg], frame)

    def visit_Call(self, node: nodes.Call, frame: Frame, forward_caller: bool = False) -> None:
        if isinstance(node.node, nodes.Getattr):
            self.write("method(")
            self.visit(node.node.node, frame)
            self.write(f", {node.node.attr!r}")
        else:
            self.write("call(")
            self.visit(node.node, frame)
        self.signature(node, frame, {"caller": "caller"} if forward_caller else None)
        self.write(")")

    def signature(self, node: Any, frame: Frame, extra_kwargs: Any = None) -> None:
        for spread in (node.dyn_args, node.dyn_kwargs):
            if spread is not None:
                self._verbs[id(spread)] = "spread("
        super().signature(node, frame, extra_kwargs)

    # -- writing

    def _call(
        self, verb: str, values: Iterable[nodes.Node | None], frame: Frame, first: str = "", after: str = ""
    ) -> None:
        self.write(f"{verb}({first}")
        begun = bool(first)
        for value in values:
            if begun:
                self.write(", ")
            begun = True
            if value is None:
                self.write("None")
            else:
                self.visit(value, frame)
        self.write(f"{after})")

    def _built(self, write: Any, node: Any, frame: Frame) -> None:
        constant = all(isinstance(child, nodes.Const) for child in node.iter_child_nodes())
        if not constant:
            self.write("built(")
        write(node, frame)
        if not constant:
            self.write(")")


def _price(body: Iterable[nodes.Node]) -> int:
    """Returns the cost of running a body once: each of its nodes, including those of the bodies inside it."""
    price, stack = 1, list(body)
    while stack:
        node = stack.pop()
        price += CALL_PRICE if isinstance(node, _CALLS) else 1
        stack.extend(node.iter_child_nodes())
    return price
