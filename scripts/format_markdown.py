"""Fill the long lines of all Markdown pages: python scripts/format_markdown.py [--check]"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "test"))

from fixtures.markdown import fill  # noqa: E402


def main() -> int:
    """Write the pages again, or with --check only name those that would change. Status 1 if a check names any."""
    check = "--check" in sys.argv[1:]
    found = subprocess.run(["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True)
    changed = 0
    for name in found.stdout.splitlines():
        page = ROOT / name
        text = page.read_text(encoding="utf-8")
        if (filled := fill(text)) != text:
            changed += 1
            print(f"{name}: {'has lines that are too long; make format' if check else 'filled'}")
            if not check:
                page.write_text(filled, encoding="utf-8")
    return 1 if check and changed else 0


if __name__ == "__main__":
    sys.exit(main())
