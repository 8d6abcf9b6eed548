"""Steps that try drafts, on a device that alone knows how many were right: every answer is the one without drafts."""

from __future__ import annotations

import itertools
import random
from typing import get_args

import numpy as np
import pytest

from fixtures.drafters import DrafterName
from fixtures.fake_worker import EOS, solo
from fixtures.late_scheduler import VOCAB, LateScheduler, Setup
from fixtures.late_storm import Storm, drawn_beginnings, rush
from fixtures.shaky_memory import Shakes
from fixtures.toy_device import REJECTED, RejectedRead
from mysglang.srt.messages.outputs import Length, Stop
from mysglang.srt.scheduling.drafts import FEW_TEXTS, Drafts, NgramProposer

DRAFTERS = get_args(DrafterName)
PROMPT = list(range(1, 30))


def turn_within_bounds(scheduler: LateScheduler) -> None:
    """One turn; then low <= real <= high holds in every row that decodes."""
    scheduler.turn()
    table, slots = scheduler.assembled.rows.table, scheduler.assembled.rows.lanes.slots
    real = scheduler.worker.real_lens()[slots]
    assert (table.low[slots] <= real).all() and (real <= table.high[slots]).all()


@pytest.mark.promise(25)
@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("late", [True, False], ids=["late", "exact"])
@pytest.mark.parametrize(("drafts", "page_size"), [(1, 1), (4, 1), (4, 16)])
def test_answers_equal_those_without_drafts(drafts: int, page_size: int, late: bool, drafter: DrafterName) -> None:
    """Chunks, mixed steps, ends by EOS and by length inside what was accepted."""
    order = "mixed" if page_size == 16 else "prefill_first"
    setup = Setup(page_size=page_size, chunk=32, order=order, drafts=drafts, drafter=drafter, late_lengths=late)
    scheduler = LateScheduler(setup)
    rng = random.Random(drafts)
    expected = {}
    for number in range(40):
        prompt = PROMPT[: rng.randrange(29)] + [rng.randrange(1, VOCAB) for _ in range(rng.randrange(1, 40))]
        max_new, ignore = rng.randrange(0, 40), rng.random() < 0.5
        scheduler.send(f"r{number}", prompt, max_new, ignore_eos=ignore, stream=rng.random() < 0.5)
        expected[f"r{number}"] = solo(prompt, max_new, VOCAB, ignore_eos=ignore)
        for _ in range(rng.randrange(3)):
            turn_within_bounds(scheduler)
    scheduler.run()
    assert {rid: answer.ids for rid, answer in scheduler.answers.items()} == expected
    for rid, answer in scheduler.answers.items():
        ended_by_eos = expected[rid][-1:] == [EOS] and answer.finish == Stop(EOS)
        assert ended_by_eos or answer.finish == Length(len(expected[rid]))


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize(
    ("late", "page_size", "tokens"), [(True, 1, 1), (True, 4, 120), (False, 1, 120), (False, 16, 1)]
)
def test_layers_with_windows_keep_what_a_shorter_row_sees(
    late: bool, page_size: int, tokens: int, drafter: DrafterName
) -> None:
    """Seven drafts and windows of eight and three tokens: where a row really ends, its windows begin earlier than where
    memory was set aside for it. The windows' spaces are as small as they may be, or larger.
    """
    windows = ((8, tokens), (3, tokens))
    setup = Setup(
        page_size=page_size, chunk=16, order="mixed", drafts=7, drafter=drafter, late_lengths=late, windows=windows
    )
    scheduler = LateScheduler(setup)
    rng = random.Random(page_size)
    expected = {}
    for number in range(10):
        prompt = PROMPT[: rng.randrange(29)] + [rng.randrange(1, VOCAB) for _ in range(rng.randrange(1, 40))]
        max_new = rng.randrange(0, 80)
        scheduler.send(f"r{number}", prompt, max_new, ignore_eos=True)
        expected[f"r{number}"] = solo(prompt, max_new, VOCAB, ignore_eos=True)
        for _ in range(rng.randrange(3)):
            turn_within_bounds(scheduler)
    scheduler.run()
    assert {rid: answer.ids for rid, answer in scheduler.answers.items()} == expected


