"""The sampler: what changes logits comes before the choice, and each row is its own affair."""

import math

import numpy as np
import pytest
import torch
from msgspec.structs import replace
from torch import Tensor

from mysglang.srt.forward.outputs import NO_TOKEN, NOT_FINITE
from mysglang.srt.kernels.sampling import Filters
from mysglang.srt.layers.logprobs import LogprobQuery
from mysglang.srt.layers.sampler import OutputQuery, Sampler, SamplingOps, SamplingStep
from mysglang.srt.sampling.drawing import Draw
from mysglang.srt.sampling.feature import Act
from mysglang.srt.sampling.logit_edits import Edits, Prohibitions
from mysglang.srt.sampling.logit_processors import DisallowedTokensLogitsProcessor, ProcessorRun
from mysglang.srt.sampling.penalties import Penalize, Penalties, PenaltyTable
from mysglang.srt.sampling.token_mask import Masked

ROWS, VOCAB = 5, 60


def longs(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int64)


@pytest.fixture
def logits() -> Tensor:
    return torch.randn(ROWS, VOCAB, generator=torch.Generator().manual_seed(3)) * 3


@pytest.fixture(params=[False, True], ids=["ops", "reference"])
def ops(request: pytest.FixtureRequest) -> SamplingOps:
    return SamplingOps.choose(reference=request.param)


@pytest.fixture
def sampler(ops: SamplingOps) -> Sampler:
    return Sampler(ops)


def drawing(ops: SamplingOps, temperature: float = 0.7, uniforms: Tensor | None = None, **filters: Tensor) -> Draw:
    """All rows draw but row 1, which is greedy."""
    heat = torch.full((ROWS,), temperature)
    greedy = torch.arange(ROWS) == 1
    numbers = torch.rand(ROWS, dtype=torch.float64) if uniforms is None else uniforms
    heat = torch.where(greedy, 1.0, heat)
    return Draw(draw=ops.draw, uniforms=numbers, temperature=heat, greedy=greedy, filters=Filters(**filters))


def step_of(*acts: Act, output_query: OutputQuery | None = None) -> SamplingStep:
    return SamplingStep(output_query=output_query).then(acts)


def test_greedy(sampler: Sampler, logits: Tensor) -> None:
    assert torch.equal(sampler.sample(logits, SamplingStep()).tokens, logits.argmax(-1))


def test_logits_are_left_as_they_are(sampler: Sampler, ops: SamplingOps, logits: Tensor) -> None:
    before = logits.clone()
    edits = Edits(longs(0), longs(3), torch.tensor([-math.inf]))
    sampler.sample(logits, step_of(drawing(ops), edits))
    assert torch.equal(logits, before)


def test_a_greedy_row_among_drawing_ones(sampler: Sampler, ops: SamplingOps, logits: Tensor) -> None:
    logits[1, 7] = logits[1, 40] = 50.0
    uniforms = torch.full((ROWS,), 0.999, dtype=torch.float64)
    tokens = sampler.sample(logits, step_of(drawing(ops, 20.0, uniforms)))
    assert int(tokens.tokens[1]) == 7
    assert not torch.equal(tokens.tokens, logits.argmax(-1))


def test_forbidden_bias_and_penalties_come_first(sampler: Sampler, logits: Tensor) -> None:
    best = logits.argmax(-1)
    forbidden = Prohibitions(longs(0), best[:1], torch.tensor([-math.inf]))
    bias = Edits(longs(0, 2), torch.cat([best[:1], longs(11)]), torch.full((2,), 900.0))
    ones = torch.ones(1)
    penalties = Penalties(longs(3), longs(5), 0 * ones, 800 * ones, ones)
    table = PenaltyTable(VOCAB, torch.device("cpu"))
    table.reserve(8)
    step = step_of(forbidden, bias, Penalize(table, penalties))
    first = sampler.sample(logits, step).tokens
    second = sampler.sample(logits, step).tokens
    assert int(first[0]) == int(logits[0].argsort(descending=True)[1])
    assert int(first[1]) == int(best[1]) and int(first[2]) == 11
    # Row 3 may not repeat what it sampled the first time.
    assert int(first[3]) == int(best[3])
    assert int(second[3]) == int(logits[3].argsort(descending=True)[1])


@pytest.mark.promise(35)
def test_a_broken_row(sampler: Sampler, ops: SamplingOps, logits: Tensor) -> None:
    uniforms = torch.rand(ROWS).double()
    step = step_of(drawing(ops, uniforms=uniforms, top_k=torch.full((ROWS,), 9)))
    whole = sampler.sample(logits, step).tokens
    logits[2, 8] = math.nan
    broken = sampler.sample(logits, step).tokens
    assert broken.tolist() == [*whole[:2].tolist(), -1, *whole[3:].tolist()]


