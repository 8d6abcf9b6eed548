"""OpenAI's sampling fields -> SamplingParams, with the model's own defaults for what a request leaves open."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mysglang.srt.args.serving import DefaultsSource
from mysglang.srt.entrypoints.openai.protocol import GenerationRequest
from mysglang.srt.entrypoints.openai.response_format import grammar_params
from mysglang.srt.errors import InvalidRequest
from mysglang.srt.sampling.sampling_params import TOP_K_ALL, SamplingParams


@dataclass(frozen=True, slots=True)
class SamplingDefaults:
    """What counts where a request says nothing. The constants are OpenAI's."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = TOP_K_ALL
    min_p: float = 0.0
    repetition_penalty: float = 1.0

    @classmethod
    def choose(cls, source: DefaultsSource, generation_config: Mapping[str, Any]) -> SamplingDefaults:
        """The model's recommendations (its generation_config.json), or the constants alone.

        A model that says outright that it is not to be sampled from is greedy.
        """
        if source == "openai":
            return cls()
        given = {name: generation_config.get(name) for name in cls.__slots__}
        chosen = {name: value for name, value in given.items() if value is not None}
        if chosen.get("top_k") == 0:
            chosen["top_k"] = TOP_K_ALL  # transformers' way to say: all
        if generation_config.get("do_sample") is False:
            chosen["temperature"] = 0.0
        return cls(**chosen)


def sampling_params(body: GenerationRequest, defaults: SamplingDefaults, max_new_tokens: int | None) -> SamplingParams:
    """What `body` asks for. Ranges are verified by the front; raises InvalidRequest for what has no id to verify."""
    grammar: dict[str, Any] = {**grammar_params(body.response_format, body.own_grammars)}
    return SamplingParams(
        max_new_tokens=max_new_tokens,
        min_new_tokens=body.min_tokens,
        stop=[body.stop] if isinstance(body.stop, str) else body.stop,
        stop_regex=[body.stop_regex] if isinstance(body.stop_regex, str) else body.stop_regex,
        stop_token_ids=body.stop_token_ids,
        temperature=defaults.temperature if body.temperature is None else body.temperature,
        top_p=defaults.top_p if body.top_p is None else body.top_p,
        top_k=defaults.top_k if body.top_k is None else body.top_k,
        min_p=defaults.min_p if body.min_p is None else body.min_p,
        frequency_penalty=body.frequency_penalty,
        presence_penalty=body.presence_penalty,
        repetition_penalty=defaults.repetition_penalty if body.repetition_penalty is None else body.repetition_penalty,
        n=body.n,
        beam_width=body.beams,
        length_penalty=body.length_penalty,
        ignore_eos=body.ignore_eos,
        skip_special_tokens=body.skip_special_tokens,
        spaces_between_special_tokens=body.spaces_between_special_tokens,
        no_stop_trim=body.no_stop_trim,
        logit_bias={_token_id(key): value for key, value in body.logit_bias.items()} if body.logit_bias else {},
        bad_words=body.bad_words,
        allowed_token_ids=body.allowed_token_ids,
        custom_params=body.custom_params,
        sampling_seed=body.seed,
        **grammar,
    )


def _token_id(key: str) -> int:
    if key.isascii() and key.isdigit() and len(key) < 20:
        return int(key)
    raise InvalidRequest(f"logit_bias: {key!r} is not a token id.", param="logit_bias")
