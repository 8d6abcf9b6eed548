"""Probes: liveness is the heartbeat and gives the engine nothing to do; the deep check takes its request back."""

import pytest

from fixtures.scripted_engine import Script, hello, serve, silent
from mysglang.srt.entrypoints.app_options import AppOptions
from mysglang.srt.entrypoints.routes import health
from mysglang.srt.errors import WorkerDied

# Limits are so long that the time which the machine takes for a test is nothing beside them.


@pytest.mark.promise(7)
@pytest.mark.parametrize("path", ["/health", "/ready"])
async def test_alive_by_heartbeat_alone(path: str) -> None:
    async with serve(silent, AppOptions(heartbeat_limit_s=5000)) as served:
        signs = served.front.tokenizer_manager.signs
        for silence, status in ((0.0, 200), (4000.0, 200), (6000.0, 503)):
            signs.last_heartbeat -= silence
            response = await served.client.get(path)
            assert response.status_code == status
            assert (await served.client.head(path)).status_code == status
            signs.last_heartbeat += silence
        assert not served.engine.sent
    assert response.json()["error"]["message"] == "The scheduler gives no sign of life."


async def test_a_silent_detokenizer() -> None:
    async with serve(silent, AppOptions(heartbeat_limit_s=5000)) as served:
        served.front.tokenizer_manager.signs.last_detokenizer_beat -= 6000
        response = await served.client.get("/health")
    assert response.status_code == 503
    assert response.json()["error"]["message"] == "The detokenizer gives no sign of life."


async def test_a_server_that_never_heard_of_its_engine() -> None:
    async with serve(silent) as served:
        served.front.tokenizer_manager.signs.last_heartbeat = -1e9
        assert (await served.client.get("/health")).status_code == 503


async def test_the_deep_check_generates_one_token() -> None:
    async with serve(hello) as served:
        assert (await served.client.get("/health_generate")).status_code == 200
        (request,) = served.engine.requests
        assert (await served.client.head("/health_generate")).status_code == 200
    assert request.rid.startswith("HEALTH_CHECK_")
    assert request.sampling_params.max_new_tokens == 1
    assert request.sampling_params.temperature == 0


async def test_the_deep_check_gives_up_and_takes_its_request_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "GENERATE_TIMEOUT_S", 0.05)
    async with serve(silent) as served:
        response = await served.client.get("/health_generate")
        assert served.engine.aborted == [served.engine.requests[0].rid]
        assert not served.front.tokenizer_manager.rid_to_state
    assert response.status_code == 503
    assert "within 0.05 s" in response.json()["error"]["message"]


@pytest.mark.parametrize("script", [hello, silent])
async def test_the_deep_check_of_a_dead_engine(script: Script) -> None:
    async with serve(script) as served:
        served.front.tokenizer_manager.fail_all(WorkerDied("scheduler_TP0 was killed"))
        response = await served.client.get("/health_generate")
    assert response.status_code == 503
    assert "scheduler_TP0 was killed" in response.json()["error"]["message"]