@pytest.mark.promise(35)
def test_promise_35_a_row_that_cannot_be_sampled_ends_alone(sampler: Sampler, ops: SamplingOps, logits: Tensor) -> None:
    ones = torch.ones(2)
    uniforms = torch.linspace(0.1, 0.9, ROWS, dtype=torch.float64)
    filters = {"top_k": torch.full((ROWS,), 9, dtype=torch.int32), "min_p": torch.full((ROWS,), 0.01)}
    table = PenaltyTable(VOCAB, torch.device("cpu"))
    table.reserve(8)
    drawn = drawing(ops, uniforms=uniforms, **filters)
    acts = (
        Penalize(table, Penalties(longs(0, 3), longs(5, 2), 0.1 * ones, 0.2 * ones, 1.5 * ones)),
        Edits(longs(2, 4), longs(11, 12), torch.tensor([3.0, 4.0])),
        Prohibitions(longs(0), longs(7), torch.tensor([-math.inf])),
        ProcessorRun(lambda found, params: found - params[0]["less"], longs(4), [{"less": 2.0}]),
        Masked(longs(3), torch.tensor([[0xFFFFFF, 0]], dtype=torch.int32), ops.mask),
    )
    pairs = LogprobQuery(3, np.asarray([0, 2, 3, 3]), longs(0, 0, 1), longs(4, 5, 6))
    query = OutputQuery(longs(0, 2, 4), pairs)
    whole = sampler.sample(logits, step_of(*acts, drawn, output_query=query))

    def failing(found: Tensor, uniforms: Tensor, heat: Tensor, filters: Filters) -> Tensor:
        if bool((uniforms == drawn.uniforms[2]).any()):
            raise RuntimeError("not enough memory")
        return ops.draw(found, uniforms, heat, filters)

    counted = PenaltyTable(VOCAB, torch.device("cpu"))
    counted.reserve(8)
    counted.count(longs(5, 2), whole.tokens[[0, 3]])
    table._counts.zero_()
    apart = sampler.sample(logits, step_of(*acts, replace(drawn, draw=failing), output_query=query))
    assert apart.tokens.tolist() == [*whole.tokens[:2].tolist(), -1, *whole.tokens[3:].tolist()]
    assert torch.equal(table._counts, counted._counts), "each token is counted once"
    assert whole.logprobs is not None and apart.logprobs is not None
    for name in ("chosen", "top_vals", "top_ids"):
        kept, found = getattr(whole.logprobs, name), getattr(apart.logprobs, name)
        assert torch.equal(found[[0, 2]], kept[[0, 2]])
    assert torch.equal(apart.logprobs.pair_vals[:2], whole.logprobs.pair_vals[:2])
    assert apart.logprobs.pair_vals.shape == whole.logprobs.pair_vals.shape


def test_logprobs_are_after_temperature_and_before_filters(sampler: Sampler, ops: SamplingOps, logits: Tensor) -> None:
    rows = longs(1, 4)
    query = OutputQuery(rows, LogprobQuery(2, np.zeros(3, dtype=np.int64), longs(), longs()))
    chosen_from = drawing(ops, 0.5, top_k=torch.full((ROWS,), 2, dtype=torch.int32))
    step = step_of(chosen_from, output_query=query)
    sampled = sampler.sample(logits, step)
    assert sampled.logprobs is not None
    expected = torch.stack([logits[1].log_softmax(-1), (logits[4] / 0.5).log_softmax(-1)])
    assert torch.allclose(sampled.logprobs.chosen, expected.gather(1, sampled.tokens[rows, None]).squeeze(1))
    assert torch.allclose(sampled.logprobs.top_vals, expected.sort(descending=True).values[:, :2])


def test_a_mask_leaves_only_what_it_allows(sampler: Sampler, ops: SamplingOps, logits: Tensor) -> None:
    """Whatever is added to the others, and only in the rows that it is for."""
    allowed = [{5, 33}, {0}, {59}]
    rows = longs(0, 1, 4)
    bits = torch.zeros(3, 2, dtype=torch.int32)
    for line, ids in enumerate(allowed):
        for token in ids:
            bits[line, token // 32] |= 1 << (token % 32)
    bias = Edits(longs(0, 1, 4), longs(7, 7, 7), torch.full((3,), 1e4))
    for free in (step_of(bias), step_of(bias, drawing(ops, 30.0))):
        tokens = sampler.sample(logits, free.then((Masked(rows, bits, ops.mask),))).tokens
        unmasked = sampler.sample(logits, free).tokens
        assert all(int(tokens[row]) in ids for row, ids in zip(rows.tolist(), allowed, strict=True))
        assert torch.equal(tokens[2:4], unmasked[2:4])


def test_a_mask_that_allows_nothing_disturbs_no_other_row(sampler: Sampler, ops: SamplingOps, logits: Tensor) -> None:
    """Such a row gets no token: the code that gave the mask might allow the one that was chosen all the same."""
    nothing = Masked(longs(2), torch.zeros(1, 2, dtype=torch.int32), ops.mask)
    filters = {"top_k": torch.full((ROWS,), 9, dtype=torch.int32), "top_p": torch.full((ROWS,), 0.9)}
    for free in (step_of(), step_of(drawing(ops)), step_of(drawing(ops, 1.0, **filters))):
        masked = sampler.sample(logits, free.then((nothing,))).tokens
        others = torch.arange(ROWS) != 2
        assert torch.equal(masked[others], sampler.sample(logits, free).tokens[others])
        assert int(masked[2]) == NO_TOKEN


def test_a_processor_and_a_mask_that_share_no_token(sampler: Sampler, ops: SamplingOps, logits: Tensor) -> None:
    """Each of the two allows token 0, or others; together they allow none, and a broken row stays a broken one."""
    logits[4, 3] = math.nan
    forbids = ProcessorRun(DisallowedTokensLogitsProcessor(), longs(2, 4), [{"token_ids": [0]}] * 2)
    only = Masked(longs(2, 3, 4), torch.tensor([[1, 0]] * 3, dtype=torch.int32), ops.mask)
    for free in (step_of(), step_of(drawing(ops))):
        tokens = sampler.sample(logits, free.then((forbids, only))).tokens.tolist()
        assert tokens[2:] == [NO_TOKEN, 0, NOT_FINITE] and min(tokens[:2]) >= 0