@pytest.mark.parametrize(("drafter", "steps"), [("perfect", 1 + 10), ("adversarial", 1 + 50)])
def test_fewer_steps_where_drafts_are_right(drafter: DrafterName, steps: int) -> None:
    """A row of 51 tokens alone: a prompt, then five at a time or one."""
    scheduler = LateScheduler(Setup(drafts=4, drafter=drafter, late_lengths=False))
    scheduler.send("r", PROMPT, 51, ignore_eos=True)
    scheduler.run()
    assert len(scheduler.worker.steps) == steps


@pytest.mark.parametrize("late", [True, False])
def test_what_runs_ahead(late: bool) -> None:
    """Two steps are in flight where the device takes rows whose length only it knows, and one otherwise."""
    scheduler = LateScheduler(Setup(drafts=4, late_lengths=late))
    scheduler.send("r", PROMPT, 60, ignore_eos=True)
    scheduler.turn(2)
    scheduler.worker.most_in_flight = 0
    scheduler.run()
    assert scheduler.worker.most_in_flight == 1 + late


def test_a_request_whose_tokens_are_told_of_one_by_one_has_no_drafts() -> None:
    """Beside one that has them."""
    scheduler = LateScheduler(Setup(drafts=4))
    scheduler.send("wide", PROMPT, 30, ignore_eos=True)
    scheduler.send("narrow", PROMPT[::-1], 30, ignore_eos=True, min_new_tokens=20)
    scheduler.run()
    lens = {tuple(step.extend_lens.tolist()) for step in scheduler.worker.steps if step.mode.is_decode}
    assert (5, 1) in lens
    assert scheduler.answers["wide"].ids == solo(PROMPT, 30, VOCAB, ignore_eos=True)


@pytest.mark.promise(21)
@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize(("page_size", "memory"), [(1, 64), (4, 64), (1, 256)])
def test_a_lone_request_that_fills_the_memory(page_size: int, memory: int, drafter: DrafterName) -> None:
    """Or its row of the page table. Drafts take no place that its tokens need: it is neither retracted nor refused."""
    size = 64
    setup = Setup(page_size=page_size, num_tokens=memory, max_context=size, drafts=4, drafter=drafter)
    scheduler = LateScheduler(setup)
    scheduler.send("r", PROMPT[:4], size - 4, ignore_eos=True)
    while scheduler.answers["r"].finish is None:
        turn_within_bounds(scheduler)
    scheduler.run()
    assert scheduler.answers["r"].ids == solo(PROMPT[:4], size - 4, VOCAB, ignore_eos=True)
    assert scheduler.retractions == 0


def ending(rng: random.Random, tokens: int) -> list[int]:
    """A prompt of ten tokens whose answer ends by itself after so many."""
    while True:
        prompt = [rng.randrange(1, VOCAB) for _ in range(10)]
        if len(solo(prompt, 100, VOCAB)) == tokens:
            return prompt


@pytest.mark.promise(21)
@pytest.mark.parametrize("late", [True, False])
@pytest.mark.parametrize("page_size", [1, 4])
def test_what_fits_without_drafts_is_not_retracted_for_them(page_size: int, late: bool) -> None:
    """Answers might be long and are short; there is room for them, and for nothing that drafts leave unused. One of
    them has no drafts, and needs what another one's had set aside.
    """
    rng = random.Random(8)
    prompts = [ending(rng, 34) for _ in range(3)]
    memory = 3 * 44
    setup = Setup(
        page_size=page_size,
        num_tokens=memory,
        max_context=128,
        drafts=4,
        drafter="adversarial",
        late_lengths=late,
        conservativeness=0.01,
    )
    scheduler = LateScheduler(setup)
    for number, prompt in enumerate(prompts):
        scheduler.send(f"r{number}", prompt, 60, min_new_tokens=2 * (number == 1))
    scheduler.run()
    for number, prompt in enumerate(prompts):
        assert scheduler.answers[f"r{number}"].ids == solo(prompt, 60, VOCAB)
    assert scheduler.retractions == 0


