"""Command lines of the three tools: SGLang's names and defaults; what is not supported is refused by its name."""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from mysglang import bench_compare, bench_offline_throughput, bench_one_batch, bench_serving, bench_startup
from mysglang.bench.flags import ToolParser
from mysglang.bench.refused import Refused, run_tool
from mysglang.eval import run_eval, tiny

TOOLS: dict[str, Callable[[Sequence[str]], int]] = {
    "serving": bench_serving.main,
    "one_batch": bench_one_batch.main,
    "offline": bench_offline_throughput.main,
}


@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize("flag", ["--profile", "--profile-steps"])
def test_profiling_is_refused_by_its_name(tool: str, flag: str) -> None:
    with pytest.raises(Refused, match=f"{flag} is an option of SGLang's tool that this version"):
        TOOLS[tool]([flag])


@pytest.mark.parametrize(
    ("tool", "flag"),
    [
        ("serving", "--output-file"),
        ("serving", "--plot"),
        ("one_batch", "--result-filename"),
        ("offline", "--result-filename"),
        ("compare", "--output-file"),
        ("startup", "--output-file"),
        ("eval", "--output-file"),
        ("eval", "--save-answers"),
        ("tiny", "--save-answers"),
    ],
)
def test_a_file_that_cannot_be_written_is_refused_before_the_run(tool: str, flag: str, tmp_path: Path) -> None:
    others = {"compare": bench_compare, "startup": bench_startup, "eval": run_eval, "tiny": tiny}
    main = TOOLS[tool] if tool in TOOLS else others[tool].main
    with pytest.raises(Refused, match=f"{flag}: {tmp_path} is a directory"):
        main([flag, str(tmp_path)])
    with pytest.raises(Refused, match=f"{flag}: there is no directory {tmp_path / 'none'}"):
        main([flag, str(tmp_path / "none" / "file")])
    with pytest.raises(Refused, match=f"{flag}: /proc/none cannot be written"):
        main([flag, "/proc/none"])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("flag", ["--rust-client", "--lora-name=a", "--plot-throughput", "--gsp-num-turns"])
def test_serving_refuses_by_name(flag: str) -> None:
    with pytest.raises(Refused) as refused:
        bench_serving.main([flag, "2", "--apply-chat-template"])
    assert [problem.split()[0] for problem in refused.value.problems] == [flag.split("=")[0], "--apply-chat-template"]


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--num-promts", "3"], "--num-promts is not an option; did you mean --num-prompts"),
        (["--num-prompts", "0"], "0 is less than 1"),
        (["--random-range-ratio", "1.5"], "not between 0 and 1"),
        (["--dataset-name", "mmmu"], "mmmu"),
        (["--backend", "truss"], "truss"),
        (["--request-rate", "0"], "not above 0"),
        (["--goodput", "speed:3"], "speed"),
        (["--header", "abc"], "NAME=VALUE"),
        (["--extra-request-body", "[1]"], "not a JSON object"),
        (["--extra-request-body", "{"], "not JSON"),
        (["stray"], "'stray' belongs to no option"),
    ],
)
def test_serving_says_what_is_wrong(argv: list[str], said: str) -> None:
    with pytest.raises(Refused, match=said):
        bench_serving.main(argv)


def test_serving_has_the_defaults_of_sglang() -> None:
    options = bench_serving.read_options([])
    wanted = {
        "backend": "sglang",
        "base_url": "http://127.0.0.1:30000",
        "dataset_name": "sharegpt",
        "num_prompts": 1000,
        "random_input_len": 1024,
        "random_output_len": 1024,
        "random_range_ratio": 0.0,
        "request_rate": float("inf"),
        "max_concurrency": None,
        "seed": 42,
        "warmup_requests": 1,
        "temperature": 0.0,
        "gsp_num_groups": 64,
        "gsp_prompts_per_group": 16,
        "gsp_system_prompt_len": 2048,
        "gsp_question_len": 128,
        "gsp_output_len": 256,
        "ready_check_timeout_sec": 60.0,
    }
    assert {name: getattr(options, name) for name in wanted} == wanted


def test_serving_reads_what_it_is_given() -> None:
    argv = ["--backend", "vllm", "--host", "h", "--goodput", "ttft:450", "tpot:40", "--header", "A=b=c", "D=e"]
    options = bench_serving.read_options([*argv, "--extra-request-body", '{"a": 1}'])
    assert options.base_url == "http://h:8000"
    assert options.goodput == {"ttft": 450.0, "tpot": 40.0}
    assert options.header == {"A": "b=c", "D": "e"}
    assert options.extra_request_body == {"a": 1}
    assert bench_serving.read_options(["--base-url", "https://x/v1/"]).base_url == "https://x"


def test_what_is_left_is_the_servers() -> None:
    parser = ToolParser("x", "y")
    parser.add_argument("--seed", type=int)
    found, rest = parser.parse_before_server(["--page-size", "16", "--seed", "3", "--load-format", "dummy"], "profile")
    assert (found.seed, rest) == (3, ["--page-size", "16", "--load-format", "dummy"])


@pytest.mark.parametrize("tool", ["one_batch", "offline"])
def test_a_wrong_server_option_is_refused_too(tool: str) -> None:
    with pytest.raises(Refused, match="--pagesize is not an option; did you mean --page-size"):
        TOOLS[tool](["--pagesize", "3"])


def test_refused_is_said_on_stderr(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["tool", "--rust-client"])
    assert run_tool(bench_serving.main) == 2
    assert capsys.readouterr().err.startswith("error: --rust-client is")


@pytest.mark.parametrize(
    ("arguments", "url"),
    [
        ([], "http://10.0.0.1:8"),
        (["--port", "31000"], "http://127.0.0.1:31000"),
        (["--host", "a"], "http://a:30000"),
        (["--backend", "vllm"], "http://127.0.0.1:8000"),
        (["--base-url", "http://b:1/v1"], "http://b:1"),
    ],
)
def test_the_server_of_the_environment_is_asked_where_none_is_named(
    arguments: list[str], url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MYSGLANG_BASE_URL", "http://10.0.0.1:8")
    assert bench_serving.read_options(arguments).base_url == url
