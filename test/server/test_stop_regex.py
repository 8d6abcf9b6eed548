"""Answers that a pattern ends, whole and streamed, natively and by OpenAI's route."""

import httpx
import orjson

from fixtures.patience import PATIENCE_S
from fixtures.server_process import ServerProcess

PROMPT = "Count from 1 to 9:"


def test_a_pattern_ends_the_answer(tiny_server: ServerProcess) -> None:
    with httpx.Client(base_url=tiny_server.url, timeout=PATIENCE_S) as http:
        params = {"temperature": 0, "max_new_tokens": 40, "ignore_eos": True}
        free = http.post("/generate", json={"text": PROMPT, "sampling_params": params}).json()["text"]
        # Whatever the model says, some letter of it and what follows is the pattern.
        letter = free[len(free) // 2]
        pattern = ("\\" + letter if not letter.isalnum() else letter) + "."
        expected = free[: min(at for at in range(len(free)) if free[at] == letter and free[at + 1] != "\n")]
        body = {"text": PROMPT, "sampling_params": {**params, "stop_regex": pattern}}
        whole = http.post("/generate", json=body).json()
        assert whole["text"] == expected
        assert whole["meta_info"]["finish_reason"] == {"type": "stop", "matched": pattern}
        lines = http.post("/generate", json={**body, "stream": True}).text.split("\n\n")
        texts = [orjson.loads(line.removeprefix("data: "))["text"] for line in lines if "{" in line]
        assert texts[-1] == expected
        assert all(expected.startswith(text) for text in texts)
        completion = {"prompt": PROMPT, "temperature": 0, "max_tokens": 40, "ignore_eos": True, "stop_regex": [pattern]}
        choice = http.post("/v1/completions", json=completion).json()["choices"][0]
        assert (choice["text"], choice["finish_reason"]) == (expected, "stop")
        refused = http.post("/v1/completions", json={**completion, "stop_regex": "(?=a)"})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "stop_regex")


def test_no_stop_string_ends_an_answer_that_is_too_short(tiny_server: ServerProcess) -> None:
    with httpx.Client(base_url=tiny_server.url, timeout=PATIENCE_S) as http:
        completion = {"prompt": PROMPT, "temperature": 0, "max_tokens": 40, "min_tokens": 12}
        free = http.post("/v1/completions", json=completion).json()["choices"][0]["text"]
        stop = free[0]
        body = {**completion, "stop": stop, "stop_regex": "."}
        answer = http.post("/v1/completions", json=body).json()
        assert answer["choices"][0]["finish_reason"] == "stop"
        text = answer["choices"][0]["text"]
        assert stop in text and free.startswith(text)
        assert answer["usage"]["completion_tokens"] >= 12
        lines = http.post("/v1/completions", json={**body, "stream": True}).text.split("\n\n")
        frames = [orjson.loads(line.removeprefix("data: ")) for line in lines if "{" in line]
        assert "".join(frame["choices"][0]["text"] for frame in frames) == text
