"""An engine that does nothing: a scheduler process that speaks the real messages and knows every answer beforehand.

Each turn gives every open request its next token, all in one message, as a scheduler does; a turn takes no time, or at
least STEP_US microseconds (an environment variable) of it. All answers say the same word, as long as max_new_tokens.

    python noop_engine.py [OPTIONS]     a server with it in the scheduler's place
"""

from __future__ import annotations

import os
import sys
import time

import msgspec
import numpy as np

from mysglang.srt.entrypoints.http_server import launch_server
from mysglang.srt.entrypoints.launcher import ChildModules
from mysglang.srt.managers.child import SchedulerLaunch, report_to_parent, run_child, scheduler_title
from mysglang.srt.managers.tokenizer_files import load_tokenizer
from mysglang.srt.messages.channels import Pull
from mysglang.srt.messages.control import GetInternalStateReq, GetInternalStateReqOutput, HeartBeat
from mysglang.srt.messages.launch import Ready, SchedulerFacts
from mysglang.srt.messages.outputs import SKIP_SPECIAL_TOKENS, Abort, BatchTokenIDOutput, Counters, FinishReason, Length
from mysglang.srt.messages.packing import ID_BYTES, pack_ids
from mysglang.srt.messages.requests import AbortReq, TokenizedGenerateReqInput, ToScheduler, scheduler_codec
from mysglang.srt.messages.senders import to_detokenizers, to_fronts
from mysglang.srt.server_args import prepare_server_args
from mysglang.srt.utils.process import ParentLink, freeze_heap, set_title

MODULE = "noop_engine"
WORD = " and"
BEAT_S = 1.0
IDLE_MS = 200
CONTEXT = 1 << 19

FACTS = SchedulerFacts(
    max_total_num_tokens=1 << 26,
    max_req_input_len=CONTEXT - 1,
    context_len=CONTEXT,
    max_running_requests=4096,
    page_size=1,
    vocab_size=0,
    device="none",
    dtype="none",
    attention_backend="none",
)


class Answers:
    """The requests that are not complete, as columns."""

    def __init__(self, token: int) -> None:
        self._token = token
        self._rids: list[str] = []
        self._prompts = np.zeros(0, np.int32)
        self._lengths = np.zeros(0, np.int32)
        self._done = np.zeros(0, np.int32)
        self._heard = np.zeros(0, np.int32)
        self._stream = np.zeros(0, np.bool_)

    def __len__(self) -> int:
        return len(self._rids)

    def add(self, requests: list[TokenizedGenerateReqInput]) -> None:
        if not requests:
            return
        self._rids += [request.rid for request in requests]
        self._prompts = _extended(self._prompts, [len(request.input_ids) // ID_BYTES for request in requests])
        self._lengths = _extended(self._lengths, [request.sampling_params.max_new_tokens or 1 for request in requests])
        self._done = _extended(self._done, [0] * len(requests))
        self._heard = _extended(self._heard, [0] * len(requests))
        self._stream = np.append(self._stream, [request.stream for request in requests])

    def step(self) -> BatchTokenIDOutput:
        """One more token for each answer. An answer that is not streamed is sent only at its end."""
        self._done = self._done + 1
        ending = self._done >= self._lengths
        told = self._stream | ending
        message = self._tell(np.flatnonzero(told), np.flatnonzero(ending[told]))
        self._heard = np.where(told, self._done, self._heard)
        if ending.any():
            self._keep(~ending)
        return message

    def abort(self, rid: str) -> BatchTokenIDOutput | None:
        """The end of one request; None if there is no such."""
        if rid not in self._rids:
            return None
        row = self._rids.index(rid)
        message = self._tell(np.array([row]), np.array([0]), Abort("Aborted."))
        self._keep(np.arange(len(self._rids)) != row)
        return message

    def _tell(self, rows: np.ndarray, finished: np.ndarray, reason: FinishReason | None = None) -> BatchTokenIDOutput:
        counts = (self._done - self._heard)[rows]
        zeros = bytes(ID_BYTES * len(rows))
        ends: dict[int, FinishReason] = {row: reason or Length(int(self._done[rows[row]])) for row in finished.tolist()}
        return BatchTokenIDOutput(
            rids=[self._rids[row] for row in rows.tolist()],
            token_ids=np.full(int(counts.sum()), self._token, np.int32).tobytes(),
            token_counts=pack_ids(counts),
            decode_flags=bytes([SKIP_SPECIAL_TOKENS]) * len(rows),
            counters=Counters(pack_ids(self._prompts[rows]), pack_ids(self._done[rows]), zeros, zeros),
            finished=ends,
        )

    def _keep(self, kept: np.ndarray) -> None:
        self._rids = [self._rids[row] for row in np.flatnonzero(kept).tolist()]
        for name in ("_prompts", "_lengths", "_done", "_heard", "_stream"):
            setattr(self, name, getattr(self, name)[kept])


def _extended(column: np.ndarray, values: list[int]) -> np.ndarray:
    return np.append(column, np.asarray(values, np.int32))


def run(link: ParentLink) -> None:
    launch = msgspec.json.decode(link.spec, type=SchedulerLaunch)
    ports, step_s = launch.port_args, float(os.environ.get("STEP_US", "0")) / 1e6
    set_title(scheduler_title(launch.ranks))
    tokenizer = load_tokenizer(launch.server_args.model)
    assert tokenizer is not None
    answers = Answers(tokenizer.encode(WORD, add_special_tokens=False)[0])
    requests: Pull[ToScheduler] = Pull(ports.scheduler_input_ipc_name, scheduler_codec())
    texts = to_detokenizers(ports.detokenizer_ipc_names)
    replies = to_fronts(ports.tokenizer_ipc_names)
    freeze_heap()
    report_to_parent(link, Ready(msgspec.structs.replace(FACTS, vocab_size=tokenizer.vocab_size)))
    beat_at, due = 0.0, 0.0
    while True:
        if (now := time.monotonic()) >= beat_at:
            beat_at = now + BEAT_S
            replies.send(HeartBeat(rank=0, forward_steps=0, num_running_reqs=len(answers), num_waiting_reqs=0))
        if len(answers):
            time.sleep(max(0.0, due - now))
        else:
            requests.poll(IDLE_MS)
        new = []
        for message in requests.drain():
            match message:
                case TokenizedGenerateReqInput():
                    new.append(message)
                case AbortReq(rid=rid):
                    answers.add(new)
                    new = []
                    if (ended := answers.abort(rid)) is not None:
                        texts.send(ended)
                case GetInternalStateReq(id=number):
                    replies.send(_state(number, len(answers)))
        answers.add(new)
        if len(answers):
            due = time.monotonic() + step_s
            texts.send(answers.step())


def _state(number: int, running: int) -> GetInternalStateReqOutput:
    return GetInternalStateReqOutput(
        id=number,
        num_running_reqs=running,
        num_waiting_reqs=0,
        free_tokens=FACTS.max_total_num_tokens,
        evictable_tokens=0,
        protected_tokens=0,
        max_total_num_tokens=FACTS.max_total_num_tokens,
        locked_nodes=0,
        free_slots=FACTS.max_running_requests - running,
        max_running_requests=FACTS.max_running_requests,
        last_gen_throughput=0.0,
        forward_steps=0,
        num_retractions=0,
    )


if __name__ == "__main__":
    if len(sys.argv) == 2 and sys.argv[1].isdigit():
        run_child(run)
    sys.exit(launch_server(prepare_server_args(sys.argv[1:]), ChildModules(scheduler=MODULE)))
