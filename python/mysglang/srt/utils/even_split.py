"""even_run: divides a sequence among several parts as evenly as possible."""

from __future__ import annotations


def even_run(count: int, part: int, parts: int) -> range:
    """Returns the indices, out of 0 … count - 1, that belong to one of `parts`. The first parts have one more where
    `parts` does not divide `count`.
    """
    each, more = divmod(count, parts)
    begin = part * each + min(part, more)
    return range(begin, begin + each + (part < more))
