"""The docs site builds without a warning, its links lead somewhere, and it loads nothing from other hosts."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LOADED = re.compile(r"""<(?:script|link|img|iframe)[^>]*?(?:src|href)="?(https?:)?//""", re.IGNORECASE)
CSS_LOADED = re.compile(r"""url\(["']?(https?:)?//|@import""")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env={"NO_MKDOCS_2_WARNING": "1"})
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_the_site_loads_nothing_from_other_hosts(site: Path) -> None:
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 20
    assert not [str(page) for page in pages if LOADED.search(page.read_text(encoding="utf-8"))]
    assert not [str(sheet) for sheet in site.rglob("*.css") if CSS_LOADED.search(sheet.read_text(encoding="utf-8"))]


def test_links_out_of_docs_lead_to_copies_of_the_files(site: Path) -> None:
    page = (site / "performance.html").read_text(encoding="utf-8")
    assert 'href="repo/benchmark/offline_throughput/index.html"' in page
    assert (site / "repo" / "benchmark" / "offline_throughput" / "result.png").is_file()


def test_the_first_page_is_the_readme(site: Path) -> None:
    page = (site / "index.html").read_text(encoding="utf-8")
    assert 'href="security.html"' in page, "README.md links to docs/security.md"


@pytest.mark.parametrize("tag", ['<script src="https://unpkg.com/x">', "<link rel=s href=//fonts.example/x>"])
def test_a_foreign_host_is_found(tag: str) -> None:
    assert LOADED.search(tag)


def test_a_link_that_a_reader_follows_is_not_a_load() -> None:
    assert not LOADED.search('<a href="https://example.com">')
