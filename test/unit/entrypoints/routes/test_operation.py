"""The operator's routes: closed by default, and the command that each of them sends to the scheduler."""

from pathlib import Path
from typing import Any

import orjson
import pytest

from fixtures.scripted_engine import serve
from mysglang.srt.entrypoints.app_options import AppOptions
from mysglang.srt.entrypoints.crash_records import NoCrashRecords
from mysglang.srt.entrypoints.request_log import LoggedManager
from mysglang.srt.errors import Conflict
from mysglang.srt.messages.control import (
    ContinueGenerationReq,
    FreezeGcReq,
    PauseGenerationReq,
    SetInternalStateReq,
    StartProfileReq,
)
from mysglang.srt.messages.generate import GenerateReqInput
from mysglang.srt.sampling.sampling_params import SamplingParams

ADMIN = AppOptions(admin_key="a")
KEY = {"Authorization": "Bearer a"}
PATHS = (
    "/pause_generation",
    "/continue_generation",
    "/freeze_gc",
    "/start_profile",
    "/stop_profile",
    "/configure_logging",
    "/set_internal_state",
)


@pytest.mark.promise(38)
@pytest.mark.parametrize(
    ("options", "key", "status"),
    [
        (AppOptions(), None, 403),
        (AppOptions(), "a", 403),
        (AppOptions(api_keys=("k",)), None, 401),
        (AppOptions(api_keys=("k",)), "k", 403),
        (AppOptions(api_keys=("k",), admin_key="a"), "k", 403),
        (AppOptions(admin_key="a"), None, 401),
    ],
)
async def test_closed_without_the_admin_key(options: AppOptions, key: str | None, status: int) -> None:
    async with serve(options=options) as served:
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        for path in PATHS:
            assert (await served.client.post(path, headers=headers, json={})).status_code == status
        assert not served.engine.sent


async def test_nothing_by_get() -> None:
    async with serve(options=ADMIN) as served:
        assert {(await served.client.get(path, headers=KEY)).status_code for path in PATHS} == {405}


async def test_commands_reach_the_scheduler() -> None:
    async with serve(options=ADMIN) as served:
        paused = await served.post("/pause_generation", {"mode": "retract"}, headers=KEY)
        assert (paused.status_code, paused.json()["status"]) == (200, "ok")
        for path in ("/continue_generation", "/freeze_gc"):
            assert (await served.client.post(path, headers=KEY)).status_code == 200
        profile = {"output_dir": "/x", "profile_id": "p", "profile_prefix": "run", "num_steps": 3, "start_step": 7}
        profile |= {"activities": ["STEPS"], "profile_by_stage": True}
        await served.post("/start_profile", profile, headers=KEY)
        served.engine.busy = True
        refused = await served.client.post("/stop_profile", headers=KEY)
        first, second, third, fourth, _ = served.engine.sent
    assert isinstance(first, PauseGenerationReq)
    assert first.mode == "retract"
    assert isinstance(second, ContinueGenerationReq)
    assert isinstance(third, FreezeGcReq)
    assert isinstance(fourth, StartProfileReq)
    assert (fourth.output_dir, fourth.name, fourth.num_steps, fourth.activities) == ("/x", "run-p", 3, ["STEPS"])
    assert (fourth.start_step, fourth.stages) == (7, ["prefill", "decode"])
    assert (refused.status_code, refused.json()["error"]["message"]) == (400, "as asked")


async def test_numbers_of_a_profile_may_be_strings() -> None:
    """The form in which SGLang's bench_serving sends them."""
    async with serve(options=ADMIN) as served:
        taken = await served.post("/start_profile", {"output_dir": "/x", "num_steps": "3"}, headers=KEY)
        [message] = served.engine.sent
        refused = await served.post("/start_profile", {"output_dir": "/x", "num_steps": "three"}, headers=KEY)
    assert taken.status_code == 200
    assert isinstance(message, StartProfileReq) and message.num_steps == 3
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "num_steps")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/pause_generation", {}),
        ("/release_memory_occupation", {}),
        ("/destroy_weights_update_group", {}),
        ("/get_weights_by_name", {"name": "x"}),
    ],
)
async def test_a_command_that_is_refused_names_the_field_to_blame(path: str, body: dict[str, Any]) -> None:
    async with serve(options=ADMIN) as served:
        served.engine.busy = True
        refused = await served.post(path, body, headers=KEY)
        served.engine.refusal = Conflict("not now", param="blamed")
        later = await served.post(path, body, headers=KEY)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "blamed")
    assert (later.status_code, later.json()["error"]["param"]) == (409, "blamed")


