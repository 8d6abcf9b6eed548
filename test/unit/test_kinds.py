"""Code of another folder never asks a layer, a pool or a manager for its class: the object itself answers what differs.

A question for a kind is `isinstance`, `issubclass`, `type(...) is`, `==` or `in`, or a class in a `case`. A Protocol is
no kind but an ability that any object may have (`FinishesWeights`), and an assertion tells mypy what the code knows.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SRT = Path(__file__).parents[2] / "python" / "mysglang" / "srt"
GUARDED = ("layers", "mem_cache", "managers", "models", "model_executor")
"""Folders of layers, of pools and of managers, and of the objects that are made of these."""
FOREIGN = "models/transformers_backend/replacing.py"
MAY_ASK = {
    (FOREIGN, "WeightParameter"): "which parameters of transformers' modules are not ours yet",
    (FOREIGN, "LinearBase"): "which modules of transformers' tree have become ours",
    (FOREIGN, "Unquantized"): "a config, by which the whole check is left out",
    ("entrypoints/talk.py", "Generation"): "a stream that has gone through no other hands yet; no manager",
}
"""(file, class) -> why this place may ask."""


def unit_of(module: str) -> str:
    """`mysglang.srt.layers.moe.experts` -> `layers`."""
    parts = module.split(".")
    return parts[2] if len(parts) > 2 else ""


def module_of(path: Path) -> str:
    return ".".join(("mysglang", "srt", *path.relative_to(SRT).with_suffix("").parts))


def imported(tree: ast.AST) -> dict[str, str]:
    """Name in the file -> `module:name` of what it was imported as."""
    return {
        alias.asname or alias.name: f"{node.module}:{alias.name}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
    }


def names_in(node: ast.expr) -> Iterator[str]:
    for inner in ast.walk(node):
        if isinstance(inner, ast.Name):
            yield inner.id
        elif isinstance(inner, ast.Attribute):
            yield inner.attr


def is_type_call(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and ast.unparse(node.func) == "type" and len(node.args) == 1


def asked(tree: ast.AST) -> Iterator[str]:
    """The names of the classes that the file asks objects for, outside assertions."""
    known = {id(inner) for node in ast.walk(tree) if isinstance(node, ast.Assert) for inner in ast.walk(node)}
    for node in ast.walk(tree):
        if id(node) in known:
            continue
        match node:
            case ast.Call(func=ast.Name(id="isinstance" | "issubclass"), args=[_, kinds]):
                yield from names_in(kinds)
            case ast.Compare(left=left, comparators=others) if any(map(is_type_call, (left, *others))):
                for other in (left, *others):
                    yield from names_in(other)
            case ast.MatchClass(cls=kind):
                yield from names_in(kind)


def abilities() -> set[str]:
    """`module:name` of every Protocol."""
    return {
        f"{module_of(path)}:{node.name}"
        for path in SRT.rglob("*.py")
        if "Protocol" in (text := path.read_text())
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.ClassDef) and any("Protocol" in ast.unparse(base) for base in node.bases)
    }


def questions(module: str, text: str, allowed: set[str]) -> list[str]:
    """The classes of guarded folders that this file, of another one, asks objects for."""
    if not any(f"mysglang.srt.{folder}" in text for folder in GUARDED):
        return []  # without parsing it, which takes longer than the rest
    tree = ast.parse(text)
    origins = imported(tree)
    found = {origins[name] for name in asked(tree) if name in origins}
    return sorted(
        each.split(":")[1]
        for each in found - allowed
        if unit_of(each.split(":")[0]) in GUARDED and unit_of(each.split(":")[0]) != unit_of(module)
    )


def test_nobody_asks_for_a_kind() -> None:
    allowed = abilities()
    found = {
        (str(path.relative_to(SRT)), name)
        for path in sorted(SRT.rglob("*.py"))
        for name in questions(module_of(path), path.read_text(), allowed)
    }
    assert found == MAY_ASK.keys()


@pytest.mark.parametrize(
    "question",
    [
        "isinstance(x, Linear)",
        "isinstance(x, int | Linear)",
        "type(x) is Linear",
        "type(x) in (Linear, int)",
        "issubclass(x, Linear)",
        "[0 for x in y if not isinstance(x, (Linear, int))]",
    ],
)
def test_a_question_is_found(question: str) -> None:
    text = f"from mysglang.srt.layers.linear import Linear\n{question}"
    assert questions("mysglang.srt.models.decoder", text, set()) == ["Linear"]
    assert not questions("mysglang.srt.layers.moe.experts", text, set())
    assert not questions("mysglang.srt.models.decoder", text, {"mysglang.srt.layers.linear:Linear"})
    assert not questions("mysglang.srt.models.decoder", text.replace("srt.layers", "srt.configs"), set())


def test_a_case_is_one_and_an_assertion_is_none() -> None:
    text = "from mysglang.srt.layers.linear import Linear\n"
    assert questions("a.b.models", text + "match x:\n    case Linear():\n        pass", set()) == ["Linear"]
    assert not questions("a.b.models", text + "assert isinstance(x, Linear)", set())