@pytest.mark.promise(21)
@pytest.mark.promise(22)
@pytest.mark.parametrize(("drafts", "late", "page_size"), [*itertools.product((1, 4), (True, False), (1, 16))])
def test_short_memory(drafts: int, late: bool, page_size: int) -> None:
    """Rows first do without drafts, then give back what was set aside for these, then are retracted."""
    setup = Setup(
        page_size=page_size,
        num_tokens=192,
        max_context=192,
        conservativeness=0.1,
        drafts=drafts,
        late_lengths=late,
        shakes=Shakes(retract_every=5, fail_alloc_every=7),
    )
    scheduler = LateScheduler(setup)
    rush(scheduler, random.Random(22), PROMPT[:8], requests=60, own=16, max_new=100)
    assert scheduler.retractions > 10


@pytest.mark.promise(14)
@pytest.mark.parametrize("seed", range(6))
def test_storm(seed: int) -> None:
    """Aborts, flushes, shared beginnings, a tier on the host: a rejected draft that is kept for other requests is
    caught.
    """
    rng = random.Random(seed)
    setup = Setup(
        overlap=seed != 5,
        page_size=rng.choice([1, 4, 16]),
        chunk=rng.choice([None, 16, 48]),
        num_tokens=512,
        max_context=160,
        host_tokens=1024 if seed % 2 else 0,
        drafts=1 + 3 * (seed % 2),
        late_lengths=seed % 3 != 0,
        order="mixed" if seed % 3 == 1 else "prefill_first",
    )
    scheduler = LateScheduler(setup)
    storm = Storm(requests=60, max_new=40, turns=4, flush=0.05)
    storm.rage(scheduler, rng, drawn_beginnings(rng, 3))


def test_texts_of_requests_that_are_gone_are_not_kept() -> None:
    scheduler = LateScheduler(Setup(drafts=4, drafter="ngram", num_slots=64))
    for number in range(60):
        scheduler.send(f"r{number}", [*PROMPT, number], 4, ignore_eos=True)
    scheduler.run()
    scheduler.send("last", PROMPT, 20, ignore_eos=True)
    scheduler.run()
    growth = scheduler.assembled.rows.growth
    assert isinstance(growth, Drafts) and isinstance(growth._proposer, NgramProposer)
    assert len(growth._proposer._texts) <= 2 + FEW_TEXTS


def test_a_rejected_draft_is_seen_by_whoever_reads_it() -> None:
    """The scheduler is made to keep a draft for others: this shows that the tests above would notice."""
    scheduler = LateScheduler(Setup(drafts=4))
    scheduler.send("r", PROMPT, 40, ignore_eos=True)
    scheduler.turn(4)
    device, page = scheduler.worker.device, int(scheduler.kv.rows.pages(0)[3])
    device._kv_position[page] = REJECTED
    with pytest.raises(RejectedRead):
        for _ in range(4):
            scheduler.assembled.loop.step()


def test_trimmed_rows_keep_what_they_need() -> None:
    """Behind so many tokens a row gives its pages back, also those of which the device was not told yet."""
    scheduler = LateScheduler(Setup(page_size=4, num_tokens=64, max_context=64))
    kv = scheduler.kv
    slot = kv.open(kv.match(np.asarray(PROMPT, np.int32), extra_key="", limit=0))
    assert kv.extend(slot, 10)
    kv.take_writes()
    assert kv.extend(slot, 30)
    kv.trim_rows(np.asarray([slot]), np.asarray([13], np.int32))
    kv.check()
    assert kv.rows.held[slot] == 4
    writes = kv.take_writes()
    assert writes is not None and writes.columns.tolist() == [3]
