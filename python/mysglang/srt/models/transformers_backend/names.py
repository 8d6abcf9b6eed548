"""Maps a checkpoint's tensors to the parameters of a model of transformers, by transformers' own table of names.

The table renames tensors, and makes one parameter of the matrices of all experts; another conversion is refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from transformers import PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import (
    Concatenate,
    MergeModulelist,
    WeightConverter,
    WeightRenaming,
    rename_source_key,
)

from mysglang.srt.models.transformers_backend.probe import Refused
from mysglang.srt.models.weight_names import Target

TABLES = {"rotary_emb.inv_freq": r"rotary_emb\.inv_freq$", "position_ids": r"(^|\.)position_ids$"}
"""Ending of a buffer's name in a model -> pattern of names that old checkpoints have for it, often in each layer. The
model computes these tables, and transformers does not load them.
"""


class ForeignNames:
    """Weight names of a model that runs with transformers' code (a `weight_names.Names`)."""

    def __init__(self, model: PreTrainedModel, renamed: Mapping[str, Target], within: str) -> None:
        """`model`: the model before any of its modules is replaced. `renamed`: new names of parameters that change
        theirs; entries may be added later. `within`: the name of the module that has the model. Raises Refused.
        """
        check_conversions(model)
        transforms = get_model_conversion_mapping(model)
        self._renamings = [each for each in transforms if isinstance(each, WeightRenaming)]
        self._converters = [each for each in transforms if isinstance(each, WeightConverter)]
        self._prefix = model.base_model_prefix
        self._known = dict.fromkeys(model.state_dict(), True)
        self._renamed = renamed
        self._within = within
        self._places: dict[str, Target] = {}
        self._sources: dict[tuple[str, int | None], str] = {}
        buffers = [name for name, _ in model.named_buffers()]
        patterns = list(getattr(model, "_keys_to_ignore_on_load_unexpected", None) or ())
        patterns += [table for ending, table in TABLES.items() if any(name.endswith(ending) for name in buffers)]
        self._ignored = [re.compile(pattern) for pattern in patterns]

    def target(self, name: str) -> Target:
        """Returns the parameter to which a checkpoint tensor belongs. See `WeightNames.target`."""
        if name not in self._places:
            self._places[name] = place = self._place(name)
            self._sources.setdefault((place.parameter, place.section), name)
        return self._places[name]

    def sections(self, parameter: str, count: int) -> list[str]:
        """See `WeightNames.sections`: as the checkpoint has called them, or as transformers calls the parameter."""
        own = parameter.removeprefix(f"{self._within}.")
        moved = {place: name for name, place in self._renamed.items() if place.parameter == own}
        whole = moved.get(Target(own, None), own)
        usual = [moved.get(Target(own, section), whole) for section in range(count)]
        # One tensor may hold all sections.
        of_all = self._sources.get((parameter, None))
        return [self._sources.get((parameter, section), of_all or name) for section, name in enumerate(usual)]

    def ignores(self, name: str) -> bool:
        """True if transformers does not load a tensor of that name."""
        return any(pattern.search(name) for pattern in self._ignored)

    def _place(self, name: str) -> Target:
        found, pattern = rename_source_key(name, self._renamings, self._converters, self._prefix, self._known)
        if found not in self._known and name in self._known:
            found, pattern = name, None
        place = self._renamed.get(found, Target(found, None))
        parameter = f"{self._within}.{place.parameter}"
        if pattern is None:
            return Target(parameter, place.section)
        converter = next(each for each in self._converters if pattern in each.source_patterns)
        return Target(parameter, _section(name, pattern, converter))


def check_conversions(model: PreTrainedModel) -> None:
    """Raises Refused if transformers converts a checkpoint's tensors to other values."""
    for each in get_model_conversion_mapping(model):
        if isinstance(each, WeightConverter):
            for step in each.operations:
                if not isinstance(step, (MergeModulelist, Concatenate)):
                    tensors = ", ".join(each.source_patterns)
                    raise Refused(f"tensors of its checkpoint ({tensors}) are converted by {type(step).__name__}")


def _section(name: str, pattern: str, converter: WeightConverter) -> int:
    """Returns which part of the parameter a tensor of one expert is."""
    numbers = re.findall(r"\.experts\.(\d+)\.", name)
    if len(numbers) != 1:
        raise Refused(f"tensor {name} of its checkpoint is merged with others, and is of no expert")
    parts = converter.source_patterns
    return int(numbers[0]) * len(parts) + list(parts).index(pattern)
