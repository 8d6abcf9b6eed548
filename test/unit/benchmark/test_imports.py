"""Imports of our packages in benchmarks, examples and scripts name what is there: no other test runs all of them."""

import ast
import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


def missing(source: str) -> Iterator[str]:
    """`module: name` of each import from our packages that names nothing."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and str(node.module).split(".")[0] in ("mysglang", "mysgl_kernel"):
            try:
                found = importlib.util.find_spec(str(node.module))
            except ModuleNotFoundError:
                found = None
            if found is None or found.origin is None:
                yield str(node.module)
                continue
            there = names(Path(found.origin))
            yield from (f"{node.module}: {each.name}" for each in node.names if each.name not in there)


def names(file: Path) -> set[str]:
    """Names that a module defines or imports, and the modules beside a package's."""
    found = {each.stem for each in file.parent.iterdir()} if file.stem == "__init__" else set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                found.add(name)
            case ast.Name(id=name) | ast.alias(asname=None, name=name) | ast.alias(asname=str(name)):
                found.add(name)
            case ast.Constant(value=str(name)):  # a name that the package loads when it is asked for
                found.add(name)
    return found


@pytest.mark.parametrize("folder", ["benchmark", "examples", "scripts", "sgl-kernel/benchmark"])
def test_imports_name_what_is_there(folder: str) -> None:
    files = sorted((ROOT / folder).rglob("*.py"))
    found = [f"{path.relative_to(ROOT)}: {fault}" for path in files for fault in missing(path.read_text("utf-8"))]
    assert not found, "\n".join(found)


def test_an_import_of_nothing_is_found() -> None:
    source = "from mysglang.srt.errors import ConfigError, Nonsense\nfrom mysglang.nonsense import a\n"
    assert list(missing(source)) == ["mysglang.srt.errors: Nonsense", "mysglang.nonsense"]
