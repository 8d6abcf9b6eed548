"""WeightVersion: the name of the weights that are served, told with whatever they compute."""

from __future__ import annotations

from mysglang.srt.messages.weights import FIRST_VERSION


class WeightVersion:
    """Changes when the weights do."""

    __slots__ = ("name",)

    def __init__(self, name: str = FIRST_VERSION) -> None:
        self.name = name
