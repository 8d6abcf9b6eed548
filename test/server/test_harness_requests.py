"""The requests of lm-evaluation-harness to `/v1/completions` for ranking answers: log-probabilities of tokens that it
sends.
"""

from __future__ import annotations

import math

import httpx
import pytest

from fixtures.oracle import assert_quiet
from fixtures.patience import PATIENCE_S
from fixtures.server_process import ServerProcess

CONTEXT, RIGHT, WRONG = "The capital of France is", " Paris", " seventeen"


def test_answers_are_ranked_by_their_likelihood(tiny_server: ServerProcess) -> None:
    with httpx.Client(base_url=tiny_server.url, timeout=PATIENCE_S) as client:

        def ids(text: str) -> list[int]:
            found: list[int] = client.post("/tokenize", json={"prompt": text, "add_special_tokens": False}).json()[
                "tokens"
            ]
            return found

        context = ids(CONTEXT)
        prompts = [context + ids(answer) for answer in (RIGHT, WRONG)]
        body = {"model": "default", "prompt": prompts, "temperature": 0, "max_tokens": 1, "logprobs": 1, "echo": True}
        reply = client.post("/v1/completions", json={**body, "seed": 1234}).raise_for_status().json()
        choices = sorted(reply["choices"], key=lambda choice: choice["index"])
        sums = []
        for prompt, choice in zip(prompts, choices, strict=True):
            # One entry for each token of the prompt and for the one that is generated, which the harness leaves out.
            told, top = choice["logprobs"]["token_logprobs"], choice["logprobs"]["top_logprobs"]
            assert len(told) == len(top) == len(prompt) + 1
            assert told[0] is None
            answer = told[len(context) : -1]
            assert all(math.isfinite(value) and value <= 0 for value in answer)
            for value, best in zip(answer, top[len(context) : -1], strict=True):
                assert value <= max(best.values()) + 1e-5
            sums.append(sum(answer))
        assert sums[0] > sums[1]

        alone = client.post("/v1/completions", json={**body, "prompt": prompts[0]}).raise_for_status().json()
        [choice] = alone["choices"]
        assert sum(choice["logprobs"]["token_logprobs"][len(context) : -1]) == pytest.approx(sums[0], abs=1e-3)
    assert_quiet(tiny_server.url)
