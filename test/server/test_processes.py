"""How a server starts, ends, and dies: every way out has an exit code, a last line, and leaves nothing behind.

At least one test of each way starts the server as its users do; the others use a warm one, whose processes are as real.
"""

import asyncio
import json
import os
import shutil
import signal
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import psutil
import pytest

from fixtures.open_streams import LONG, ended, open_streams
from fixtures.oracle import held
from fixtures.patience import PATIENCE_S, answered, wait_until
from fixtures.ports import reserved_port
from fixtures.private_folder import is_private
from fixtures.processes import wait_until_gone
from fixtures.server_process import ServerProcess, suspended, suspended_whole
from fixtures.toy_server import PROGRAM, Faults
from fixtures.warm_start import WarmServer
from mysglang.srt.args.resolve import EMBEDDED_MODEL
from mysglang.srt.entrypoints.http_server import SAME_SIGNAL_S
from mysglang.srt.utils.exit_codes import ExitCode

SCHEDULER, DETOKENIZER = "mysglang::scheduler_TP0", "mysglang::detokenizer"
FOLLOWER = "mysglang::scheduler_TP1"
VICTIMS = [
    pytest.param(SCHEDULER, "scheduler", "1", id="scheduler"),
    pytest.param(DETOKENIZER, "detokenizer", "1", id="detokenizer"),
    pytest.param(SCHEDULER, "scheduler", "2", id="first rank"),
    pytest.param(FOLLOWER, "scheduler of rank 1", "2", id="other rank"),
]
"""A process, what the watchdog calls it, and the number of ranks."""
QUIET = ("--log-level", "warning")
FAULTY = ("-m", "fixtures.faulty_scheduler")


def toy(*options: str, tokens: int = 16384, kind: type[ServerProcess] = WarmServer) -> ServerProcess:
    """A server whose processes are real and whose scheduler computes nothing: its steps take 5 ms."""
    memory = ("--max-total-tokens", f"{tokens}")
    return kind(*QUIET, *memory, *options, program=PROGRAM, **Faults(step_ms=5).env)


@pytest.fixture
def server() -> Iterator[ServerProcess]:
    with toy() as process:
        yield process


@pytest.fixture
def cold_server() -> Iterator[ServerProcess]:
    """A server that is started as its users start one."""
    with toy(kind=ServerProcess) as process:
        yield process


async def until_open(url: str, count: int) -> None:
    """Wait until the scheduler has so many requests."""

    def had() -> int:
        found = held(url)
        return int(found["running requests"] + found["waiting requests"])

    await answered(lambda: asyncio.to_thread(had), lambda found: found == count)


async def first_refusal(url: str) -> httpx.Response:
    """The first answer of /health that is not 200."""
    async with httpx.AsyncClient() as client:
        return await answered(lambda: client.get(f"{url}/health"), lambda answer: answer.status_code != 200)


def assert_nothing_left(server: ServerProcess, children: list[psutil.Process]) -> None:
    wait_until_gone(children)
    assert server.sockets() == [], "a socket is left"


class TestServing:
    @pytest.fixture(scope="class")
    @classmethod
    def server(cls) -> Iterator[ServerProcess]:
        with ServerProcess(*QUIET) as process:
            yield process

    @pytest.mark.promise(37)
    def test_processes_are_named_light_and_private(self, server: ServerProcess) -> None:
        assert httpx.get(f"{server.url}/health").status_code == 200
        assert set(server.children()) == {SCHEDULER, DETOKENIZER}
        for pid in (server.popen.pid, server.child(DETOKENIZER).pid):
            assert "libtorch" not in Path(f"/proc/{pid}/maps").read_text()
        listening = [each.laddr for each in psutil.Process(server.popen.pid).net_connections("tcp") if not each.raddr]
        assert [address.ip for address in listening] == ["127.0.0.1"]
        assert all(not child.net_connections("tcp") for child in server.children().values())

    def test_the_printed_curl_works(self, server: ServerProcess) -> None:
        url = server.url
        command = server.stdout[server.stdout.index("curl") :].strip()
        answer = json.loads(os.popen(command).read())
        assert answer["choices"][0]["message"]["content"]
        assert url in command

    @pytest.mark.promise(37)
    def test_sockets_are_private_while_there_are_any(self) -> None:
        with ServerProcess(*QUIET, program=FAULTY, FAULT="slow") as server:
            server.child(DETOKENIZER)
            (folder,) = server.runtime_dir.iterdir()
            assert is_private(folder)


