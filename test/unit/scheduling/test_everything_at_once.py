"""Requests of every kind at once in hostile shapes: each is answered as alone, whatever is beside it.

The shapes: pages of one token and of sixty-four, chunks of one token, one slot, contexts that are just full, and little
memory that seems to be less. The events: retraction, displacement, shares, pauses, flushes and aborts. The requests:
grammars, rules, log-probabilities, hidden states and prompts of vectors.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, get_args

import msgspec
import numpy as np
import pytest

from fixtures.covering import pairwise
from fixtures.drafters import DrafterName
from fixtures.driven_scheduler import Answer, letters
from fixtures.fake_grammar import FORCING, allowed_tokens, first_allowed
from fixtures.fake_worker import EOS, next_token
from fixtures.late_scheduler import VOCAB, LateScheduler, Setup
from fixtures.shaky_memory import CALM, Shakes
from fixtures.step_outputs import hidden_states
from mysglang.srt.mem_cache.evict_policy import EVICT_POLICIES
from mysglang.srt.messages.control import ContinueGenerationReq, FlushCacheReqInput, PauseGenerationReq
from mysglang.srt.messages.generate import HiddenStatesWish
from mysglang.srt.messages.outputs import Abort, Length, Stop
from mysglang.srt.messages.packing import pack_ids, unpack_ids
from mysglang.srt.messages.requests import LogprobRequest
from mysglang.srt.sampling.sampling_params import SamplingParams
from mysglang.srt.scheduling.policy import POLICIES
from mysglang.srt.scheduling.step_planner import OrderName

REQUESTS = 40


@dataclass(frozen=True)
class Asked:
    """One request."""

    prompt: list[int]
    params: SamplingParams
    bad_words: list[list[int]] = field(default_factory=list)
    logprobs: LogprobRequest | None = None
    wish: HiddenStatesWish | None = None
    embedded: bool = False

    def alone(self) -> tuple[list[int], type | None]:
        """The toy's answer to it alone, and its finish reason; None: no allowed token is left."""
        out: list[int] = []
        params = self.params
        ends = {EOS, *params.stop_token_ids}
        while len(out) < (params.max_new_tokens or 0):
            token, early = next_token([*self.prompt, *out], VOCAB), len(out) < params.min_new_tokens
            if params.regex is not None or params.allowed_token_ids is not None or self.bad_words:
                if not (allowed := self._allowed(out)):
                    return out, None
                token = first_allowed(token, sorted((allowed - ends if early else set()) or allowed))
            elif early and token in ends:
                token = VOCAB - 1
            out.append(token)
            if any(letters(out).endswith(stop) for stop in params.stop):
                return out, Stop
            over = len(out) >= params.min_new_tokens
            ended_by_eos = token == EOS and (params.regex is not None or (over and not params.ignore_eos))
            if ended_by_eos or (over and token in params.stop_token_ids):
                return out, Stop
        return out, Length

    def _allowed(self, out: Sequence[int]) -> set[int]:
        allowed = set(range(VOCAB))
        if self.params.regex is not None:
            allowed &= set(allowed_tokens(int(self.params.regex), out, VOCAB))
        if self.params.allowed_token_ids is not None:
            allowed &= set(self.params.allowed_token_ids)
        return allowed - {word[-1] for word in self.bad_words if list(out[len(out) + 1 - len(word) :]) == word[:-1]}


