"""`mysglang profile`: have a running server record some steps, wait for the files, and print where they are.

SGLang's `sglang.profiler`, under its flags; `python -m mysglang.profiler` is the same.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from mysglang.bench.flags import ToolParser, natural, positive
from mysglang.bench.refused import Failed, Refused
from mysglang.cli.api_client import ApiClient, ServerRefused
from mysglang.cli.arguments import add_server_flags
from mysglang.srt.environ import ADMIN_API_KEY, BASE_URL

SGLANG_ONLY = "mem rpd merge-profiles"
POLL_S = 0.05
SPARE_TOKENS = 8


def make_parser(prog: str) -> ToolParser:
    parser = ToolParser(
        prog,
        "Record some steps of a running server, and print the paths of the traces, which Perfetto "
        "(https://ui.perfetto.dev) shows. The server must have an admin key.",
        examples={
            "{prog} --num-steps 20": "Record 20 steps of the requests that are running.",
            '{prog} --num-steps 20 --prompt "Tell me a story."': "Send requests while recording: for an idle server.",
            "{prog} --no-cpu --no-gpu": "Record the phases of the scheduler's steps alone, which costs little.",
        },
    )
    part = parser.add_argument_group("recording")
    part.add_argument("--num-steps", type=positive, default=5, help="Number of steps to record.")
    part.add_argument(
        "--start-step",
        type=natural,
        default=0,
        help="Begin to record when the server has run so many steps since its start.",
    )
    part.add_argument(
        "--output-dir",
        default="/tmp/mysglang-profile",
        metavar="DIR",
        help="Directory for the traces, on the server's machine.",
    )
    part.add_argument("--profile-prefix", metavar="NAME", help="Beginning of the names of the files.")
    part.add_argument(
        "--profile-by-stage", action="store_true", help="Make one recording of prefill steps, and one of decode steps."
    )
    on_off = argparse.BooleanOptionalAction
    part.add_argument("--steps", action=on_off, default=True, help="Record the phases of each step on the host.")
    part.add_argument("--cpu", action=on_off, default=True, help="Record functions on the host, with torch's profiler.")
    part.add_argument(
        "--gpu", action=on_off, help="Record kernels, with torch's profiler. Default: on if the server has a GPU."
    )
    part.add_argument("--with-stack", action="store_true", help="Also record Python's stacks, which costs time.")
    part.add_argument("--record-shapes", action="store_true", help="Also record the shapes of tensors.")
    part = parser.add_argument_group("load")
    part.add_argument(
        "--prompt", metavar="TEXT", help="Prompt to send while recording, so that there are steps to record."
    )
    part.add_argument(
        "--timeout", type=positive, default=60, metavar="SECONDS", help="Seconds to wait at most for the steps."
    )
    add_server_flags(parser)
    parser.add_argument(
        "--admin-api-key",
        metavar="KEY",
        help=f"Admin key of the server. Default: ${ADMIN_API_KEY.name}, if it is set.",
    )
    return parser


def main(argv: Sequence[str], prog: str) -> int:
    """Runs the tool. Returns 0 if every trace was written in time."""
    options = make_parser(prog).parse_all(argv, SGLANG_ONLY)
    url = options.base_url or BASE_URL.get()
    client = ApiClient(url, options.api_key)
    owner = ApiClient(url, options.admin_api_key or ADMIN_API_KEY.get() or options.api_key)
    info = client.get("/server_info")
    activities = _activities(options, info)
    name = f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
    body = {
        "output_dir": str(Path(options.output_dir).absolute()),
        "num_steps": options.num_steps,
        "start_step": options.start_step,
        "activities": activities,
        "profile_by_stage": options.profile_by_stage,
        "with_stack": options.with_stack,
        "record_shapes": options.record_shapes,
        "profile_id": name,
        "profile_prefix": options.profile_prefix,
    }
    files = ("STEPS" in activities) + bool(set(activities) - {"STEPS"})
    wanted = files * (2 if options.profile_by_stage else 1) * int(info.get("tp_size", 1)) * int(info.get("pp_size", 1))
    prefix = f"{options.profile_prefix}-{name}" if options.profile_prefix else name
    with _recording(owner, body), _load(client, options) as errors:
        return _wait(owner, Path(body["output_dir"]), prefix, wanted, options.timeout, errors)


def _activities(options: argparse.Namespace, info: dict[str, Any]) -> list[str]:
    gpu = info.get("device") == "cuda" if options.gpu is None else options.gpu
    chosen = [name for name, on in (("CPU", options.cpu), ("GPU", gpu), ("STEPS", options.steps)) if on]
    if not chosen:
        raise Refused("nothing is to be recorded: leave out --no-steps, --no-cpu or --no-gpu.")
    return chosen


@contextlib.contextmanager
def _recording(owner: ApiClient, body: dict[str, Any]) -> Iterator[None]:
    """Starts a recording. Ctrl-C inside the block ends it, so that another one can begin."""
    owner.post("/start_profile", body)
    try:
        yield
    except KeyboardInterrupt:
        with contextlib.suppress(Failed):
            owner.post("/stop_profile", {})
        raise


def _wait(owner: ApiClient, folder: Path, prefix: str, wanted: int, seconds: float, errors: Sequence[Failed]) -> int:
    """Wait until that many files exist. After `seconds`, or at an error of the load, tell the server to write what it
    has recorded.
    """
    end = time.monotonic() + seconds
    while len(found := _files(folder, prefix)) < wanted and time.monotonic() < end and not errors:
        time.sleep(POLL_S)
    in_time = len(found) >= wanted
    if not in_time:
        with contextlib.suppress(ServerRefused):  # no step came that it was to begin with, or it ended just now
            owner.post("/stop_profile", {})
        found = _files(folder, prefix)
    for path in found:
        print(path)
    if in_time:
        return 0
    if errors:
        raise errors[0]
    if not folder.is_dir():
        raise Failed(f"{folder} is not on this machine; look for {prefix}* on the server's.")
    raise Failed(
        f"after {seconds:g} s not all steps had come; the traces hold those that had. Does the server have requests to "
        "work on? --prompt sends one, and --timeout waits longer."
    )


def _files(folder: Path, prefix: str) -> list[Path]:
    return sorted(folder.glob(f"{prefix}*.trace.json.gz"))


@contextlib.contextmanager
def _load(client: ApiClient, options: argparse.Namespace) -> Iterator[Sequence[Failed]]:
    """Sends the prompt, if there is one, and yields a list for the error that it may end with. Waits for the answer,
    unless the block raises.
    """
    errors: list[Failed] = []
    if options.prompt is None:
        yield errors
        return
    tokens = options.start_step + options.num_steps + SPARE_TOKENS
    sampling = {"max_new_tokens": tokens, "ignore_eos": True, "temperature": 0.0}
    body = {"text": options.prompt, "sampling_params": sampling}

    def ask() -> None:
        try:
            client.post("/generate", body)
        except Failed as error:
            errors.append(error)

    thread = threading.Thread(target=ask, name="load", daemon=True)
    thread.start()
    yield errors
    thread.join()
    if errors:
        raise errors[0]
