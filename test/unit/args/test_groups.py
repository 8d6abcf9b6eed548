"""Flat names find their groups; strangers are named, with what might have been meant."""

from __future__ import annotations

import pytest

from mysglang.srt.args.groups import ArgGroups, as_keywords, from_flat, group_options, unknown
from mysglang.srt.args.sglang_flags import SGLANG_OPTIONS, WHY_NOT
from mysglang.srt.errors import ConfigError

# Ours, for what SGLang leaves to environment variables or has no word for.
OWN_OPTIONS = {
    "api_key_file",
    "crash_dump_contents",
    "disable_playground",
    "cors_allow_origins",
    "served_model_aliases",
    "decode_wait_tokens",
    "disable_cascade_attention",
    "disable_persistent_decode",
    "drain_timeout",
    "file_storage_gb",
    "enable_jump_forward",
    "grammar_compile_timeout",
    "grammar_queue_timeout",
    "logit_processor",  # SGLang takes code from requests instead
    "max_batch_lines",
    "req_running_timeout",  # SGLang reads these two from its environment
    "req_waiting_timeout",
    "read_timeout",
    "share_cache_between_keys",
    "strict_max_tokens",
    "strict_model_name",
    "unknown_fields",
    "write_timeout",
    "fair_share_by",
}


def all_names() -> list[str]:
    return [
        name for members in group_options().values() for option in members for name in (option.name, *option.aliases)
    ]


def test_every_name_is_given_once() -> None:
    assert len(all_names()) == len(set(all_names()))


def test_names_are_sglangs() -> None:
    own = {option.name for members in group_options().values() for option in members} - SGLANG_OPTIONS
    assert own == OWN_OPTIONS


def test_flat_and_back() -> None:
    groups = from_flat(ArgGroups, {"model": "m", "tp": 1, "page_size": 16, "cuda_graph_bs": [1, 2]})
    assert groups.model.model_path == "m"
    assert groups.memory.page_size == 16
    assert groups.kernels.cuda_graph_bs == (1, 2)
    assert from_flat(ArgGroups, groups.flat()) == groups


def test_all_strangers_are_reported_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        from_flat(ArgGroups, {"enable_eplb": True, "pagesize": 4, "page_size": 4})
    assert len(caught.value.problems) == 2


@pytest.mark.parametrize("value", [None, False])
def test_an_unsupported_option_that_asks_for_nothing_is_let_pass(value: object) -> None:
    assert from_flat(ArgGroups, {"trust_remote_code": value}) == ArgGroups()


def test_an_invented_option_is_refused_whatever_its_value() -> None:
    with pytest.raises(ConfigError, match="--pagesiz is not an option; did you mean --page-size"):
        from_flat(ArgGroups, {"pagesiz": None})


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("--enable-lora", "--enable-lora is an option of SGLang that this version of mysglang does not support."),
        ("trust_remote_code", WHY_NOT["trust_remote_code"]),
        ("--prot", "did you mean --port?"),
        ("--mem", "did you mean --mem-fraction-static?"),
        ("--qqqqqqqq", "--help lists the options."),
    ],
)
def test_unknown(name: str, says: str) -> None:
    assert says in unknown(name)


def test_bad_values_are_all_found() -> None:
    groups = from_flat(ArgGroups, {"port": 70000, "dtype": "int4", "page_size": "x"})
    assert sorted(line.split()[0] for line in groups.bad_values()) == ["--dtype", "--page-size", "--port"]


def test_a_message_for_a_caller_in_python() -> None:
    assert as_keywords(unknown("unheard-of")) == "unheard_of is not an option; docs/flags.md lists the options."
    text = "--model-path /hub/models--gpt2/--x: not with --tp-size 2, --json-model-override-args."
    assert as_keywords(text) == "model_path /hub/models--gpt2/--x: not with tp_size 2, json_model_override_args."
