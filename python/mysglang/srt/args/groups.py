"""All groups of options side by side, and the way from flat names to them.

A new option is one line in its group. Knows no command line and no hardware.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Any, TypeVar

from mysglang.srt.args.field import Option, flag_of, options
from mysglang.srt.args.grammar import GrammarArgs
from mysglang.srt.args.hicache import HicacheArgs
from mysglang.srt.args.kernels import KernelArgs
from mysglang.srt.args.memory import MemoryArgs
from mysglang.srt.args.model import ModelArgs
from mysglang.srt.args.observability import ObservabilityArgs
from mysglang.srt.args.parallel import ParallelArgs
from mysglang.srt.args.schedule import ScheduleArgs
from mysglang.srt.args.serving import ServingArgs
from mysglang.srt.args.sglang_flags import SGLANG_OPTIONS, WHY_NOT
from mysglang.srt.args.speculative import SpeculativeArgs
from mysglang.srt.args.storage import StorageArgs
from mysglang.srt.args.vllm_flags import VLLM_OPTIONS
from mysglang.srt.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class ArgGroups:
    """All groups of server options, in the order in which `resolve` fills in their defaults."""

    parallel: ParallelArgs = field(default_factory=ParallelArgs)
    model: ModelArgs = field(default_factory=ModelArgs)
    schedule: ScheduleArgs = field(default_factory=ScheduleArgs)
    kernels: KernelArgs = field(default_factory=KernelArgs)
    speculative: SpeculativeArgs = field(default_factory=SpeculativeArgs)
    grammar: GrammarArgs = field(default_factory=GrammarArgs)
    memory: MemoryArgs = field(default_factory=MemoryArgs)
    hicache: HicacheArgs = field(default_factory=HicacheArgs)
    serving: ServingArgs = field(default_factory=ServingArgs)
    storage: StorageArgs = field(default_factory=StorageArgs)
    observability: ObservabilityArgs = field(default_factory=ObservabilityArgs)

    def flat(self) -> dict[str, Any]:
        """Returns the value of every option by its name, without groups."""
        return {
            option.name: getattr(getattr(self, group), option.name)
            for group, members in group_options().items()
            for option in members
        }

    def bad_values(self) -> Iterator[str]:
        """Yields one line for each option whose value has the wrong type or is out of range."""
        for group, members in group_options().items():
            for option in members:
                if complaint := option.complaint(getattr(getattr(self, group), option.name)):
                    yield complaint


GROUP_TITLES = {
    "parallel": "Devices",
    "model": "Model and weights",
    "schedule": "Scheduling",
    "kernels": "Kernels and CUDA graphs",
    "speculative": "Speculative decoding",
    "grammar": "Structured output",
    "memory": "KV cache memory",
    "hicache": "Hierarchical cache",
    "serving": "HTTP server, access and answers",
    "storage": "Files and batches",
    "observability": "Logs, metrics and traces",
}
"""Group -> its heading in `--help` and in docs/flags.md."""

Groups = TypeVar("Groups", bound=ArgGroups)


@cache
def group_options() -> dict[str, list[Option]]:
    """Returns the options of each group: group name -> options."""
    defaults = ArgGroups()
    return {group.name: options(type(getattr(defaults, group.name))) for group in fields(ArgGroups)}


@cache
def _homes() -> dict[str, tuple[str, Option]]:
    """Returns where each option is: name or alias -> (group, option)."""
    return {
        name: (group, option)
        for group, members in group_options().items()
        for option in members
        for name in (option.name, *option.aliases)
    }


def option_named(name: str) -> Option | None:
    """Returns the option of this name or alias, with dashes or underscores; None if there is none."""
    home = _homes().get(name.replace("-", "_"))
    return None if home is None else home[1]


def from_flat(kind: type[Groups], values: Mapping[str, Any]) -> Groups:
    """Builds the groups from options by name. Raises ConfigError with a line for each name that is unknown or not
    supported.

    An option of SGLang that is not supported may be given as None or False: that asks for nothing.
    """
    by_group: dict[str, dict[str, Any]] = {}
    problems: list[str] = []
    for name, value in values.items():
        if home := _homes().get(name):
            group, option = home
            by_group.setdefault(group, {})[option.name] = tuple(value) if isinstance(value, list) else value
        elif value not in (None, False) or name not in SGLANG_OPTIONS:
            problems.append(unknown(name))
    if problems:
        raise ConfigError(*problems)
    defaults = kind()
    return kind(**{group: type(getattr(defaults, group))(**given) for group, given in by_group.items()})


def unknown(name: str) -> str:
    """Returns the line that says why the option `name` (with dashes or underscores) cannot be given."""
    name = name.lstrip("-").replace("-", "_")
    if name in SGLANG_OPTIONS:
        reason = f": {WHY_NOT[name]}." if name in WHY_NOT else "."
        return f"{flag_of(name)} is an option of SGLang that this version of mysglang does not support{reason}"
    if name in VLLM_OPTIONS:
        return f"{flag_of(name)} is an option of vLLM: {VLLM_OPTIONS[name]}."
    own, foreign = [*_homes()], [*sorted(SGLANG_OPTIONS), *VLLM_OPTIONS]
    for known in (_longer(name, own), _longer(name, foreign), _similar(name, own), _similar(name, foreign)):
        if known and known[0] in own:
            return f"{flag_of(name)} is not an option; did you mean {' or '.join(map(flag_of, known))}?"
        if known:
            return f"{flag_of(name)} is not an option. {unknown(known[0])}"
    return f"{flag_of(name)} is not an option; --help lists the options."


_FLAG = re.compile(r"(?<![\w/.-])--([a-z][a-z0-9-]*[a-z0-9])")


def as_keywords(text: str) -> str:
    """Returns a message for a caller in Python: flags of options, such as `--model-path`, are keyword arguments."""
    text = text.replace("; --help lists the options.", "; docs/flags.md lists the options.")
    return _FLAG.sub(lambda found: found[1].replace("-", "_"), text)


def _longer(name: str, known: Sequence[str]) -> list[str]:
    """Returns up to three of the `known` names that begin with `name`."""
    return [longer for longer in known if longer.startswith(name)][:3]


def _similar(name: str, known: Sequence[str]) -> list[str]:
    """Returns up to three of the `known` names that `name` may be a misspelling of."""
    return difflib.get_close_matches(name, known, n=3, cutoff=0.6)
