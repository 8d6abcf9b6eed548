"""Turns of sessions on the late device: each finds what the turns before it computed, and answers are the solo ones."""

import random
from dataclasses import dataclass, field

import pytest

from fixtures.covering import pairwise
from fixtures.fake_worker import solo
from fixtures.late_scheduler import VOCAB, LateScheduler, Setup
from fixtures.shaky_memory import Shakes


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("page_size", [1, 16, 256])
def test_a_turn_finds_all_that_the_turn_before_wrote(page_size: int, overlap: bool) -> None:
    scheduler = LateScheduler(Setup(page_size=page_size, overlap=overlap, num_tokens=2048))
    known: list[int] = []
    for number in range(6):
        prompt = [*known, *range(1, 12 + number)]
        computed = max(len(known) - 1, 0)
        scheduler.send(f"turn{number}", prompt, 9, ignore_eos=True, tail_end=computed)
        scheduler.run()
        answer = scheduler.answers[f"turn{number}"]
        assert answer.ids == solo(prompt, 9, VOCAB, ignore_eos=True)
        assert answer.cached_tokens == computed
        known = prompt + answer.ids
    assert scheduler.kv.available_tokens() == scheduler.kv.total_tokens


@dataclass
class Session:
    """The conversation so far, and the turn that is open."""

    name: str
    known: list[int] = field(default_factory=list)
    prompt: list[int] = field(default_factory=list)
    turns: int = 0

    @property
    def rid(self) -> str:
        return f"{self.name}-{self.turns}"


STORMS = [
    Setup(**case, num_tokens=768)
    for case in pairwise({"overlap": (False, True), "page_size": (16, 64), "chunk": (None, 64)})
] + [
    Setup(page_size=16, chunk=32, num_tokens=512, conservativeness=0.1, order="mixed"),
    Setup(page_size=16, num_tokens=512, host_tokens=1024),
    Setup(page_size=16, chunk=32, num_tokens=768, drafts=4),
    Setup(page_size=16, num_tokens=512, host_tokens=512, write_policy="write_back"),
    Setup(page_size=16, num_tokens=768, windows=((24, 512),), chunk=32),
    Setup(page_size=16, num_tokens=768, policy="lpm", shakes=Shakes(fail_alloc_every=7, retract_every=5)),
    Setup(page_size=16, cache="chunk"),
]


@pytest.mark.parametrize("setup", STORMS, ids=str)
def test_a_storm_of_sessions(setup: Setup) -> None:
    scheduler = LateScheduler(setup)
    rng = random.Random(3)
    sessions = [Session(f"s{number}") for number in range(8)]
    expected: dict[str, list[int]] = {}
    for number in range(400):
        session = rng.choice(sessions)
        open_turn = scheduler.answers.get(session.rid)
        if open_turn is not None and open_turn.finish is None:
            if rng.random() < 0.03:
                scheduler.abort(session.rid)
                del expected[session.rid]
                session.known, session.name = [], f"{session.name}x{number}"
        else:
            if open_turn is not None:
                session.known = session.prompt + open_turn.ids
                session.turns += 1
            if len(session.known) > 150:
                session.known = []
            session.prompt = [*session.known, *(rng.randrange(1, VOCAB) for _ in range(rng.randrange(1, 30)))]
            max_new = rng.randrange(1, 20)
            expected[session.rid] = solo(session.prompt, max_new, VOCAB)
            scheduler.send(session.rid, session.prompt, max_new, tail_end=max(len(session.known) - 1, 0))
        scheduler.turn(rng.randrange(3))
    scheduler.run()
    assert {rid: scheduler.answers[rid].ids for rid in expected} == expected
    found = [answer.cached_tokens % setup.page_size for answer in scheduler.answers.values()]
    assert any(found) is (setup.cache == "radix"), "no turn went on from a page that is filled in part"
    assert scheduler.kv.flush()
    assert scheduler.kv.state().free == scheduler.kv.total_tokens