def draw_setup(rng: random.Random) -> Setup:
    page, context = rng.choice([1, 2, 3, 16, 64]), rng.choice([64, 97, 128, 160])
    tokens = max(-(-context // page), rng.choice([128, 192, 320, 2048]) // page) * page
    setup = Setup(
        overlap=rng.random() < 0.6,
        page_size=page,
        chunk=rng.choice([None, 1, 2, 7, 16, 17, 64]),
        num_tokens=tokens,
        num_slots=rng.choice([1, 2, 5, 16]),
        max_context=context,
        max_prefill_tokens=rng.choice([16, 64, 512]),
        cache=rng.choice(["radix", "radix", "chunk"]),
        policy=rng.choice([*POLICIES]),
        priorities=rng.choice(["none", "high_first", "low_first"]),
        preemption_threshold=rng.choice([None, 0, 2]),
        fair_share_by=rng.choice([None, "api_key", "routing_key"]),
        eviction=rng.choice([*EVICT_POLICIES]),
        conservativeness=rng.choice([0.0, 0.1, 1.0]),
        order=rng.choice([*get_args(OrderName), "mixed"]),
        decode_wait_tokens=rng.choice([0, 1, 64]),
        shakes=Shakes(retract_every=rng.choice([0, 1, 5]), fail_alloc_every=rng.choice([0, 3, 7])),
    )
    below = setup.cache == "radix" and rng.random() < 0.5
    if below:
        return replace(setup, host_tokens=4 * tokens)
    windows = rng.choice([(), ((8, tokens // 3),), ((3, tokens // 4), (30, tokens // 2))])
    return replace(setup, windows=windows)


WITH_DRAFTS = pairwise(
    {
        "drafter": get_args(DrafterName),
        "steps": ("late", "exact", "one at a time"),
        "page_size": (1, 16),
        "chunk": (None, 7),
        "order": ("prefill_first", "mixed"),
        "memory": ("enough", "short"),
        "below": ("nothing", "windows", "host"),
        "jump_forward": (True, False),
    },
    seed=10,  # of the first forty, the one that needs the fewest cases
)
"""Settings for drafts, in addition to the fields of requests, of which each storm has all."""


def draw_drafts(rng: random.Random, way: Mapping[str, Any]) -> Setup:
    """A scheduler of this way whose other options are drawn."""
    short = way["memory"] == "short"
    tokens = 192 if short else 2048
    return replace(
        draw_setup(rng),
        overlap=way["steps"] != "one at a time",
        late_lengths=way["steps"] == "late",
        drafts=rng.choice([3, 4, 7]),
        drafter=way["drafter"],
        patience=rng.choice([0, 4]),
        page_size=way["page_size"],
        chunk=way["chunk"],
        order=way["order"],
        num_tokens=tokens,
        num_slots=rng.choice([5, 16]),
        max_prefill_tokens=512,
        max_context=160,
        cache="radix",
        conservativeness=0.1,
        shakes=Shakes(retract_every=5, fail_alloc_every=7) if short else CALM,
        windows=((8, tokens // 4), (30, tokens // 2)) if way["below"] == "windows" else (),
        host_tokens=4 * tokens if way["below"] == "host" else 0,
        jump_forward=way["jump_forward"],
    )


def draw_request(rng: random.Random, beginnings: Sequence[list[int]], limit: int) -> Asked:
    beginning = rng.choice([*beginnings, []])
    prompt = [*beginning, *(rng.randrange(1, VOCAB) for _ in range(rng.choice([1, 1, 2, 20, 40])))][: limit - 1]
    room = limit - len(prompt)
    max_new = min(rng.choice([0, 1, 2, 10, 30, room]), room)
    some = {
        "regex": str(rng.randrange(1000)),
        "min_new_tokens": rng.randrange(max_new + 1),
        "stop_token_ids": [rng.randrange(1, VOCAB) for _ in range(3)],
        "allowed_token_ids": sorted({rng.randrange(VOCAB) for _ in range(20)}),
        "frequency_penalty": 0.5,
    }
    given = {name: value for name, value in some.items() if rng.random() < 0.15}
    words = [[rng.randrange(VOCAB) for _ in range(rng.randrange(1, 4))] for _ in range(4)]
    start = rng.choice([-1, 0, 1, len(prompt) - 1, rng.randrange(len(prompt))])
    wish = LogprobRequest(prompt_start=start, top_num=2, token_ids=pack_ids(rng.choice([[], [3, 5]])))
    return Asked(
        prompt,
        SamplingParams(max_new_tokens=max_new, ignore_eos=rng.random() < 0.5, sampling_seed=1, **given),
        words if rng.random() < 0.15 else [],
        wish if rng.random() < 0.3 else None,
        rng.choice([None, None, "all", "last"]),
        rng.random() < 0.15,
    )


def with_stop(rng: random.Random, asked: Asked) -> Asked:
    """The request with a stop string, which is in its answer if that is long enough."""
    ids, _ = asked.alone()
    place = rng.randrange(max(len(ids) - 1, 1))
    stop = letters(ids[place : place + 2] or [EOS])
    return replace(asked, params=msgspec.structs.replace(asked.params, stop=[stop]))


def draw_wide(rng: random.Random, beginnings: Sequence[list[int]], limit: int) -> Asked:
    """Like `draw`; half of the requests have no field that excludes drafts. Some of all of these have a stop string,
    and others a grammar that forces tokens.
    """
    asked = draw_request(rng, beginnings, limit)
    if rng.random() < 0.5:
        params = msgspec.structs.replace(
            asked.params, regex=None, allowed_token_ids=None, min_new_tokens=0, frequency_penalty=0.0
        )
        asked = replace(asked, params=params, bad_words=[], logprobs=None, wish=None)
    match rng.choice(["stop", "forced", "neither"]):
        case "stop":
            return with_stop(rng, asked)
        case "forced":
            params = msgspec.structs.replace(asked.params, regex=str(FORCING + rng.randrange(500)))
            return replace(asked, params=params)
    return asked


def send(scheduler: LateScheduler, rid: str, asked: Asked, rng: random.Random) -> None:
    vectors = np.arange(len(asked.prompt), dtype=np.float32).tobytes()
    scheduler.ask(
        rid,
        asked.prompt,
        asked.params,
        bad_words=[pack_ids(word) for word in asked.bad_words],
        logprobs=asked.logprobs,
        hidden_states=asked.wish,
        input_embeds=vectors if asked.embedded else b"",
        extra_key=f"own{rid}" if asked.embedded else rng.choice(["", "", "a"]),
        stream=rng.random() < 0.5,
        priority=rng.randrange(-5, 6),
        routing_key=rng.choice(["", "x", "y"]),
        api_key=rng.choice("abc"),
    )


def disturb(scheduler: LateScheduler, number: int, rng: random.Random) -> None:
    if rng.random() < 0.1:
        scheduler.abort(f"r{rng.randrange(number + 1)}")
    if rng.random() < 0.05:
        scheduler.requests.send(FlushCacheReqInput(id=number))
    if rng.random() < 0.05:
        scheduler.requests.send(PauseGenerationReq(id=number, mode=rng.choice(["abort", "retract", "in_place"])))
        scheduler.turn(rng.randrange(3))
        scheduler.requests.send(FlushCacheReqInput(id=number))
        scheduler.requests.send(ContinueGenerationReq(id=number))


@pytest.mark.parametrize("seed", range(11))
def test_each_is_answered_as_alone(seed: int) -> None:
    rng = random.Random(seed)
    storm(rng, draw_setup(rng), draw_request)


@pytest.mark.promise(25)
@pytest.mark.parametrize("way", WITH_DRAFTS, ids=lambda way: ",".join(map(str, way.values())))
def test_with_drafts_too(way: dict[str, Any]) -> None:
    """Some grammars leave no choice for several tokens, which then are drafts."""
    rng = random.Random(WITH_DRAFTS.index(way))
    scheduler = storm(rng, draw_drafts(rng, way), draw_wide)
    state = scheduler.state()
    if way["drafter"] in ("perfect", "erratic"):
        assert state.avg_spec_accept_length > 1.1
    if way["memory"] == "short":
        assert state.num_retractions > 0
    if way["below"] == "host":
        assert scheduler.kv.cache.lower.counts.loaded > 0 or way["memory"] == "enough"


def storm(
    rng: random.Random, setup: Setup, draw: Callable[[random.Random, Sequence[list[int]], int], Asked]
) -> LateScheduler:
    """Requests and disturbances; at the end each answer is compared with what its request gets alone.

    Returns the scheduler, in which nothing is left of any request.
    """
    scheduler = LateScheduler(setup)
    scheduler.worker.more_outputs = hidden_states
    beginnings = [[rng.randrange(1, VOCAB) for _ in range(rng.randrange(8, 60))] for _ in range(3)]
    asked = {}
    for number in range(REQUESTS):
        rid = f"r{number}"
        asked[rid] = draw(rng, beginnings, min(setup.max_context, setup.num_tokens))
        send(scheduler, rid, asked[rid], rng)
        scheduler.turn(rng.randrange(5))
        disturb(scheduler, number, rng)
    scheduler.run(max_turns=60_000)
    for rid, request in asked.items():
        check(request, scheduler.answers[rid], scheduler.answers[rid].hidden)
    return scheduler


def check(asked: Asked, answer: Answer, states: list[float]) -> None:
    ids, end = asked.alone()
    count, told = len(asked.prompt), len(answer.ids)
    whole = not isinstance(answer.finish, Abort)
    if whole:
        assert (answer.ids, type(answer.finish)) == (ids, end)
    elif "Aborted" in answer.finish.message:  # type: ignore[union-attr]  # an Abort
        assert answer.ids == ids[:told]
    else:
        # The token that was chosen under the empty mask is told, too.
        assert end is None and answer.ids[: len(ids)] == ids
    check_logprobs(asked, answer, whole=whole)
    first = count if asked.wish is None else 0 if asked.wish == "all" else count - 1
    last = count + max(told - 1, 0) if asked.wish is not None else first
    assert states == [float(position) for position in range(first, last if whole else first + len(states))]


def check_logprobs(asked: Asked, answer: Answer, *, whole: bool) -> None:
    """The toy's are minus the position of their token."""
    if asked.logprobs is None:
        assert not answer.logprobs
        return
    count, start = len(asked.prompt), asked.logprobs.prompt_start
    assert floats(answer, "output_vals") == [-float(count + place) for place in range(len(answer.ids))]
    assert ints(answer, "output_ids") == answer.ids
    if whole and start >= 0:
        assert ints(answer, "input_ids") == asked.prompt[start:]
        assert floats(answer, "input_vals")[start == 0 :] == [-float(place) for place in range(max(start, 1), count)]
        assert len(floats(answer, "input_top_vals")) == 2 * (count - start)


def floats(answer: Answer, name: str) -> list[float]:
    return np.frombuffer(b"".join(getattr(row, name) for row in answer.logprobs), dtype=np.float32).tolist()


def ints(answer: Answer, name: str) -> list[int]:
    return unpack_ids(b"".join(getattr(row, name) for row in answer.logprobs)).tolist()