async def test_options_that_change() -> None:
    async with serve(options=ADMIN) as served:
        changed = await served.post("/set_internal_state", {"server_args": {"stream_interval": 3}}, headers=KEY)
        [message] = served.engine.sent
    assert (changed.status_code, changed.json()["updated"]) == (200, True)
    assert isinstance(message, SetInternalStateReq)
    assert (message.stream_interval, message.decode_log_interval) == (3, None)


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/pause_generation", {"mode": "stop"}, "mode"),
        ("/continue_generation", {"torch_empty_cache": True}, "torch_empty_cache"),
        ("/start_profile", {"profile_id": "../../etc/x"}, "profile_id"),
        ("/start_profile", {"activities": ["MEM"]}, "activities.0"),
        ("/start_profile", {"start_step": -1}, "start_step"),
        ("/start_profile", {"merge_profiles": True}, "merge_profiles"),
        ("/start_profile", {"profile_by_stage": True}, "num_steps"),
        ("/start_profile", {"profile_stages": ["encode"]}, "profile_stages.0"),
        ("/configure_logging", {"log_level": "debug"}, "log_level"),
        ("/configure_logging", {"dump_requests_folder": "/proc/nowhere"}, "dump_requests_folder"),
        ("/set_internal_state", {}, "server_args"),
        ("/set_internal_state", {"server_args": {"tp_size": 2}}, "server_args.tp_size"),
        ("/set_internal_state", {"server_args": {"stream_interval": 0}}, "server_args.stream_interval"),
        ("/set_internal_state", {"server_args": {"pp_max_micro_batch_size": 2}}, "server_args.pp_max_micro_batch_size"),
    ],
)
async def test_refusals_name_the_field(path: str, body: dict[str, Any], param: str) -> None:
    async with serve(options=ADMIN) as served:
        response = await served.post(path, body, headers=KEY)
        assert not served.engine.sent
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)


async def test_requests_are_kept_from_when_it_is_asked_for(tmp_path: Path) -> None:
    async with serve(options=ADMIN) as served:
        manager = LoggedManager(served.front.tokenizer_manager, served.front.request_log, NoCrashRecords())

        async def ask(**fields: Any) -> None:
            params = SamplingParams(temperature=0.5, logit_bias={5: 1.0})
            async for _ in manager.generate_request(GenerateReqInput(text="Hi", sampling_params=params, **fields)):
                pass

        await ask(rid="before")
        told = await served.post("/configure_logging", {"dump_requests_folder": str(tmp_path)}, headers=KEY)
        await ask(rid="kept", stream=True)
        await ask(rid="private", no_logs=True)
        await served.post("/configure_logging", {"dump_requests_folder": ""}, headers=KEY)
        await ask(rid="after")
        assert told.json() == {"log_requests": False, "dump_requests_folder": str(tmp_path)}
        [file] = tmp_path.iterdir()
        [line] = file.read_bytes().splitlines()
        record = orjson.loads(line)
        assert file.stat().st_mode & 0o777 == 0o600
        assert record["rid"] == "kept"
        assert record["answers"][0]["text"] == "Hello world"
        # What was kept can be asked again as it stands.
        again = await served.post("/generate", {**record["request"], "stream": False})
        assert (again.status_code, again.json()["text"]) == (200, "Hello world")
        first, second = served.engine.requests[1], served.engine.requests[-1]
        assert first.input_ids == second.input_ids
        assert second.sampling_params.logit_bias == {5: 1.0}
