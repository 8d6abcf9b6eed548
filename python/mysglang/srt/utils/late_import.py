"""at_first_call: a function in a table, named by its place, whose module is imported when the function is first called.

A table of kinds names all of them, and a server needs the code of one or two. Without this the server would import the
code of every kind.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from operator import attrgetter
from typing import Any


def at_first_call(place: str) -> Callable[..., Any]:
    """Returns a function that calls the one at `place`: `module:name`, or `module:Class.name`.

    The first call imports the module, so a table of such functions costs nothing. Calls raise ImportError or
    AttributeError for a wrong place.
    """
    module, _, name = place.partition(":")

    def call(*args: Any, **options: Any) -> Any:
        return attrgetter(name)(importlib.import_module(module))(*args, **options)

    return call
