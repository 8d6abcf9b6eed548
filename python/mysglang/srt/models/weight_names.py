"""Maps the names in a checkpoint to the parameters of a model. A model declares the table."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple, Protocol

from mysglang.srt.configs.checkpoint_tensors import renaming

KV_SCALES = (
    ".k_scale",
    ".v_scale",
    ".kv_scale",
    ".q_scale",
    ".prob_scale",
    ".k_proj.output_scale",
    ".v_proj.output_scale",
)
"""Endings of tensors that are scales of what attention quantizes, and no weights: those of keys and values are read
apart (`model_loader/kv_scales.py`), and queries are never quantized."""

_EXPERT = re.compile(r"(.+\.experts)\.(0|[1-9]\d{0,5})\.(.+)", re.ASCII)


class Target(NamedTuple):
    """Destination of a checkpoint tensor."""

    parameter: str
    section: int | None
    """Which of the parameter's sections it is; None for all of it."""


class Names(Protocol):
    """Names of the tensors in a checkpoint, for each parameter."""

    def sections(self, parameter: str, count: int) -> list[str]:
        """Returns the names of the `count` checkpoint tensors that a parameter is made of; its own if it is one."""
        ...

    def target(self, name: str) -> Target:
        """Returns the parameter, and the section of it, for a checkpoint tensor of this name. The parameter need not
        exist.
        """
        ...


class WeightNames:
    """Names of checkpoints and ours. stacked: a projection of ours -> those of the checkpoint in it, in order.

    `{"qkv_proj": ("q_proj", "k_proj", "v_proj")}` sends `layers.0.self_attn.k_proj.bias` to section 1 of
    `layers.0.self_attn.qkv_proj.bias`. renamed: parts of a name, with dots between them -> what they are called here.
    aliases: further such names, which are read and never reported. The names of the transformer's own parts carry a
    prefix, which ours do not; a checkpoint without it is as good.

    experts: a parameter of ours that holds a matrix of every expert -> the tensors of one expert in it, in order.
    `{"w13_weight": ("gate_proj.weight", "up_proj.weight")}` sends `layers.0.mlp.experts.3.up_proj.weight` to section 3
    * 2 + 1 of `layers.0.mlp.experts.w13_weight`.
    """

    def __init__(
        self,
        stacked: Mapping[str, tuple[str, ...]],
        renamed: Mapping[str, str],
        *,
        experts: Mapping[str, tuple[str, ...]] | None = None,
        aliases: Mapping[str, str] | None = None,
        prefixes: tuple[str, ...] = ("model.",),
    ) -> None:
        self._prefixes = prefixes
        self._to_ours = renaming((*renamed.items(), *(aliases or {}).items()))
        self._to_theirs = renaming(tuple((here, there) for there, here in renamed.items()))
        self._experts = experts or {}
        self._expert_parts = {part: (name, i) for name, parts in self._experts.items() for i, part in enumerate(parts)}
        self._sections = {part: (name, i) for name, parts in stacked.items() for i, part in enumerate(parts)}

    def sections(self, parameter: str, count: int) -> list[str]:
        """Returns the checkpoint tensors that hold the sections of a parameter, by name without the prefix, [count].
        One tensor may hold all of them.
        """
        parts, theirs = parameter.split("."), self._to_theirs(parameter).split(".")
        if (of_expert := self._experts.get(theirs[-1])) is not None:
            module = parameter.removesuffix(f".{theirs[-1]}")
            experts = range(count // len(of_expert))
            return [self._to_theirs(f"{module}.{expert}.{part}") for expert in experts for part in of_expert]
        found = [parameter] * count
        for name, (stacked, section) in self._sections.items():
            # If the stacked projection has a name of its own in the checkpoint, it is one tensor there.
            if section < count and stacked in parts and stacked in theirs:
                found[section] = ".".join(name if part == stacked else part for part in parts)
        return [self._to_theirs(name) for name in found]

    def target(self, name: str) -> Target:
        """Returns the parameter, and the section of it, for a checkpoint tensor of this name. A section of an expert
        need not exist.
        """
        name = self._to_ours(self._own(name))
        expert = _EXPERT.fullmatch(name)
        if expert is not None and expert[3] in self._expert_parts:
            matrix, place = self._expert_parts[expert[3]]
            return Target(f"{expert[1]}.{matrix}", int(expert[2]) * len(self._experts[matrix]) + place)
        parts = name.split(".")
        for at, part in enumerate(parts):
            if part in self._sections:
                stacked, section = self._sections[part]
                return Target(".".join([*parts[:at], stacked, *parts[at + 1 :]]), section)
        return Target(".".join(parts), None)

    def _own(self, name: str) -> str:
        """Returns the name without the first of the prefixes that it has."""
        prefix = next((prefix for prefix in self._prefixes if name.startswith(prefix)), "")
        return name.removeprefix(prefix)
