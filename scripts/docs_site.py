"""A MkDocs hook: the README becomes the site's first page, and links out of docs/ keep working.

Pages of docs/ link to files of the repository, such as `../benchmark/README.md`, so that the links work where the
repository is browsed. The site holds a copy of each linked file under `repo/`, and the links are rewritten to it.
A link to a file that does not exist stays as it is, and `mkdocs build --strict` reports it.
"""

from __future__ import annotations

import os
import re
from pathlib import Path, PurePosixPath
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
LINK = re.compile(r"(?P<before>\]\()(?P<target>[^)\s#]+)(?P<anchor>#[^)\s]*)?\)")
FENCE = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)
EXTRA_PAGES = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")


def on_files(files: Files, config: Any) -> Files:
    """Add the README, and each file outside docs/ that a page links to, directly or through another page."""
    waiting = [path for path in EXTRA_PAGES if (ROOT / path).is_file()]
    waiting += [f"docs/{file.src_uri}" for file in files if file.is_documentation_page()]
    seen: set[str] = set()
    while waiting:
        path = waiting.pop()
        if path in seen:
            continue
        seen.add(path)
        if files.get_file_from_path(place(path)) is None:
            files.append(File.generated(config, place(path), abs_src_path=str(ROOT / path)))
        if path.endswith(".md"):
            text = without_code((ROOT / path).read_text(encoding="utf-8"))
            waiting += [found for link in LINK.finditer(text) if (found := resolve(path, link["target"]))]
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Point each link at the place that its file has on the site."""
    uri = page.file.src_uri
    source = "README.md" if uri == "index.md" else uri.removeprefix("repo/") if is_copy(uri) else f"docs/{uri}"

    def rewrite(link: re.Match[str]) -> str:
        found = resolve(source, link["target"])
        if found is None:
            return link[0]
        there = os.path.relpath(place(found), PurePosixPath(uri).parent)
        return f"{link['before']}{there}{link['anchor'] or ''})"

    pieces, end = [], 0
    for fence in FENCE.finditer(markdown):
        pieces += [LINK.sub(rewrite, markdown[end : fence.start()]), fence[0]]
        end = fence.end()
    return "".join([*pieces, LINK.sub(rewrite, markdown[end:])])


def resolve(source: str, target: str) -> str | None:
    """The path from the repository's top of the file that `target` names in the page `source`; None for other links."""
    if ":" in target:
        return None
    path = os.path.normpath(PurePosixPath(source).parent / target)
    if (ROOT / path).is_dir():
        path = os.path.join(path, "README.md")
    return path if not path.startswith("..") and (ROOT / path).is_file() else None


def place(path: str) -> str:
    """Path of a file of the repository on the site."""
    if path == "README.md":
        return "index.md"
    return path.removeprefix("docs/") if path.startswith("docs/") else f"repo/{path}"


def is_copy(uri: str) -> bool:
    return uri.startswith("repo/")


def without_code(text: str) -> str:
    return FENCE.sub("", text)
