"""Logit processors: code of ours, or of whoever runs the server, that changes the logits of requests that name it.

A processor has the form of SGLang's: `__call__(logits, custom_param_list)`, a row and a dict for each request. It is
called when all earlier tokens of these requests are known, after penalties and biases, and before what masks forbid.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from mysglang.srt.errors import ConfigError
from mysglang.srt.sampling.processor_params import BUILT_IN, DISALLOWED_TOKENS, THINKING_BUDGET, own_name

logger = logging.getLogger(__name__)

REQUEST = "__req__"
"""In a row's dict: the RequestTokens, beside the request's custom_params."""


@dataclass(frozen=True, slots=True, eq=False)
class RequestTokens:
    """What a processor may know of a request. To be read only."""

    origin_input_ids: npt.NDArray[np.int32]
    output_ids: npt.NDArray[np.int32]
    """All that was generated so far."""


class LogitProcessor(Protocol):
    """Made once, without arguments, and called for all requests that name it; it may keep nothing of them."""

    def __call__(self, logits: Tensor, custom_param_list: list[dict[str, Any]]) -> Tensor:
        """logits: [K, vocab] float32, which may be changed in place; returns [K, vocab]."""
        ...


class DisallowedTokensLogitsProcessor:
    """`token_ids` are never chosen."""

    def __call__(self, logits: Tensor, custom_param_list: list[dict[str, Any]]) -> Tensor:
        for row, params in enumerate(custom_param_list):
            logits[row, torch.tensor(params["token_ids"], device=logits.device)] = -torch.inf
        return logits


class ThinkingBudgetLogitProcessor:
    """A thought of `thinking_budget` tokens is made to end: its line, if there is a token for that, and then itself.

    Whether the answer thinks is told by the last mark in prompt and answer.
    """

    def __call__(self, logits: Tensor, custom_param_list: list[dict[str, Any]]) -> Tensor:
        for row, params in enumerate(custom_param_list):
            if (token := self._due(params)) is not None:
                logits[row] = -torch.inf
                logits[row, token] = 0.0
        return logits

    def _due(self, params: Mapping[str, Any]) -> int | None:
        """The token that must come now, if one must."""
        tokens: RequestTokens = params[REQUEST]
        ids = np.concatenate([tokens.origin_input_ids, tokens.output_ids])
        begun = _last(ids, params["think_start_id"])
        thought = len(ids) - 1 - begun
        if begun < 0 or begun < _last(ids, params["think_end_id"]) or thought < params["thinking_budget"]:
            return None
        line: int | None = params.get("new_line_id")
        end: int = params["think_end_id"]
        return line if line is not None and len(tokens.output_ids) and ids[-1] != line else end


def _last(ids: npt.NDArray[np.int32], token: int) -> int:
    """Where `token` stands last; -1 for nowhere."""
    found = np.flatnonzero(ids == token)
    return int(found[-1]) if len(found) else -1


@dataclass(frozen=True, slots=True)
class ProcessorRun:
    """One processor's part in a step: the rows [K] int64 of the logits, and a dict for each."""

    processor: LogitProcessor
    rows: Tensor
    params: list[dict[str, Any]]

    def apply(self, logits: Tensor) -> None:
        """Change float32 logits in place. Rows that a processor fails on, or leaves nothing of, become NaN."""
        found = logits.index_select(0, self.rows)
        try:
            changed = self.processor(found, self.params).to(logits).reshape(found.shape)
        except Exception:  # code that is not ours must not end the server
            logger.exception("the logit processor %s failed", type(self.processor).__name__)
            changed = found.fill_(torch.nan)
        likeliest = changed.amax(dim=-1, keepdim=True)
        logits[self.rows] = torch.where(likeliest.isfinite(), changed, torch.nan)


def load_processors(specs: Sequence[str]) -> dict[str, LogitProcessor]:
    """The built-in processors and those of `specs`, `module:Class` each, by name. Raises ConfigError."""
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
