"""From the names in a checkpoint to the parameters of a model: the table that a model declares, applied once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Target(NamedTuple):
    """Where a checkpoint tensor goes."""

    parameter: str
    section: int | None
    """Which of the parameter's sections it is; None for all of it."""


class WeightNames:
    """stacked: a projection of ours -> those of the checkpoint in it, in order.

    `{"qkv_proj": ("q_proj", "k_proj", "v_proj")}` sends `layers.0.self_attn.k_proj.bias` to section 1 of
    `layers.0.self_attn.qkv_proj.bias`. renamed: a part of a name -> what it is called here. The names of the
    transformer's own parts carry a prefix, which ours do not; a checkpoint without it is as good.
    """

    def __init__(
        self, stacked: Mapping[str, tuple[str, ...]], renamed: Mapping[str, str], *, prefix: str = "model."
    ) -> None:
        self._prefix = prefix
        self._renamed = renamed
        self._sections = {part: (name, i) for name, parts in stacked.items() for i, part in enumerate(parts)}

    def sections(self, parameter: str, count: int) -> list[str]:
        """The names of the `count` checkpoint tensors that a parameter is made of, without the prefix; its own if it
        is one.
        """
        parts = parameter.split(".")
        found = [""] * count
        for name, (stacked, section) in self._sections.items():
            if count > 1 and stacked in parts:
                found[section] = ".".join(name if part == stacked else part for part in parts)
        return found if count > 1 else [parameter]

    def target(self, name: str) -> Target:
        """The parameter, and the section of it, that a checkpoint tensor of this name is."""
        parts = [self._renamed.get(part, part) for part in name.removeprefix(self._prefix).split(".")]
        for at, part in enumerate(parts):
            if part in self._sections:
                stacked, section = self._sections[part]
                return Target(".".join([*parts[:at], stacked, *parts[at + 1 :]]), section)
        return Target(".".join(parts), None)
