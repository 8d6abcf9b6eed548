"""Engine: the server's answers without HTTP, from a plain script, a thread, or an event loop; and its end."""

import asyncio
import itertools
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from fixtures.patience import PATIENCE_S
from fixtures.server_process import python_path
from mysglang import Engine
from mysglang.srt.errors import ConfigError, InvalidRequest, WorkerDied
from mysglang.srt.managers.tokenize_job import PIECE_IDS

GREEDY = {"temperature": 0.0, "max_new_tokens": 6, "ignore_eos": True}
IDS = [100, 200, 300]


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    # In float32 no two tokens are so nearly as likely that company decides between them.
    with Engine(dtype="float32") as started:
        yield started


def test_a_profile(engine: Engine, tmp_path: Path) -> None:
    begun, _ = engine.start_profile(output_dir=str(tmp_path), profile_id="p", activities=["STEPS"])
    again, why = engine.start_profile(output_dir=str(tmp_path))
    assert (begun, again) == (True, False) and "recorded already" in why
    engine.generate(input_ids=IDS, sampling_params=GREEDY)
    written, where = engine.stop_profile()
    path = tmp_path / "p.steps.trace.json.gz"
    assert written and str(path) in where and path.exists()
    with pytest.raises(InvalidRequest, match="num_steps"):
        engine.start_profile(num_steps=0)


def children() -> list[psutil.Process]:
    return [child for child in psutil.Process().children() if child.status() != psutil.STATUS_ZOMBIE]


def idle(engine: Engine) -> dict[str, int]:
    """The scheduler's state once it has nothing to do."""
    for _ in range(100):
        state: dict[str, int] = engine.get_server_info()["internal_states"][0]
        if state["num_running_reqs"] == state["num_waiting_reqs"] == 0:
            return state
    raise AssertionError(state)


def test_one_prompt(engine: Engine) -> None:
    answer = engine.generate("The capital of France is", GREEDY)
    assert answer["meta_info"]["completion_tokens"] == 6
    assert answer["meta_info"]["finish_reason"] == {"type": "length", "length": 6}
    assert len(answer["output_ids"]) == 6
    assert answer["text"]


def test_a_batch_answers_in_order(engine: Engine) -> None:
    solo = [engine.generate(input_ids=[*IDS, last], sampling_params=GREEDY)["output_ids"] for last in range(400, 405)]
    batch = engine.generate(input_ids=[[*IDS, last] for last in range(400, 405)], sampling_params=GREEDY)
    assert [answer["output_ids"] for answer in batch] == solo


def test_a_batch_that_is_sent_in_pieces_answers_in_order(engine: Engine) -> None:
    common = [100 + i % 3000 for i in range(480)]
    prompts = [[*common, *range(500 + i, 520 + i)] for i in range(80)]
    assert sum(map(len, prompts)) > 2 * PIECE_IDS
    batch = engine.generate(input_ids=prompts, sampling_params=GREEDY)
    asked = (0, 1, 31, 32, 33, 64, 65, 79)
    solo = [engine.generate(input_ids=prompts[i], sampling_params=GREEDY)["output_ids"] for i in asked]
    assert [batch[i]["output_ids"] for i in asked] == solo
    assert len({tuple(answer["output_ids"]) for answer in batch}) > 1


def test_a_batch_with_a_wrong_id_far_behind_leaves_nothing(engine: Engine) -> None:
    prompts = [[100 + i] * 500 for i in range(80)]
    for wrong, message in ((1 << 20, "out-of-vocabulary"), ("a", "must be integers"), (True, "must be integers")):
        prompts[-1][250] = wrong  # type: ignore[call-overload]
        with pytest.raises(InvalidRequest, match=message) as caught:
            engine.generate(input_ids=prompts, sampling_params=GREEDY)
        assert caught.value.param == "input_ids"
        idle(engine)


def test_a_stream_grows_to_the_whole_answer(engine: Engine) -> None:
    whole = engine.generate(input_ids=IDS, sampling_params=GREEDY)
    grown = list(engine.generate(input_ids=IDS, sampling_params=GREEDY, stream=True))
    assert all(later["text"].startswith(earlier["text"]) for earlier, later in itertools.pairwise(grown))
    assert grown[-1]["output_ids"] == whole["output_ids"]
    assert grown[-1]["text"] == whole["text"]


def test_leaving_a_stream_ends_the_request(engine: Engine) -> None:
    before = idle(engine)["forward_steps"]
    for _ in engine.generate(input_ids=IDS, sampling_params={**GREEDY, "max_new_tokens": 1500}, stream=True):
        break
    assert idle(engine)["forward_steps"] - before < 1500


async def test_in_an_event_loop(engine: Engine) -> None:
    answer, grown = await asyncio.gather(
        engine.async_generate(input_ids=IDS, sampling_params=GREEDY),
        collect(engine, input_ids=IDS, sampling_params=GREEDY),
    )
    assert grown[-1]["output_ids"] == answer["output_ids"]


