"""BatchEndpoints: the routes that a batch may name, each as a function from a body to an answer.

A server without a folder for batches makes them, too; it imports nothing else of batches.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from mysglang.srt.messages.generate import REFUSED, FieldReport

Answer = Callable[[dict[str, object]], Awaitable[dict[str, object]]]
"""A route's function from a body to an answer. Raises the exceptions that `error_responses` maps."""


@dataclass(frozen=True, slots=True)
class BatchEndpoints:
    """The endpoints that a batch may name, and the name of the served model."""

    model: str
    answers: Mapping[str, Answer]
    """The functions that answer, by path."""
    fields: FieldReport = REFUSED
    """Called for unknown fields of a line outside of its body."""
