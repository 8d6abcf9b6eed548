"""Logit processors: built-in or operator's code that changes the logits of requests that name it.

A processor has the form of SGLang's: `__call__(logits, custom_param_list)`, a row and a dict for each request. It is
called when all earlier tokens of these requests are known, after penalties and biases, and before what masks forbid.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from msgspec.structs import replace
from torch import Tensor

from mysglang.srt.errors import ConfigError
from mysglang.srt.sampling.feature import Act, Stage, places
from mysglang.srt.sampling.processor_params import (
    BEGINS_THINKING,
    BUILT_IN,
    DISALLOWED_TOKENS,
    THINKING_BUDGET,
    THINKS_ONCE,
    own_name,
)

logger = logging.getLogger(__name__)

Ints: TypeAlias = npt.NDArray[np.int32]

NEAR = 1 << 10
"""Tokens at the end that are looked through first."""

REQUEST = "__req__"
"""Key of the RequestTokens in a row's dict, next to the request's custom_params."""


@dataclass(frozen=True, slots=True, eq=False)
class RequestTokens:
    """A processor's view of a request. Valid during the call; read-only, and must not be kept."""

    origin_input_ids: Ints
    output_ids: Ints
    """All that was generated so far."""


class LogitProcessor(Protocol):
    """Made once, without arguments, and called for all requests that name it; it may keep nothing of them."""

    def __call__(self, logits: Tensor, custom_param_list: list[dict[str, Any]]) -> Tensor:
        """Changes the logits [K, vocab] float32, in place or not, and returns [K, vocab]."""
        ...


class DisallowedTokensLogitsProcessor:
    """A processor that forbids the tokens `token_ids`."""

    def __call__(self, logits: Tensor, custom_param_list: list[dict[str, Any]]) -> Tensor:
        for row, params in enumerate(custom_param_list):
            logits[row, torch.tensor(params["token_ids"], device=logits.device)] = -torch.inf
        return logits


class ThinkingBudgetLogitProcessor:
    """A processor that ends a thought after `thinking_budget` tokens: first its line, if there is a token for that,
    then the thought itself.

    The last mark in prompt and answer decides if the answer thinks. If the front knows whether the answer begins in a
    thought (`BEGINS_THINKING`), the prompt's marks say nothing: a user may have written them.
    """

    def __call__(self, logits: Tensor, custom_param_list: list[dict[str, Any]]) -> Tensor:
        for row, params in enumerate(custom_param_list):
            if (token := self._due(params)) is not None:
                logits[row] = -torch.inf
                logits[row, token] = 0.0
        return logits

    def _due(self, params: Mapping[str, Any]) -> int | None:
        """Returns the token that must come now, if one must."""
        tokens: RequestTokens = params[REQUEST]
        prompt, output = tokens.origin_input_ids, tokens.output_ids
        thought: tuple[Ints, ...]
        begins, end = params.get(BEGINS_THINKING), params["think_end_id"]
        if params.get(THINKS_ONCE) and _last(output, end) >= 0:
            return None
        if (begun := _last(output, params["think_start_id"])) >= 0:
            thought = (output[begun + 1 :],)
        elif begins:
            thought = (output,)
        elif begins is None and (begun := _last(prompt, params["think_start_id"])) >= 0:
            thought = (prompt[begun + 1 :], output)
        else:
            return None
        if sum(map(len, thought)) < params["thinking_budget"] or any(_last(part, end) >= 0 for part in thought):
            return None
        line: int | None = params.get("new_line_id")
        due: int = line if line is not None and len(output) and output[-1] != line else end
        return due


def _last(ids: Ints, token: int) -> int:
    """Returns the last index of `token`; -1 if absent. Searches near the end first, because a prompt may be long."""
    near = max(len(ids) - NEAR, 0)
    for start, part in ((near, ids[near:]), (0, ids[:near])):
        found = np.flatnonzero(part == token)
        if len(found):
            return start + int(found[-1])
    return -1


class ProcessorRun(Act, frozen=True, eq=False):
    """One processor's part in a step: the rows [K] int64 of the logits, and a dict for each."""

    stage: ClassVar[Stage] = Stage.PROCESS
    processor: LogitProcessor
    rows: Tensor
    params: list[dict[str, Any]]

    def edit(self, logits: Tensor, broken: Tensor) -> None:
        """Runs the processor. Rows on which it fails, or in which it allows no token, become broken.

        If it fails on several rows, it is called again for each, because one request's parameters must not end
        another's.
        """
        changed = self._changed(logits)
        if changed is None and len(self.params) > 1:
            for place, params in enumerate(self.params):
                replace(self, rows=self.rows[place : place + 1], params=[params]).edit(logits, broken)
            return
        if changed is None:
            broken[self.rows] = True
            logits[self.rows] = torch.nan
            return
        sound = changed.amax(dim=-1).isfinite()
        logits[self.rows] = torch.where(sound[:, None], changed, torch.nan)
        broken[self.rows] |= ~sound

    def alone(self, row: int) -> Act | None:
        for place in places(self.rows, row).tolist():
            return replace(self, rows=self.rows.new_zeros(1), params=[self.params[place]])
        return None

    def _changed(self, logits: Tensor) -> Tensor | None:
        """Returns the processor's result for its rows; None if it fails."""
        found = logits.index_select(0, self.rows)
        try:
            return self.processor(found, self.params).to(logits).reshape(found.shape)
        except Exception:  # code that is not ours must not end the server
            name = type(self.processor).__name__
            logger.exception(
                "The logit processor %s failed. Requests for which it fails alone end with an error.", name
            )
            return None


def load_processors(specs: Sequence[str]) -> dict[str, LogitProcessor]:
    """Returns the built-in processors and those of `specs`, `module:Class` each, by name. Raises ConfigError."""
    found: dict[str, LogitProcessor] = {
        DISALLOWED_TOKENS: DisallowedTokensLogitsProcessor(),
        THINKING_BUDGET: ThinkingBudgetLogitProcessor(),
    }
    assert found.keys() == set(BUILT_IN)
    for spec in specs:
        name = own_name(spec)
        if name in found:
            raise ConfigError(f"--logit-processor {spec}: there is one of the name {name} already.")
        found[name] = _load(spec)
    return found


def _load(spec: str) -> LogitProcessor:
    module, _, name = spec.partition(":")
    try:
        made = getattr(importlib.import_module(module), name)()
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise ConfigError(
            f"--logit-processor {spec}: give it as module:Class, to be made without arguments ({error})"
        ) from error
    if not callable(made):
        raise ConfigError(f"--logit-processor {spec}: {name} has no __call__(logits, custom_param_list).")
    processor: LogitProcessor = made
    return processor
