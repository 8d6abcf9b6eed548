"""Stages of a pipeline: which layers of a model are built here. `WholeModel` is the null stage that has them all."""

from __future__ import annotations

from typing import Protocol

from mysglang.srt.distributed.ranks import Place


class Stage(Protocol):
    """A run of consecutive layers."""

    def layers(self, count: int) -> range:
        """The indices, out of 0 … count - 1, of the layers that stand in this stage."""
        ...


class WholeModel:
    """The null stage: every layer is here."""

    def layers(self, count: int) -> range:
        return range(count)


WHOLE_MODEL = WholeModel()


def stage_of(place: Place) -> Stage:
    """The layers of the rank with that place among the stages."""
    assert place.size == 1, "options for several ranks are refused"
    return WHOLE_MODEL
