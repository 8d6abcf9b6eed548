"""Write docs/models.md from the registry of architectures: python scripts/write_models_page.py"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "test")]

from fixtures import models_page  # noqa: E402

if __name__ == "__main__":
    (ROOT / "docs" / "models.md").write_text(models_page.render(), encoding="utf-8")