class TestStop:
    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
    def test_idle(self, server: ServerProcess, number: signal.Signals) -> None:
        assert server.url
        children = list(server.children().values())
        server.send(number)
        assert server.wait() == ExitCode.DONE
        assert_nothing_left(server, children)
        assert server.stderr == ""

    @pytest.mark.promise(10)
    async def test_open_requests_may_end_and_nobody_new_comes_in(self, server: ServerProcess) -> None:
        url = server.url
        body = {**LONG, "sampling_params": {"max_new_tokens": 200, "ignore_eos": True}}
        streams = await open_streams(url, 4, body)
        # Stopped in this time: on a busy machine all might otherwise end before the test asks.
        with suspended(server.child(SCHEDULER)):
            server.send(signal.SIGTERM)
            refused = await first_refusal(url)
        assert refused.status_code == 503
        assert refused.json()["error"]["code"] == "shutting_down"
        assert "retry-after" in refused.headers
        await ended(streams)
        assert all(stream.complete for stream in streams)
        assert server.wait() == ExitCode.DONE

    @pytest.mark.promise(10)
    async def test_a_supervisor_that_signals_every_process_does_not_spoil_it(self, cold_server: ServerProcess) -> None:
        """systemd signals every process, and so does a terminal's Ctrl-C."""
        server = cold_server
        body = {**LONG, "sampling_params": {"max_new_tokens": 200, "ignore_eos": True}}
        streams = await open_streams(server.url, 2, body)
        for process in [*server.children().values(), psutil.Process(server.popen.pid)]:
            process.terminate()
        await ended(streams)
        assert all(stream.complete for stream in streams)
        assert server.wait() == ExitCode.DONE

    @pytest.mark.promise(11)
    async def test_promise_11_what_takes_too_long_is_cut_off_and_told(self) -> None:
        with toy("--drain-timeout", "0.2") as server:
            url = server.url
            streams = await open_streams(url, 2)
            children = list(server.children().values())
            async with httpx.AsyncClient(timeout=PATIENCE_S) as client:
                whole = asyncio.create_task(client.post(f"{url}/generate", json={**LONG, "stream": False}))
                await until_open(url, 3)
                server.send(signal.SIGTERM)
                await ended(streams)
                answer = await whole
            assert answer.status_code == 503 and "retry-after" in answer.headers
            for error in [*(stream.error for stream in streams), answer.json()["error"]]:
                assert error is not None
                assert (error["type"], error["code"]) == ("ShuttingDownError", "shutting_down")
                assert "shutting down" in str(error["message"]) and "died" not in str(error["message"])
            assert server.wait() == ExitCode.CUT_OFF
            assert_nothing_left(server, children)

    @pytest.mark.promise(11)
    async def test_a_second_signal_ends_at_once(self, server: ServerProcess) -> None:
        streams = await open_streams(server.url, 2)
        children = list(server.children().values())
        server.send(signal.SIGTERM)
        await first_refusal(server.url)
        await asyncio.sleep(SAME_SIGNAL_S + 0.1)
        server.send(signal.SIGTERM)
        assert server.wait() == ExitCode.CUT_OFF
        assert_nothing_left(server, children)
        for stream in streams:
            stream.task.cancel()

    def test_while_it_still_loads(self) -> None:
        with ServerProcess(*QUIET, program=FAULTY, FAULT="slow") as server:
            server.child(DETOKENIZER)
            children = list(server.children().values())
            server.send(signal.SIGTERM)
            assert server.wait() == ExitCode.DONE
            assert_nothing_left(server, children)

    def test_a_kill_before_it_is_ready_leaves_nothing_for_long(self) -> None:
        """No child at once, and no folder once another server has started."""
        with ServerProcess(*QUIET, program=FAULTY, FAULT="slow") as server:
            server.child(DETOKENIZER)
            children = list(server.children().values())
            (folder,) = server.runtime_dir.iterdir()
            server.send(signal.SIGKILL)
            assert server.wait() == -signal.SIGKILL
            wait_until_gone(children)
            place = {"XDG_RUNTIME_DIR": str(server.runtime_dir)}
            with WarmServer(*QUIET, program=FAULTY, FAULT="slow", **place) as next_server:
                next_server.child(DETOKENIZER)
                (other,) = server.runtime_dir.iterdir()
                assert other != folder
                next_server.send(signal.SIGTERM)
                assert next_server.wait() == ExitCode.DONE
            assert server.sockets() == []


