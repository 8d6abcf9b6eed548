"""A command line gives typed flat options, or says what is wrong with it."""

from __future__ import annotations

import pytest

from mysglang.srt.args.cli import Usage, parse
from mysglang.srt.args.groups import GROUP_TITLES, group_options
from mysglang.srt.errors import ConfigError
from mysglang.srt.utils.version import __version__


def test_only_what_is_given_comes_out() -> None:
    assert parse([]) == {}
    assert parse(["--port", "8000"]) == {"port": 8000}


def test_types_aliases_and_both_spellings() -> None:
    argv = ["--model", "m", "--tensor-parallel-size=1", "--mem-fraction-static", ".5", "--disable-radix-cache"]
    assert parse([*argv, "--cuda-graph-bs", "1", "2"]) == {
        "model_path": "m",
        "tp_size": 1,
        "mem_fraction_static": 0.5,
        "disable_radix_cache": True,
        "cuda_graph_bs": (1, 2),
    }


def test_flags_of_what_is_always_on_are_taken() -> None:
    flags = ["--enable-streaming-session", "--enable-custom-logit-processor", "--enable-mis"]
    assert parse(flags) == {flag[2:].replace("-", "_"): True for flag in flags}


def test_flags_with_underscores() -> None:
    """They are taken, as in a --config file. A value keeps its underscores."""
    argv = ["--base_gpu_id", "0", "--model_path=my_model", "--served-model-name", "a_b"]
    assert parse(argv) == {"base_gpu_id": 0, "model_path": "my_model", "served_model_name": "a_b"}


def test_a_negative_number_is_a_value() -> None:
    assert parse(["--chunked-prefill-size", "-1"]) == {"chunked_prefill_size": -1}


def test_what_does_not_parse_stays_text_for_the_judge() -> None:
    assert parse(["--port", "http"]) == {"port": "http"}


@pytest.mark.parametrize(
    ("argv", "problems"),
    [
        (["--dp-size", "2", "--prot=1"], ["--dp-size is an option of SGLang", "--prot is not an option"]),
        (["--port"], ["--port: expected one argument"]),
        (["llama"], ["'llama' follows no option; to name a model, write --model-path llama"]),
        (
            ["--enable-metrics", "true"],
            ["--enable-metrics is a switch and takes no value, got 'true'; write --enable-"],
        ),
        (["--enable_metrics=True"], ["takes no value, got 'True'; write --enable-metrics alone"]),
        (["--enable-metrics", "0", "--port", "1"], ["takes no value, got '0'; leave --enable-metrics out"]),
        (["--enable-metrics", "llama"], ["'llama' follows no option"]),
        (
            ["--served-model-name", "A", "B"],
            ["--served-model-name takes one value, and 'B' is a second one; quote a value with spaces. Write further "],
        ),
        (["--chat-template", "a", "b.jinja"], ["--chat-template takes one value, and 'b.jinja' is a second one"]),
        (["--port=1", "A", "B"], ["'A' follows no option"]),
        (["-tp", "2"], ["-tp is a short flag of vLLM; write --tp-size."]),
        (["--page", "4"], ["--page is not an option"]),
        (["--dp", "2"], ["--dp is not an option. --dp-size is an option of SGLang"]),
        (["--ep=2", "--data-parallel"], ["--ep is an option of SGLang", "--data-parallel-size is an option of SGLang"]),
        (["--max-model"], ["--max-model is not an option. --max-model-len is an option of vLLM"]),
    ],
)
def test_refuses(argv: list[str], problems: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(argv)
    assert len(caught.value.problems) == len(problems)
    assert all(said in problem for said, problem in zip(problems, caught.value.problems, strict=True))


@pytest.mark.parametrize(
    ("argv", "problem"),
    [
        (["llama", "--served-model-name", "A", "B"], "--served-model-name takes one value, and 'B' is a second one"),
        (["llama", "qwen"], "'qwen' follows no option, and the model is named already: llama"),
        (["--enable-metrics", "true"], "--enable-metrics is a switch and takes no value"),
        (["--enable-metrics", "True", "llama"], "--enable-metrics is a switch and takes no value"),
        (["--port", "1", "llama", "qwen"], "'qwen' follows no option, and the model is named already: llama"),
    ],
)
def test_refuses_with_a_positional_model(argv: list[str], problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(argv, Usage("mysglang serve", positional_model=True))
    assert problem in str(caught.value)


def test_help_shows_every_option_under_its_group(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        parse(["--help"])
    text = capsys.readouterr().out
    for group, members in group_options().items():
        assert f"\n{GROUP_TITLES[group]}:\n" in text
        assert all(option.flag in text for option in members)


def test_help_breaks_no_line_inside_the_name_of_a_flag(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["--help"])
    assert [line for line in capsys.readouterr().out.splitlines() if line.endswith("-")] == []


def test_help_tells_no_default_of_an_empty_list(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["--help"])
    told = capsys.readouterr().out
    assert "Default: 30000." in told
    assert "()" not in told


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        parse(["--version"])
    assert capsys.readouterr().out.strip() == f"mysglang {__version__}"
