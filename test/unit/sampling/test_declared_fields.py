"""A sampling feature or a field is added in one file and one table: the rest of the API is made from that."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from fixtures.patience import PATIENCE_S
from mysglang.srt.entrypoints.body import validate
from mysglang.srt.entrypoints.openai.protocol import ChatCompletionRequest, CompletionRequest
from mysglang.srt.entrypoints.openai.responses.protocol import ResponsesRequest
from mysglang.srt.entrypoints.openai.responses.translate import chat_request
from mysglang.srt.entrypoints.sampling_body import beside_sampling
from mysglang.srt.errors import InvalidRequest
from mysglang.srt.messages.generate import parse_generate
from mysglang.srt.sampling.request_field import Declared, declared
from mysglang.srt.sampling.sampling_params import FIELDS, SamplingParams

ROOT = Path(__file__).parents[3]
PACKAGE = ROOT / "python" / "mysglang" / "srt"
KERNELS_OF_FILTERS = ("sampling", "cuda/sampling", "sampled_rows", "row_layout")


def test_a_new_feature_with_its_fields_is_a_file_and_a_row_of_the_table() -> None:
    path = os.pathsep.join(str(ROOT / folder) for folder in ("python", "sgl-kernel/python", "test"))
    told = subprocess.run(
        [sys.executable, "-m", "fixtures.own_feature"],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert (told.returncode, told.stdout) == (0, "as declared\n"), told.stderr


@pytest.mark.parametrize(
    ("field", "files"),
    [
        ("min_p", {"sampling/drawing.py", *(f"kernels/{name}.py" for name in KERNELS_OF_FILTERS)}),
        ("frequency_penalty", {"sampling/penalties.py", "managers/request_traces.py"}),
        ("spaces_between_special_tokens", {"sampling/sampling_params.py"}),
    ],
)
def test_who_names_a_field(field: str, files: set[str]) -> None:
    """Its own file, and code that uses it: there is no list of fields beside the declarations."""
    found = {str(path.relative_to(PACKAGE)) for path in PACKAGE.rglob("*.py") if field in path.read_text("utf-8")}
    assert found == files


@pytest.mark.parametrize("field", ["priority", "extra_key"])
def test_a_field_beside_sampling_is_told_by_one_route_to_the_others(field: str) -> None:
    value = {"priority": 3, "extra_key": "mine"}[field]
    chat = validate(ChatCompletionRequest, {"messages": [{"role": "user", "content": "Hi"}], field: value})
    text = validate(CompletionRequest, {"prompt": "Hi", field: value})
    response = validate(ResponsesRequest, {"input": "Hi", field: value})
    native = parse_generate({"text": "Hi", field: value})
    translated = chat_request(response, [{"type": "message", "role": "user", "content": [{"text": "Hi"}]}])
    for body in (chat, text, translated):
        assert beside_sampling(body)[field] == value == getattr(native, field)
    with pytest.raises(InvalidRequest) as caught:
        validate(CompletionRequest, {"prompt": "Hi", field: 1.5})
    assert caught.value.param == field


def test_names_are_told_apart() -> None:
    for dialect in ("openai", "responses", "ollama", "anthropic"):
        names = [name for each in FIELDS if (name := each.name_on(dialect)) is not None]
        assert len(names) == len(set(names)), dialect
    openai = {each.name_on("openai") for each in FIELDS}
    assert not openai & {alias for each in FIELDS for alias in each.facts.aliases}


def test_every_default_is_within_its_bounds() -> None:
    for each in FIELDS:
        assert each.default is None or all(bound.holds(each.default) for bound in each.facts.bounds), each.name
        assert each.facts.text.endswith("."), each.name


def test_a_field_without_a_declaration_is_noticed() -> None:
    class Forgotten(msgspec.Struct):
        some: int = 1

    with pytest.raises(AssertionError, match="nothing is declared of some"):
        declared(Forgotten)


BEYOND: dict[str, object] = {
    "temperature": -1.0,
    "top_p": 0.0,
    "top_k": 0,
    "sampling_seed": 1 << 64,
    "max_new_tokens": -1,
    "min_new_tokens": -1,
    "stream_interval": 0,
    "n": 0,
    "beam_width": 0,
    "logit_bias": dict.fromkeys(range(5000), 0.0),
    "stop": [""],
    "stop_regex": ["a"] * 33,
    "stop_token_ids": [1] * 1025,
    "bad_words": [" "],
    "allowed_token_ids": [],
    "min_p": 2.0,
    "frequency_penalty": 3.0,
    "presence_penalty": 3.0,
    "repetition_penalty": 0.0,
    "length_penalty": 11.0,
}
"""Bounded field -> a value outside of its bounds."""


def test_every_bound_is_verified_and_every_default_keeps_its_bounds() -> None:
    bounded = {each.name for each in FIELDS if each.facts.bounds}
    assert bounded == BEYOND.keys()
    for each in FIELDS:
        assert each.default is None or all(bound.holds(each.default) for bound in each.facts.bounds), each.name
    SamplingParams().verify(100)
    for name, value in BEYOND.items():
        with pytest.raises(InvalidRequest, match=name):
            SamplingParams(**{name: value}).verify(10_000)


@pytest.mark.parametrize("each", FIELDS, ids=lambda each: each.name)
def test_parameters_with_a_field_that_holds_much_are_not_plain(each: Declared) -> None:
    words, ids = ["x"], [1]
    values: dict[str, object] = dict.fromkeys(("json_schema", "regex", "ebnf", "structural_tag"), "x")
    values |= {"stop": words, "stop_regex": words, "bad_words": words, "stop_token_ids": ids, "allowed_token_ids": ids}
    values |= {"logit_bias": {1: 1.0}, "custom_params": {"a": 1}}
    assert SamplingParams().is_plain
    assert SamplingParams(**{each.name: values.get(each.name, 1)}).is_plain == (each.name not in values)
