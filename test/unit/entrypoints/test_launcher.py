"""The model is found, and what is wrong with it said, before anything is launched; children are watched as a group."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import msgspec
import psutil
import pytest
import torch
from safetensors.torch import save_file

from fixtures.patience import PATIENCE_S, until
from fixtures.private_folder import is_private
from mysglang.srt.args.resolve import EMBEDDED_MODEL
from mysglang.srt.entrypoints import launcher
from mysglang.srt.entrypoints.launcher import ChildModules, Subprocesses, find_model
from mysglang.srt.errors import ConfigError, WorkerDied
from mysglang.srt.messages.launch import Failed
from mysglang.srt.server_args import ServerArgs
from mysglang.srt.utils.hardware import Hardware

TESTS = Path(__file__).parents[2]

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "max_position_embeddings": 128,
}


def args(model: Path, **options: object) -> ServerArgs:
    return ServerArgs.from_kwargs(Hardware(), model_path=str(model), **{"load_format": "dummy", **options})


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    return tmp_path


def test_find_model(model: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    elsewhere = tmp_path_factory.mktemp("tokenizer")
    options = {"context_length": 64, "json_model_override_args": '{"vocab_size": 96}', "tokenizer_path": str(elsewhere)}
    found, config = find_model(args(model, **options))
    assert found.model.model_path == str(model.resolve())
    assert found.model.tokenizer_path == str(elsewhere.resolve())
    assert (config.context_len, config.vocab_size) == (64, 96)


def test_a_name_is_kept_when_paths_are_found(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(model.parent)
    found, _ = find_model(args(Path(model.name)))
    assert found.model.model_path == found.model.tokenizer_path == str(model.resolve())
    assert found.serving.served_model_name == model.name


@pytest.mark.promise(49)
def test_sizes_are_compared_with_the_checkpoint(model: Path) -> None:
    with pytest.raises(ConfigError, match="holds no safetensors, "):
        find_model(args(model, load_format="auto"))
    save_file({"model.layers.0.mlp.up_proj.weight": torch.zeros(63, 32)}, model / "model.safetensors")
    with pytest.raises(ConfigError, match=r"intermediate_size makes 64, .*: 63 in its place"):
        find_model(args(model, load_format="auto"))


@pytest.mark.promise(49)
def test_sizes_are_compared_with_the_machine(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = CONFIG | {"hidden_size": 1 << 12, "intermediate_size": 1 << 20, "num_hidden_layers": 2}
    (model / "config.json").write_text(json.dumps(sizes))
    monkeypatch.setattr(launcher, "host_memory", lambda: 8.0)
    with pytest.raises(ConfigError, match=r"this machine has 8\.0 GiB"):
        find_model(args(model))
    gpu = Hardware(gpu_memory=(80.0,))
    monkeypatch.setattr(launcher, "detect_hardware", lambda: gpu)
    find_model(ServerArgs.from_kwargs(gpu, model_path=str(model), load_format="dummy"))
    with pytest.raises(ConfigError, match=r"this machine has 8\.0 GiB"):
        find_model(args(model, device="cpu"))


@pytest.mark.promise(49)
@pytest.mark.parametrize(
    "name", ["tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja"]
)
def test_files_of_the_tokenizer_are_looked_at(model: Path, name: str) -> None:
    (model / name).symlink_to("/dev/zero")
    with pytest.raises(ConfigError, match=f"{name} is a device"):
        find_model(args(model))
    find_model(args(model, skip_tokenizer_init=True))


def test_a_current_directory_that_was_removed_is_named(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    options = args(model)
    here.rmdir()
    with pytest.raises(ConfigError, match=r"the current directory cannot be used .*; start from another one"):
        find_model(options)


def test_parts_of_the_config_without_effect_are_logged(model: Path, caplog: pytest.LogCaptureFixture) -> None:
    find_model(args(model, json_model_override_args='{"vocab_sise": 96}'))
    (line,) = caplog.messages
    assert "vocab_sise has no effect" in line and "did you mean vocab_size?" in line


def test_find_model_refuses_what_cannot_be_served(tmp_path: Path, model: Path) -> None:
    (model / "config.json").write_text(json.dumps(CONFIG | {"architectures": ["Unheard"]}))
    with pytest.raises(ConfigError, match="architecture Unheard is not supported"):
        find_model(args(model))


@pytest.mark.parametrize(
    "options", [{"speculative_algorithm": "NGRAM"}, {"enable_hicache": True}, {"enable_deterministic_inference": True}]
)
def test_options_of_generation_are_refused_for_a_model_of_vectors(model: Path, options: dict[str, object]) -> None:
    """The files say that it makes vectors, no flag does."""
    find_model(args(model, **options))
    (model / "config.json").write_text(json.dumps(CONFIG | {"architectures": ["LlamaModel"]}))
    with pytest.raises(ConfigError, match="is for models that generate; leave it out for this one"):
        find_model(args(model, **options))


class TestSubprocesses:
    """With obedient children in the places of both."""

    @pytest.fixture(autouse=True)
    def _children_find_the_fixtures(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PYTHONPATH", str(TESTS))

    def launch(self, scheduler: str, detokenizer: str) -> Subprocesses:
        modules = ChildModules(f"fixtures.{scheduler}", f"fixtures.{detokenizer}")
        return Subprocesses(args(EMBEDDED_MODEL), modules)

    async def test_ready_then_death(self) -> None:
        processes = self.launch("ready_child", "ready_child")
        try:
            assert is_private(processes.ipc_dir)
            assert set(processes.pids) == {"mysglang::scheduler_TP0", "mysglang::detokenizer"}
            facts = await asyncio.wait_for(processes.wait_ready(), PATIENCE_S)
            assert facts.max_total_num_tokens == 1000
            assert processes.stopped() == []
            psutil.Process(processes.pids["mysglang::detokenizer"]).suspend()
            await until(lambda: processes.stopped() == ["mysglang::detokenizer"])
            psutil.Process(processes.pids["mysglang::detokenizer"]).kill()
            error = await asyncio.wait_for(processes.death(), PATIENCE_S)
            assert "mysglang::detokenizer was ended by SIGKILL" in str(error)
        finally:
            await processes.stop()
        assert not processes.ipc_dir.exists()
        assert not any(psutil.pid_exists(pid) for pid in processes.pids.values())

    async def test_one_failure_ends_the_wait_with_its_cause(self) -> None:
        # The obedient child does not understand a launch, and says so.
        processes = self.launch("ready_child", "obedient_child")
        try:
            with pytest.raises((ConfigError, WorkerDied), match="ValueError"):
                await asyncio.wait_for(processes.wait_ready(), PATIENCE_S)
        finally:
            await processes.stop()

    async def test_too_late(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("MYSGLANG_START_TIMEOUT", "0.5")
        monkeypatch.setenv("READY_CHILD", "never")
        processes = self.launch("ready_child", "ready_child")
        try:
            with pytest.raises(WorkerDied, match=r"did not become ready within 0\.5 s"):
                await asyncio.wait_for(processes.wait_ready(), PATIENCE_S)
        finally:
            await processes.stop()

    @pytest.mark.promise(1)
    async def test_a_rank_that_lost_its_peer_is_not_the_cause(self) -> None:
        """Whichever end is noticed first."""
        loop = asyncio.get_running_loop()

        class Fake:
            def __init__(self, title: str, *, follows: bool) -> None:
                self.title = title
                self.exited: asyncio.Future[int] = loop.create_future()
                self.last_message = msgspec.json.encode(Failed(["why"], follows=follows))

        processes = Subprocesses.__new__(Subprocesses)
        processes._grown = asyncio.Event()
        survivor, cause = Fake("scheduler_TP0", follows=True), Fake("scheduler_TP1", follows=False)
        processes._children = [survivor, cause]  # type: ignore[list-item]
        dying = asyncio.create_task(processes.death())
        survivor.exited.set_result(1)
        await asyncio.sleep(0)
        cause.exited.set_result(-9)
        error = await asyncio.wait_for(dying, PATIENCE_S)
        assert "scheduler_TP1 was ended by SIGKILL" in str(error) and "TP0" not in str(error)
