"""Write the list of promises in docs/reliability.md again, from the tests: python scripts/write_promises.py"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "test"))

from fixtures import promises_page  # noqa: E402

PAGE = ROOT / "docs" / "reliability.md"


def main() -> None:
    told = promises_page.render(promises_page.load(), promises_page.marks())
    text = PAGE.read_text(encoding="utf-8")
    before, after = text.partition(promises_page.BEGIN)[0], text.partition(promises_page.END)[2]
    PAGE.write_text(before + told + after, encoding="utf-8")


if __name__ == "__main__":
    main()
