"""ServerArgs: from a command line or keywords to options that are resolved and hold."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from mysglang.srt.args.resolve import EMBEDDED_MODEL, EMBEDDED_MODEL_NAME
from mysglang.srt.errors import ConfigError
from mysglang.srt.server_args import ServerArgs
from mysglang.srt.utils.hardware import Hardware

CPU = Hardware()


def test_defaults_serve_the_embedded_model(monkeypatch: pytest.MonkeyPatch) -> None:
    # The directory is shipped with the package; its being there is another test's business.
    monkeypatch.setattr(Path, "is_dir", lambda _: True)
    args = ServerArgs.from_cli([], CPU)
    assert args.model.model_path == args.model.tokenizer_path == str(EMBEDDED_MODEL)
    assert args.serving.served_model_name == EMBEDDED_MODEL_NAME
    assert (args.serving.host, args.serving.port) == ("127.0.0.1", 30000)
    assert args.parallel.device == "cpu"


def test_cli_and_keywords_agree(tmp_path: Path) -> None:
    by_cli = ServerArgs.from_cli(["--model-path", str(tmp_path), "--page-size", "16", "--random-seed", "1"], CPU)
    by_keyword = ServerArgs.from_kwargs(CPU, model_path=str(tmp_path), page_size=16, random_seed=1)
    assert by_cli == by_keyword
    assert by_cli.serving.served_model_name == str(tmp_path)


def test_a_seed_is_drawn_where_none_is_given(tmp_path: Path) -> None:
    seeds = {ServerArgs.from_kwargs(CPU, model_path=str(tmp_path)).model.random_seed for _ in range(3)}
    assert len(seeds) > 1


def test_survives_the_way_to_a_child_process(tmp_path: Path) -> None:
    args = ServerArgs.from_kwargs(CPU, model_path=str(tmp_path), cuda_graph_bs=[1, 2], mem_fraction_static=0.5)
    line = msgspec.json.encode(args)
    assert b"\n" not in line
    assert msgspec.json.decode(line, type=ServerArgs) == args


def test_flat_has_every_option(tmp_path: Path) -> None:
    flat = ServerArgs.from_kwargs(CPU, model_path=str(tmp_path)).flat()
    assert flat["model_path"] == str(tmp_path)
    assert flat["schedule_policy"] == "fcfs"


def test_bad_values_come_before_rules_and_do_not_crash_them() -> None:
    with pytest.raises(ConfigError) as caught:
        ServerArgs.from_kwargs(CPU, chunked_prefill_size="many", page_size=0, port=1 << 20)
    assert [line.split()[0] for line in caught.value.problems] == ["--chunked-prefill-size", "--page-size", "--port"]