async def collect(engine: Engine, **request: object) -> list[dict[str, object]]:
    return [response async for response in await engine.async_generate(stream=True, **request)]  # type: ignore[arg-type]


def test_from_many_threads(engine: Engine) -> None:
    expected = engine.generate(input_ids=IDS, sampling_params=GREEDY)["output_ids"]
    found: list[list[int]] = []
    threads = [
        threading.Thread(
            target=lambda: found.append(engine.generate(input_ids=IDS, sampling_params=GREEDY)["output_ids"])
        )
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=PATIENCE_S)
    assert found == [expected] * 8


def test_logprobs_and_n(engine: Engine) -> None:
    answers = engine.generate(
        input_ids=IDS, sampling_params={**GREEDY, "n": 2}, return_logprob=True, top_logprobs_num=2
    )
    assert len(answers) == 2
    assert len(answers[0]["meta_info"]["output_token_logprobs"]) == 6
    assert len(answers[1]["meta_info"]["output_top_logprobs"][0]) == 2


def test_bad_requests_are_refused_by_name(engine: Engine) -> None:
    with pytest.raises(InvalidRequest, match="temprature"):
        engine.generate("x", {"temprature": 1})
    with pytest.raises(InvalidRequest, match="image_dat"):
        engine.generate("x", image_dat=[])
    with pytest.raises(InvalidRequest, match="top_p"):
        engine.generate("x", {"top_p": 2})


def test_flush_and_info(engine: Engine) -> None:
    assert engine.flush_cache().success
    info = engine.get_server_info()
    assert "api_key" not in info
    assert info["page_size"] == 1
    assert info["scheduler_info"]["max_total_num_tokens"] > 0
    assert info["internal_states"][0]["evictable_tokens"] == 0


def test_bad_options_start_nothing() -> None:
    before = children()
    with pytest.raises(ConfigError, match=r"^pagesize is not an option; did you mean page_size"):
        Engine(pagesize=4)
    with pytest.raises(ConfigError, match="unheard of"):
        Engine(chat_template="unheard of")
    assert children() == before


def test_a_dead_scheduler_is_told_to_whoever_waits_and_whoever_comes() -> None:
    engine = Engine(log_level="critical")
    try:
        stream = engine.generate(input_ids=IDS, sampling_params={**GREEDY, "max_new_tokens": 1500}, stream=True)
        next(stream)
        (scheduler,) = [child for child in children() if "scheduler" in child.cmdline()[0]][-1:]
        scheduler.kill()
        with pytest.raises(WorkerDied, match="SIGKILL"):
            list(stream)
        with pytest.raises(WorkerDied, match="SIGKILL"):
            engine.generate(input_ids=IDS, sampling_params=GREEDY)
    finally:
        engine.shutdown()
    engine.shutdown()


def test_a_plain_script_needs_no_guard_and_leaves_nothing(tmp_path: Path) -> None:
    """Without `if __name__`, without shutdown, run in a folder that is not ours."""
    script = tmp_path / "script.py"
    script.write_text(
        """
import mysglang, psutil
print("once")
engine = mysglang.Engine()
print(len(engine.generate("Hi", {"max_new_tokens": 3, "ignore_eos": True})["output_ids"]))
print(*[child.pid for child in psutil.Process().children()])
"""
    )
    environment = os.environ | {"PYTHONPATH": python_path("python"), "XDG_RUNTIME_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=PATIENCE_S, cwd=tmp_path, env=environment
    )
    assert done.returncode == 0, done.stderr
    once, tokens, pids = done.stdout.splitlines()
    assert (once, tokens) == ("once", "3")
    assert len(pids.split()) == 2
    assert not any(psutil.pid_exists(int(pid)) for pid in pids.split())
    assert [path.name for path in tmp_path.iterdir()] == ["script.py"]
    assert done.stderr == ""


def test_a_program_without_standard_files_ends_well(tmp_path: Path) -> None:
    code = """
import mysglang
with open("answer", "w") as file:
    file.write(mysglang.Engine().generate("Hi", {"max_new_tokens": 1})["text"])
"""
    environment = os.environ | {"PYTHONPATH": python_path("python")}
    command = ["bash", "-c", f"exec {sys.executable} -c '{code}' <&- >&- 2>&-"]
    done = subprocess.run(command, timeout=PATIENCE_S, cwd=tmp_path, env=environment)
    assert done.returncode == 0
    assert (tmp_path / "answer").read_text()


@pytest.mark.skipif(threading.current_thread() is not threading.main_thread(), reason="signals go to the main thread")
def test_an_interrupted_call_ends_its_request(engine: Engine) -> None:
    before = idle(engine)["forward_steps"]
    timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    # Where the tests run as a shell's job in the background, SIGINT is ignored.
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            timer.start()
            engine.generate(input_ids=IDS, sampling_params={**GREEDY, "max_new_tokens": 1900})
    finally:
        signal.signal(signal.SIGINT, handler)
    assert idle(engine)["forward_steps"] - before < 1900
    assert len(engine.generate(input_ids=IDS, sampling_params=GREEDY)["output_ids"]) == 6
