"""The form of an error by the path of its request, whichever part reports the error."""

from __future__ import annotations

from collections.abc import Mapping

from mysglang.srt.entrypoints.error_responses import NATIVE_SHAPE, ErrorShape


def shape_of(path: str, shapes: Mapping[str, ErrorShape]) -> ErrorShape:
    """Returns the shape of errors under `path`: that of the first prefix in `shapes` that fits, cut at a slash. Where
    none fits, it is the native one.
    """
    for prefix, shape in shapes.items():
        if path.startswith(prefix) and path[len(prefix) : len(prefix) + 1] in ("", "/"):
            return shape
    return NATIVE_SHAPE
