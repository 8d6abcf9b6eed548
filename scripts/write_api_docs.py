"""Write docs/flags.md, and the tables of docs/api.md, from the code: python scripts/write_api_docs.py"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "test")]

from fixtures import api_table, flags_page  # noqa: E402
from fixtures.scripted_engine import serve  # noqa: E402

PAGE = ROOT / "docs" / "api.md"
FLAGS = ROOT / "docs" / "flags.md"


async def main() -> None:
    FLAGS.write_text(flags_page.render(), encoding="utf-8")
    async with serve() as served:
        tables = api_table.render(served.app)
    text = PAGE.read_text(encoding="utf-8")
    before, after = text.partition(api_table.BEGIN)[0], text.partition(api_table.END)[2]
    PAGE.write_text(before + tables + after, encoding="utf-8")


if __name__ == "__main__":
    asyncio.run(main())
