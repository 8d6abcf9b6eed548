"""The declared fields of requests as the routes of each dialect have them: in bodies, in errors, and in OpenAI's words.

What a field means, its bounds and where it may be sent is in its RequestField, and nowhere else. What a route has
in a form of its own is in its protocol.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce
from operator import or_
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, Union, get_args, get_origin

from pydantic import PlainValidator, create_model

from mysglang.srt.entrypoints.strict_model import StrictModel, empty
from mysglang.srt.messages.generate import BESIDE_SAMPLING
from mysglang.srt.sampling.request_field import Declared, Dialect
from mysglang.srt.sampling.sampling_params import FIELDS


def _text_or_texts(value: object) -> object:
    if isinstance(value, str) or (isinstance(value, list) and all(isinstance(item, str) for item in value)):
        return value
    raise ValueError("must be a string or a list of strings")


Texts = Annotated[str | list[str], PlainValidator(_text_or_texts, json_schema_input_type=str | list[str])]


class _Said(NamedTuple):
    """A declared field on the routes of a dialect."""

    name: str
    openai: str
    """Its name on OpenAI's routes."""
    as_ours: Callable[[Any], Any] | None


_ALL = (*FIELDS, *BESIDE_SAMPLING)


def _on(dialect: Dialect) -> dict[str, Declared]:
    """Returns the declared fields that routes of this dialect have, by their name there."""
    return {name: each for each in _ALL if (name := each.name_on(dialect)) is not None}


def _body(name: str, dialect: Dialect) -> type[StrictModel]:
    fields: dict[str, Any] = {name: _form(each) for name, each in _on(dialect).items()}
    model: type[StrictModel] = create_model(name, __base__=StrictModel, __module__=__name__, **fields)
    return model


def _form(each: Declared) -> tuple[Any, Any]:
    """Returns a type and a default in pydantic's terms. If the model may recommend a default, the field is None until
    that is looked up.
    """
    kind = Texts if each.or_one else _as_json(each.type)
    if each.facts.recommended is not None:
        return kind | None, None
    return kind, empty(type(each.default)) if isinstance(each.default, list | dict) else each.default


def _as_json(kind: Any) -> Any:
    """Returns the type as pydantic is to check it: without notes for msgspec, and keys are strings."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _as_json(inner[0])
    if origin in (UnionType, Union):
        return reduce(or_, map(_as_json, inner))
    if origin is list:
        return list[_as_json(inner[0])]  # type: ignore[misc]  # made at run time
    if origin is dict:
        return dict[str, _as_json(inner[1])]  # type: ignore[misc]
    return kind


if TYPE_CHECKING:
    # The fields that a route reads by name; the others go through `in_openai_words` or `openai/sampling.py`.

    class OpenAISampling(StrictModel):
        """Sampling fields of chat and plain completions."""

        n: int = 1
        beam_width: int | None = None
        skip_special_tokens: bool = True

    class ResponsesSampling(StrictModel):
        """Sampling fields of the Responses API."""

    class OllamaSampling(StrictModel):
        """Sampling fields in Ollama's options."""

    class AnthropicSampling(StrictModel):
        """Sampling fields of Anthropic's messages API."""

else:
    OpenAISampling = _body("OpenAISampling", "openai")
    ResponsesSampling = _body("ResponsesSampling", "responses")
    OllamaSampling = _body("OllamaSampling", "ollama")
    AnthropicSampling = _body("AnthropicSampling", "anthropic")

BODIES: Mapping[Dialect, type[StrictModel]] = {
    "openai": OpenAISampling,
    "responses": ResponsesSampling,
    "ollama": OllamaSampling,
    "anthropic": AnthropicSampling,
}

OPENAI_ALIASES = {alias: each.name_on("openai") or each.name for each in _ALL for alias in each.facts.aliases}
"""Name that other servers have for a field -> its name on OpenAI's routes."""

WITHOUT_EFFECT = frozenset(each.name for each in _ALL if not each.facts.has_effect)
"""Fields that are taken and change nothing."""

OPENAI_NAMES = {each.name: name for name, each in _on("openai").items() if name != each.name}
"""Native name -> OpenAI's, where they differ."""

_SAID: Mapping[Dialect, tuple[_Said, ...]] = {
    dialect: tuple(
        _Said(name, each.name_on("openai") or each.name, each.facts.as_ours) for name, each in _on(dialect).items()
    )
    for dialect in BODIES
}


def names_on(dialect: Dialect) -> dict[str, str]:
    """Returns OpenAI's name of a field -> the dialect's, where they differ."""
    return {said.openai: said.name for said in _SAID[dialect] if said.openai != said.name}


def in_openai_words(body: StrictModel, dialect: Dialect) -> dict[str, Any]:
    """Returns the declared fields of `body`, of this dialect, by OpenAI's names. Null counts as absent."""
    found: dict[str, Any] = {}
    for name, openai, as_ours in _SAID[dialect]:
        value = getattr(body, name)
        found[openai] = value if as_ours is None or value is None else as_ours(value)
    return found


_BESIDE = tuple((each.name, name) for each in BESIDE_SAMPLING if (name := each.name_on("openai")) is not None)


def beside_sampling(body: OpenAISampling) -> dict[str, Any]:
    """Returns the fields of `body` that are not about sampling, by their native names."""
    return {name: getattr(body, theirs) for name, theirs in _BESIDE}


def texts() -> dict[str, str]:
    """Returns the descriptions of fields: name of a field on any route -> its meaning."""
    found = {each.name: each.facts.text for each in _ALL}
    return found | {name: each.facts.text for dialect in BODIES for name, each in _on(dialect).items()}


def texts_by_place() -> dict[str, str]:
    """Returns the descriptions of fields by class: class and field -> its meaning there."""
    found = {f"SamplingParams.{each.name}": each.facts.text for each in FIELDS}
    for dialect, model in BODIES.items():
        for name, each in _on(dialect).items():
            if (usual := each.facts.recommended) is not None:
                words = f"Default: what the model's generation_config.json says, else {usual}."
                found[f"{model.__name__}.{name}"] = f"{each.facts.text} {words}"
    return found
