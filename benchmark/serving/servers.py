"""Servers with random weights for the ladder of loads: mysglang's, or vLLM's under the same load."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

from shapes import SHAPES, write_shape
from tokenizers import Tokenizer, models, pre_tokenizers

START_S = 300
"""Seconds within which a server must be ready."""
STOP_S = 30
"""Seconds that a server has to end before it is killed."""
VLLM_NAME = "m"
"""Name under which vLLM serves the model."""


@dataclass(frozen=True, slots=True)
class Api:
    """How `bench_serving` asks a server."""

    base_url: str
    backend: str
    """The API, as bench_serving calls it."""
    served_model: str = ""
    """The model's name at the server; empty where there is only one."""
    tokenizer: str = ""
    """A folder, for a server that does not tell its vocabulary."""


@dataclass(frozen=True, slots=True)
class Launch:
    """How a server is started and asked."""

    command: Sequence[str]
    api: Api
    environment: Mapping[str, str] = field(default_factory=dict)
    """Set in addition to this process's own variables."""


def mysglang(model: str, folder: Path, port: int, options: Sequence[str]) -> Launch:
    """Returns mysglang's server of a shape, or of the embedded model `tiny`."""
    shape = "tiny" if model == "tiny" else str(write_shape(model, folder))
    random = () if model == "tiny" else ("--load-format", "dummy", "--skip-tokenizer-init")
    flags = ("--model-path", shape, *random, "--port", str(port), *options)
    return Launch((sys.executable, "-m", "mysglang.launch_server", *flags), Api(at(port), "sglang"))


def at(port: int) -> str:
    return f"http://127.0.0.1:{port}"


def vllm(model: str, folder: Path, port: int, options: Sequence[str], path: Path | None) -> Launch:
    """Returns vLLM's OpenAI server of a shape, with room for 512 requests.

    `path`: the folder to import it from, instead of what is installed.
    """
    shape = write_shape(model, folder)
    write_words(shape, SHAPES[model]["vocab_size"])
    flags = {
        "--model": str(shape),
        "--load-format": "dummy",
        "--served-model-name": VLLM_NAME,
        "--max-num-seqs": "512",
        "--max-model-len": "8192",
        "--gpu-memory-utilization": "0.85",
        "--port": str(port),
    }
    command = (sys.executable, "-m", "vllm.entrypoints.openai.api_server", *chain.from_iterable(flags.items()))
    environment = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    if path is not None:
        environment["PYTHONPATH"] = str(path)
    return Launch((*command, *options), Api(at(port), "vllm", VLLM_NAME, str(shape)), environment)


def write_words(folder: Path, vocab_size: int) -> None:
    """Writes a tokenizer of as many words as the model has ids, because vLLM's server wants one."""
    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(vocab_size)}, unk_token="w0"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "w0"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


@contextmanager
def running(launch: Launch, log: Path) -> Iterator[Api]:
    """Starts the server, waits until it is ready, and ends it with all its processes. Raises SystemExit with the end of
    its log if it does not become ready.
    """
    with log.open("w") as out:
        server = subprocess.Popen(
            launch.command,
            env={**os.environ, **launch.environment},
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        began = time.monotonic()
        while not healthy(launch.api.base_url):
            if server.poll() is not None or time.monotonic() - began > START_S:
                sys.exit(f"the server is not ready:\n{log.read_text()[-3000:]}")
            time.sleep(0.2)
        print(f"ready after {time.monotonic() - began:.1f} s", flush=True)
        yield launch.api
    finally:
        server.send_signal(signal.SIGTERM)
        try:
            server.wait(STOP_S)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()
        with suppress(ProcessLookupError):  # all its processes have ended
            os.killpg(server.pid, signal.SIGKILL)


def healthy(base_url: str) -> bool:
    """True if the server there says that it is. Asks it directly, whatever proxy the environment names."""
    connection = http.client.HTTPConnection(base_url.removeprefix("http://"), timeout=5)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()
