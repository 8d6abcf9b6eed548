"""A server that other machines can reach and that asks for no key: it warns, and no client can harm the others."""

import httpx
import pytest

from fixtures.server_process import ServerProcess

PROMPT = {"input_ids": [5, 6, 7], "sampling_params": {"temperature": 0, "max_new_tokens": 3}}


@pytest.mark.promise(38)
def test_promise_38_open_to_strangers_is_said_aloud_and_changes_nothing_for_others() -> None:
    with ServerProcess("--log-level", "warning", "--host", "0.0.0.0", "--skip-server-warmup") as server:
        url = server.url
        assert "Anyone who can reach 0.0.0.0" in server.stderr and "--api-key-file" in server.stderr
        # It does not know by which names it goes.
        assert httpx.post(f"{url}/generate", json=PROMPT, headers={"host": "any.example"}).status_code == 200
        for path, body in (("/flush_cache", None), ("/abort_request", {"abort_all": True}), ("/pause_generation", {})):
            refused = httpx.post(f"{url}{path}", json=body)
            assert (refused.status_code, "--admin-api-key" in refused.json()["error"]["message"]) == (403, True)
