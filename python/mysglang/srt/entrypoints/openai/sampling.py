"""OpenAI's sampling fields -> SamplingParams, with the model's own defaults for what a request leaves open."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from mysglang.srt.args.serving import DefaultsSource
from mysglang.srt.entrypoints.openai.protocol import GenerationRequest
from mysglang.srt.entrypoints.openai.response_format import grammar_params
from mysglang.srt.errors import ConfigError, InvalidRequest
from mysglang.srt.sampling.sampling_params import FIELDS, SamplingParams
from mysglang.srt.utils.json_errors import in_words

_RECOMMENDED = tuple(each for each in FIELDS if each.facts.recommended is not None)

USUAL: Mapping[str, Any] = {each.name: each.default for each in _RECOMMENDED}
"""Values if neither the request nor the model sets them. The constants are OpenAI's."""


@dataclass(frozen=True, slots=True)
class SamplingDefaults:
    """Values of fields that a request does not set, by the native names."""

    values: Mapping[str, Any] = field(default_factory=lambda: USUAL)
    params: SamplingParams = field(init=False, repr=False, compare=False)
    """The parameters of a request that sets no field."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "params", SamplingParams(**self.values))

    @classmethod
    def choose(cls, source: DefaultsSource, generation_config: Mapping[str, Any]) -> SamplingDefaults:
        """Returns the model's recommended values (its generation_config.json), or the constants alone.

        A model that says outright that it is not to be sampled from is greedy. Raises ConfigError for a value that no
        request may have.
        """
        if source == "openai":
            return cls()
        chosen = dict(USUAL)
        for each in _RECOMMENDED:
            if (value := generation_config.get(each.name)) is not None:
                chosen[each.name] = value if each.facts.as_ours is None else each.facts.as_ours(value)
        if generation_config.get("do_sample") is False:
            chosen["temperature"] = 0.0
        try:
            msgspec.convert(chosen, SamplingParams).verify(vocab_size=1)  # no recommended value is a token id
        except (msgspec.ValidationError, InvalidRequest) as error:
            why = in_words(error) if isinstance(error, msgspec.ValidationError) else str(error).removesuffix(".")
            raise ConfigError(
                f"generation_config.json: {why}; correct it, or leave it aside with --sampling-defaults openai"
            ) from error
        return cls(chosen)


_NATIVE = {name: each.name for each in FIELDS if (name := each.name_on("openai")) is not None}
"""OpenAI's name of a field -> the native one."""
_LISTS_OR_ONE = tuple(each.name for each in FIELDS if each.or_one)
_BY_TOKEN_ID = tuple(each.name for each in FIELDS if each.facts.are_token_ids and isinstance(each.default, dict))


def sampling_params(
    body: GenerationRequest, defaults: SamplingDefaults, max_new_tokens: int | None, n: int | None = None
) -> SamplingParams:
    """Returns the sampling parameters of `body`. The front verifies ranges; this raises InvalidRequest for fields that
    have no id to verify. `n`: answers for each prompt, where they are not those of the body.
    """
    # Most requests set a few of some thirty fields; the others are as in the parameters that are copied.
    asked: dict[str, Any] = {}
    for name in body.model_fields_set:
        native = _NATIVE.get(name)
        if native is None:
            continue
        value = getattr(body, name)
        if value is not None:
            asked[native] = value
    for name in _LISTS_OR_ONE:
        if isinstance(asked.get(name), str):
            asked[name] = [asked[name]]
    for name in _BY_TOKEN_ID:
        if name in asked:
            asked[name] = {_token_id(name, key): value for key, value in asked[name].items()}
    asked.update(grammar_params(body.response_format, body.own_grammars))
    asked["max_new_tokens"], asked["beam_width"] = max_new_tokens, body.beams
    if n is not None:
        asked["n"] = n
    return msgspec.structs.replace(defaults.params, **asked)


def _token_id(field: str, key: str) -> int:
    if key.isascii() and key.isdigit() and len(key) < 20:
        return int(key)
    raise InvalidRequest(f"{field}: {key!r} is not a token id.", param=field)
