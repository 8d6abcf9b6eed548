"""Rules about the source text itself: no file outgrows its limit in silence, and nothing loads what could run code."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

REPOSITORY = Path(__file__).parents[2]
FOLDERS = ("python", "test", "sgl-kernel", "benchmark", "examples", "scripts", "docker")
SOURCE = {".py", ".cu", ".cuh", ".cpp", ".cc", ".h", ".sh", ".js"}

MAX_LINES = 500
REASON = "Long because"  # within the first lines of a longer file
REASON_WITHIN = 15

# Loading with any of these can run what the bytes say.
UNSAFE_MODULES = {"pickle", "_pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "joblib"}
UNSAFE_CALLS = {"torch.load", "torch.jit.load", "torch.package.PackageImporter", "yaml.unsafe_load"}
UNSAFE_METHODS = {"recv_pyobj", "send_pyobj"}  # of a ZMQ socket


def source_files(suffixes: set[str]) -> list[Path]:
    files = (path for folder in FOLDERS for path in (REPOSITORY / folder).rglob("*") if path.suffix in suffixes)
    return sorted(path for path in files if path.is_file())


def too_long(text: str) -> bool:
    lines = text.splitlines()
    return len(lines) > MAX_LINES and not any(REASON in line for line in lines[:REASON_WITHIN])


def unsafe_loading(text: str) -> Iterator[str]:
    """Each place that imports or calls something that loads objects by running code, as `line: what`."""
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Import():
                names = [alias.name for alias in node.names]
            case ast.ImportFrom():
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            case ast.Attribute(attr=attr):
                names = [attr if attr in UNSAFE_METHODS else ast.unparse(node)]
            case ast.keyword(arg="allow_pickle", value=ast.Constant(value=True)):
                names = ["allow_pickle"]
            case _:
                continue
        for name in names:
            if name.split(".")[0] in UNSAFE_MODULES or name in UNSAFE_CALLS | UNSAFE_METHODS | {"allow_pickle"}:
                yield f"{node.lineno}: {name}"


def pages_in(nav: object) -> Iterator[str]:
    """The pages that the `nav` of mkdocs.yml names, at any depth."""
    match nav:
        case str():
            yield nav
        case list():
            yield from (page for entry in nav for page in pages_in(entry))
        case dict():
            yield from (page for entry in nav.values() for page in pages_in(entry))


def relative(path: Path) -> str:
    return str(path.relative_to(REPOSITORY))


def test_files_are_short_or_say_why() -> None:
    assert not [relative(path) for path in source_files(SOURCE) if too_long(path.read_text(encoding="utf-8"))]


def test_every_page_of_docs_is_in_the_nav_of_the_site() -> None:
    nav = yaml.safe_load((REPOSITORY / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]
    docs = REPOSITORY / "docs"
    missing = {str(page.relative_to(docs)) for page in docs.rglob("*.md")} - set(pages_in(nav))
    assert not missing, "each page of docs/ needs a line under `nav` in mkdocs.yml"


@pytest.mark.promise(37)
def test_nothing_loads_code() -> None:
    found = [(relative(path), place) for path in source_files({".py"}) for place in unsafe_loading(path.read_text())]
    assert not found


@pytest.mark.parametrize(
    "text",
    [
        "import pickle",
        "import dill as d",
        "def f():\n    from marshal import loads",
        "import torch\nw = torch.load('x', weights_only=True)",
        "from torch import load",
        "socket.recv_pyobj()",
        "numpy.load('x', allow_pickle=True)",
    ],
)
def test_unsafe_loading_is_found(text: str) -> None:
    assert list(unsafe_loading(text))


def test_safe_loading_is_not() -> None:
    assert not list(
        unsafe_loading("import json\njson.load(f)\nfrom safetensors.torch import load_file\nload_file('x')")
    )


def test_a_long_file_needs_a_reason() -> None:
    body = "x = 1\n" * MAX_LINES
    assert not too_long(body)
    assert too_long(body + "y = 2\n")
    assert not too_long('"""A table. Long because it is one."""\n' + body)