class TestDeath:
    @pytest.mark.promise(1)
    @pytest.mark.promise(2)
    @pytest.mark.parametrize(("title", "name", "ranks"), VICTIMS)
    async def test_a_killed_child_ends_the_server_and_every_stream_hears_of_it(
        self, title: str, name: str, ranks: str
    ) -> None:
        count, kind = (64, ServerProcess) if title == SCHEDULER and ranks == "1" else (8, WarmServer)
        options = ("--max-running-requests", f"{count}", "--tp-size", ranks)
        # Room for all of them at once.
        with toy(*options, tokens=count * 2048, kind=kind) as server:
            streams = await open_streams(server.url, count)
            children = list(server.children().values())
            server.child(title).kill()
            await ended(streams)
            for stream in streams:
                assert stream.error is not None and stream.error["code"] == "engine_dead"
            assert server.wait() == ExitCode.WORKER_DIED
            assert_nothing_left(server, children)
            assert title in server.last_line and "SIGKILL" in server.last_line

    async def test_an_answer_that_is_no_stream_becomes_an_error(self, server: ServerProcess) -> None:
        url = server.url
        async with httpx.AsyncClient(timeout=PATIENCE_S) as client:
            asking = asyncio.create_task(client.post(f"{url}/generate", json={**LONG, "stream": False}))
            await until_open(url, 1)
            server.child(SCHEDULER).kill()
            answer = await asking
        assert answer.status_code == 503
        assert answer.json()["error"]["code"] == "engine_dead"

    @pytest.mark.promise(3)
    @pytest.mark.parametrize(
        ("fault", "says"),
        [("exit 0", "exited with code 0"), ("raise", "ZeroDivisionError: division by zero")],
    )
    async def test_a_scheduler_that_leaves_by_itself_is_as_dead(self, fault: str, says: str) -> None:
        faults = Faults(fault=fault, after=150, step_ms=10)
        with WarmServer(*QUIET, "--max-total-tokens", "8192", program=PROGRAM, **faults.env) as server:
            streams = await open_streams(server.url, 2)
            await ended(streams)
            assert all(stream.error is not None for stream in streams)
            assert server.wait() == ExitCode.WORKER_DIED
            assert says in server.last_line

    @pytest.mark.promise(46)
    async def test_promise_46_a_service_thread_of_the_main_process_that_dies_is_a_death(self, tmp_path: Path) -> None:
        sign = tmp_path / "die"
        os.mkfifo(sign)
        with WarmServer(*QUIET, program=("-m", "fixtures.mortal_server"), DIE_WHEN=str(sign)) as server:
            streams = await open_streams(server.url, 2)
            children = list(server.children().values())
            sign.write_text("")
            await ended(streams)
            assert all(stream.error is not None and stream.error["code"] == "engine_dead" for stream in streams)
            assert server.wait() == ExitCode.WORKER_DIED
            assert "'helper' died: ZeroDivisionError: division by zero" in server.last_line
            assert_nothing_left(server, children)

    @pytest.mark.promise(7)
    @pytest.mark.parametrize(("victim", "name", "ranks"), VICTIMS)
    async def test_a_frozen_process_is_given_up(self, victim: str, name: str, ranks: str) -> None:
        with toy("--watchdog-timeout", "2", "--tp-size", ranks) as server:
            streams = await open_streams(server.url, 2)
            children = list(server.children().values())
            server.child(victim).suspend()
            await ended(streams)
            assert all(stream.error is not None for stream in streams)
            assert server.wait() == ExitCode.WATCHDOG
            assert_nothing_left(server, children)
            assert "--watchdog-timeout 2" in server.last_line
            # Ranks that wait for a frozen one are as silent as it is.
            assert f"{victim} was stopped by a signal: the " in server.last_line
            assert f"the {name} " in server.last_line
            others = "scheduler.py" if victim == DETOKENIZER else "detokenizer_manager.py"
            assert others in server.stderr, "the stacks of the other processes"

    @pytest.mark.slow
    @pytest.mark.promise(47)
    async def test_promise_47_a_pause_is_no_death(self) -> None:
        """The whole server is paused for three times the watchdog's time, or its main process, which watches, for
        two.
        """
        limit = 2
        with toy("--watchdog-timeout", f"{limit}", kind=ServerProcess) as server:
            url = server.url
            body = {**LONG, "sampling_params": {"max_new_tokens": 300, "ignore_eos": True}}
            streams = await open_streams(url, 2, body)
            with suspended_whole(server):
                await asyncio.sleep(3 * limit)
            main = psutil.Process(server.popen.pid)
            with suspended(main):
                await asyncio.sleep(2 * limit)
            async with httpx.AsyncClient(timeout=PATIENCE_S) as client:
                assert (await client.get(f"{url}/health")).status_code == 200
            await ended(streams)
            assert all(stream.complete for stream in streams)
            await asyncio.sleep(limit)
            assert server.popen.poll() is None
            assert server.stderr == ""

    @pytest.mark.promise(4)
    async def test_nothing_outlives_a_killed_parent(self, cold_server: ServerProcess) -> None:
        server = cold_server
        url = server.url
        streams = await open_streams(url, 4)
        children = list(server.children().values())
        server.send(signal.SIGKILL)
        assert server.wait() == -signal.SIGKILL
        assert_nothing_left(server, children)
        wait_until(lambda: is_free(httpx.URL(url).port or 0), lambda: "something still listens there")
        for stream in streams:
            stream.task.cancel()


