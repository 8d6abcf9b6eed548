"""How much longer the steps of a tokenizer.json can make a text. Each step is small, and together they are exponential:
thirty that double a text make gigabytes of a greeting.
"""

from __future__ import annotations

import math

MAX_GROWTH = 64.0
"""Times. Tokenizers in use make a text at most a few times longer."""

MAX_PREPENDED = 256
"""Characters that a step may put before a text."""


def growth(step: object) -> float:
    """The most by which a normalizer or decoder makes a text longer, as a factor; infinite above all bounds.

    Counts only what a file can make as large as it likes. What is malformed counts as 1: the library refuses it.
    """
    if not isinstance(step, dict):
        return 1.0
    parts = next((step[name] for name in ("normalizers", "decoders") if isinstance(step.get(name), list)), None)
    if parts is not None:
        total = 1.0
        for part in parts:
            total = min(total * growth(part), math.inf)
        return total
    prepended = step.get("prepend")
    if isinstance(prepended, str) and len(prepended) > MAX_PREPENDED:
        return math.inf
    content, pattern = step.get("content"), step.get("pattern")
    if step.get("type") != "Replace" or not isinstance(content, str) or not isinstance(pattern, dict):
        return 1.0
    plain = pattern.get("String")
    if isinstance(plain, str) and plain:
        return max(1.0, len(content) / len(plain))
    # An expression may match between any two characters.
    return len(content) + 1.0
