"""A stream adds up to the answer without one: text, tokens, usage, finish reason, log-probabilities.

Tokens go through the real detokenizer and the real front; only the scheduler is played, cutting its output differently
every time.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from random import Random
from typing import Any

import numpy as np
import pytest

from fixtures import small_tokenizer
from fixtures.in_process_channels import AsyncInProcess, InProcess
from fixtures.text_pools import text_pool
from mysglang.srt.managers.detokenizer_manager import DetokenizerManager
from mysglang.srt.managers.input_tokenizer import FrontLimits, InputTokenizer
from mysglang.srt.managers.response_dict import ResponseDicts
from mysglang.srt.managers.tokenizer_manager import TokenizerManager
from mysglang.srt.messages.codec import detokenizer_codec, tokenizer_codec
from mysglang.srt.messages.generate import GenerateReqInput
from mysglang.srt.messages.outputs import (
    NO_STOP_TRIM,
    SKIP_SPECIAL_TOKENS,
    BatchTokenIDOutput,
    Counters,
    FinishReason,
    Length,
    RowLogprobs,
    Stop,
)
from mysglang.srt.messages.packing import pack_ids
from mysglang.srt.messages.requests import TokenizedGenerateReqInput, scheduler_codec
from mysglang.srt.sampling.sampling_params import SamplingParams
from mysglang.srt.utils.tokenizer import Tokenizer

LIMITS = FrontLimits(context_len=1000, max_req_len=1000, vocab_size=600, max_running_requests=8)


class PlayedScheduler:
    """Answers a prompt with the same tokens every time, and sends them in pieces as chance has it."""

    def __init__(self, tokenizer: Tokenizer, random: Random) -> None:
        self._tokenizer = tokenizer
        self._random = random
        self.requests = InProcess(scheduler_codec())
        self.to_detokenizer = InProcess(detokenizer_codec())
        self.to_tokenizer = AsyncInProcess(tokenizer_codec())
        self._detokenizer = DetokenizerManager(self.to_detokenizer, self.to_tokenizer, tokenizer)

    async def serve(self) -> None:
        while True:
            for message in self.requests.drain():
                assert isinstance(message, TokenizedGenerateReqInput)
                await self._answer(message)
            await asyncio.sleep(0)

    def _generate(self, request: TokenizedGenerateReqInput) -> tuple[list[int], FinishReason]:
        """The tokens that follow the prompt are a function of its bytes."""
        params = request.sampling_params
        chance = Random(request.input_ids)
        text = self._tokenizer.output_text(params.stop, skip_special_tokens=params.skip_special_tokens)
        ids: list[int] = []
        while len(ids) < (params.max_new_tokens or 0):
            token = chance.randrange(self._tokenizer.vocab_size)
            ids.append(token)
            _, matched = text.feed([token])
            if matched is not None:
                return ids, Stop(matched)
            if token == self._tokenizer.eos_token_id:
                return ids, Stop(token)
        return ids, Length(len(ids))

    async def _answer(self, request: TokenizedGenerateReqInput) -> None:
        ids, finish = self._generate(request)
        params, sent = request.sampling_params, 0
        flags = SKIP_SPECIAL_TOKENS * params.skip_special_tokens | NO_STOP_TRIM * params.no_stop_trim
        while sent < len(ids):
            count = self._random.randint(1, 4)
            new, last = ids[sent : sent + count], sent + count >= len(ids)
            self.to_detokenizer.send(
                BatchTokenIDOutput(
                    rids=[request.rid],
                    token_ids=pack_ids(new),
                    token_counts=column(len(new)),
                    decode_flags=bytes([flags]),
                    counters=Counters(column(5), column(sent + len(new)), column(2), column(0)),
                    finished={0: finish} if last else {},
                    logprobs={0: row_logprobs(new, first=sent == 0)} if request.logprobs else {},
                    stops={0: params.stop} if params.stop and sent == 0 else {},
                )
            )
            sent += len(new)
            self._detokenizer.handle_messages()
            if self._random.random() < 0.5:
                await asyncio.sleep(0)


def column(number: int) -> bytes:
    return np.asarray([number], dtype=np.int32).tobytes()


def row_logprobs(ids: list[int], *, first: bool) -> RowLogprobs:
    vals = (-np.asarray(ids, dtype=np.float32) / 7).tobytes()
    prompt = {"input_vals": vals[:4], "input_ids": pack_ids(ids[:1])} if first else {}
    return RowLogprobs(output_vals=vals, output_ids=pack_ids(ids), **prompt)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.load(small_tokenizer.write(tmp_path_factory.mktemp("tokenizer"), "byte_fallback"))


@pytest.fixture
async def manager(tokenizer: Tokenizer) -> AsyncIterator[TokenizerManager]:
    scheduler = PlayedScheduler(tokenizer, Random(0))
    with text_pool() as pool:
        front = TokenizerManager(
            InputTokenizer(tokenizer, LIMITS, pool), LIMITS, scheduler.requests, scheduler.to_tokenizer
        )
        tasks = [asyncio.create_task(front.handle_loop()), asyncio.create_task(scheduler.serve())]
        yield front
        assert not any(task.done() for task in tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def timeless(answer: Any) -> str:
    """A response without what differs from call to call."""
    answer["meta_info"] = {name: answer["meta_info"][name] for name in answer["meta_info"] if name not in VARYING}
    return json.dumps(answer, sort_keys=True)


VARYING = {"id", "e2e_latency", "response_sent_to_client_ts"}


@pytest.mark.parametrize("seed", range(40))
async def test_whatever_the_cuts(manager: TokenizerManager, tokenizer: Tokenizer, seed: int) -> None:
    chance = Random(seed)
    params = SamplingParams(
        max_new_tokens=chance.randint(1, 60),
        stop=chance.sample(["e", " t", "STOP", "\ufffd\ufffd", "Th", "ox"], k=chance.randint(0, 3)),
        skip_special_tokens=chance.random() < 0.5,
        no_stop_trim=chance.random() < 0.2,
    )
    fields: dict[str, Any] = {"input_ids": [seed, 1], "sampling_params": params}
    fields |= {"return_logprob": True, "logprob_start_len": 0} if chance.random() < 0.5 else {}
    answers = []
    for stream, incremental in ((False, False), (True, False), (True, True)):
        obj = GenerateReqInput(stream=stream, **fields)
        responses = ResponseDicts(obj, tokenizer, incremental=incremental)
        found = [responses.add(chunk) async for chunk in manager.generate_request(obj)]
        if incremental:
            assert "".join(response["text"] for response in found) == answers[0]["text"]
            assert [token for response in found for token in response["output_ids"]] == answers[0]["output_ids"]
        else:
            answers.append(found[-1])
    assert timeless(answers[0]) == timeless(answers[1])
    assert answers[0]["meta_info"]["completion_tokens"] == len(answers[0]["output_ids"])