def is_free(port: int) -> bool:
    with socket.socket() as again:
        again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            again.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


class TestStart:
    def fails(self, *options: str, code: ExitCode, says: str) -> None:
        with WarmServer(*QUIET, *options) as server:
            assert server.wait() == code
            assert says in server.last_line
            assert "Traceback" not in server.stderr
            assert server.sockets() == []

    @pytest.mark.promise(6)
    def test_bad_options_are_all_named(self) -> None:
        with ServerProcess("--page-size", "3", "--chunked-prefill-size", "0", "--model-path", "/nowhere") as server:
            assert server.wait() == ExitCode.BAD_OPTIONS
            lines = server.stderr.splitlines()
        assert len(lines) == 3
        assert all(line.startswith("mysglang: error: --") for line in lines)

    @pytest.mark.promise(6)
    @pytest.mark.parametrize(
        ("options", "says"),
        [
            (("--enable-lora",), "--enable-lora is an option of SGLang that this version"),
            (("--prot", "80"), "did you mean --port?"),
            (("--model-path", "/nowhere"), "--model-path /nowhere: there is no such directory"),
        ],
    )
    def test_bad_option(self, options: tuple[str, ...], says: str) -> None:
        self.fails(*options, code=ExitCode.BAD_OPTIONS, says=says)

    @pytest.mark.promise(6)
    def test_busy_port(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as other:
            port = other.getsockname()[1]
            says = f"--port {port}: the port is in use by process {os.getpid()}"
            self.fails("--port", str(port), code=ExitCode.START_FAILED, says=says)

    @pytest.mark.promise(5)
    def test_unknown_architecture(self, tmp_path: Path) -> None:
        model = broken_copy(tmp_path, "config.json", b'{"architectures": ["OtherForCausalLM"]}')
        self.fails("--model-path", model, code=ExitCode.START_FAILED, says="OtherForCausalLM is not supported")

    @pytest.mark.promise(5)
    def test_config_that_is_no_json(self, tmp_path: Path) -> None:
        model = broken_copy(tmp_path, "config.json", b"{")
        self.fails("--model-path", model, code=ExitCode.START_FAILED, says="config.json is not valid JSON")

    @pytest.mark.promise(49)
    @pytest.mark.parametrize(
        ("name", "says"),
        [
            ("config.json", "config.json is a pipe, not a regular file"),
            ("tokenizer.json", "tokenizer.json is a pipe, not a regular file"),
            ("model.safetensors", "model.safetensors is a pipe, not a regular file"),
        ],
    )
    def test_a_pipe_in_place_of_a_file(self, tmp_path: Path, name: str, says: str) -> None:
        model = broken_copy(tmp_path, name, None)
        os.mkfifo(Path(model) / name)
        self.fails("--model-path", model, code=ExitCode.START_FAILED, says=says)

    @pytest.mark.promise(49)
    @pytest.mark.parametrize(
        ("values", "options", "says"),
        [
            ({"num_hidden_layers": 10**9}, (), "num_hidden_layers must be a whole number, at most 4096"),
            ({"num_hidden_layers": 4000}, (), "num_hidden_layers is 4000, and the checkpoint holds 8 layers"),
            (
                {"num_hidden_layers": 4000, "intermediate_size": 1 << 22},
                ("--load-format", "dummy"),
                "intermediate_size 4194304",
            ),
        ],
    )
    def test_sizes_of_another_model(
        self, tmp_path: Path, values: dict[str, int], options: tuple[str, ...], says: str
    ) -> None:
        config = json.loads((EMBEDDED_MODEL / "config.json").read_text()) | values
        model = broken_copy(tmp_path, "config.json", json.dumps(config).encode())
        self.fails("--model-path", model, *options, code=ExitCode.START_FAILED, says=says)

    @pytest.mark.promise(5)
    def test_truncated_weights(self, tmp_path: Path) -> None:
        whole = (EMBEDDED_MODEL / "model.safetensors").read_bytes()
        model = broken_copy(tmp_path, "model.safetensors", whole[: len(whole) // 2])
        self.fails("--model-path", model, code=ExitCode.START_FAILED, says="model.safetensors")

    @pytest.mark.promise(5)
    def test_missing_weights(self, tmp_path: Path) -> None:
        model = broken_copy(tmp_path, "model.safetensors", None)
        self.fails("--model-path", model, code=ExitCode.START_FAILED, says=model)

    @pytest.mark.promise(5)
    def test_broken_tokenizer(self, tmp_path: Path) -> None:
        model = broken_copy(tmp_path, "tokenizer.json", b"{}")
        self.fails("--model-path", model, code=ExitCode.START_FAILED, says="tokenizer.json")

    @pytest.mark.promise(5)
    @pytest.mark.parametrize(
        ("fault", "says"),
        [
            ("silent exit", f"{SCHEDULER} exited with code 0 before it was ready"),
            ("memory", "MemoryError: no room for the weights"),
            ("abort", f"{SCHEDULER} was ended by SIGABRT before it was ready"),
        ],
    )
    def test_a_scheduler_that_dies_while_it_starts(self, fault: str, says: str) -> None:
        kind = ServerProcess if fault == "memory" else WarmServer
        with kind(*QUIET, program=FAULTY, FAULT=fault) as server:
            assert server.wait() == ExitCode.START_FAILED
            assert says in server.last_line
            assert server.sockets() == []

    def test_probes_hear_503_while_it_loads(self) -> None:
        with (
            reserved_port() as port,
            WarmServer(*QUIET, "--port", str(port), program=FAULTY, FAULT="slow"),
        ):
            answer = wait_for_answer(f"http://127.0.0.1:{port}/health")
            assert answer.status_code == 503
            assert answer.json()["error"]["message"] == "The server is starting."

    def test_a_scheduler_that_takes_too_long_is_named(self) -> None:
        with WarmServer(*QUIET, program=FAULTY, FAULT="slow", MYSGLANG_START_TIMEOUT="2") as server:
            assert server.wait() == ExitCode.START_FAILED
            assert f"{SCHEDULER} did not become ready within 2 s" in server.last_line


def broken_copy(folder: Path, name: str, content: bytes | None) -> str:
    """The embedded model with one file replaced, or missing."""
    model = folder / "model"
    shutil.copytree(EMBEDDED_MODEL, model)
    (model / name).unlink()
    if content is not None:
        (model / name).write_bytes(content)
    return str(model)


def wait_for_answer(url: str) -> httpx.Response:
    answers: list[httpx.Response] = []

    def answered() -> bool:
        with suppress(httpx.TransportError):
            answers.append(httpx.get(url, timeout=PATIENCE_S))
        return bool(answers)

    wait_until(answered, lambda: "nobody answers")
    return answers[0]
