"""Checks before the start whether the layers of a model can be divided among the stages of a pipeline."""

from __future__ import annotations

from collections.abc import Iterator

from mysglang.srt.configs.layer_plan import DecoderPlan
from mysglang.srt.configs.model_config import ModelConfig
from mysglang.srt.errors import ConfigError
from mysglang.srt.utils.even_split import even_run


def check_stages(config: ModelConfig, pp_size: int) -> None:
    """Raises ConfigError for a model that cannot stand in `pp_size` stages."""
    if pp_size == 1:
        return
    if config.served_as.foreign:
        raise ConfigError(
            f"--pp-size {pp_size}: {config.architecture} is computed by transformers' code, whose layers are not "
            "divided among stages; leave it out."
        )
    if config.decoder is None or config.pooling is not None:
        raise ConfigError(
            f"--pp-size {pp_size}: models that make vectors or scores run in one stage in this version; leave it out."
        )
    if config.num_layers < pp_size:
        raise ConfigError(f"--pp-size {pp_size}: the model has {config.num_layers} layers, fewer than one for a stage.")
    if problems := [*_problems(config.decoder, pp_size)]:
        raise ConfigError(*(f"--pp-size {pp_size}: {problem}" for problem in problems))


def _problems(plan: DecoderPlan, stages: int) -> Iterator[str]:
    """Reasons against the split. All stages plan the same pages and states, so each must have a layer of every kind
    that stores something.
    """
    for stage in range(stages):
        own = even_run(len(plan.layers), stage, stages)
        where = f"stage {stage} would have layers {own.start} to {own.stop - 1}, and"
        part = plan.stage(stage, stages)
        if not part.attentions:
            yield f"{where} none of them attends over keys."
        if plan.has_states and not part.has_states:
            yield f"{where} none of them keeps a state for each request, as others do."
