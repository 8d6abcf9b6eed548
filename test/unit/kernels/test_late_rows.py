"""Places and random numbers of tokens in rows whose length only the device knows: the op's reference and its Triton
kernel are compared with a loop over the tokens."""

import numpy as np
import pytest
import torch

from fixtures.late_row_cases import assert_placed, expected, random_case
from fixtures.triton_on_cpu import run_interpreted
from mysglang.srt.kernels.late_rows import place_tokens, uniforms_at
from mysglang.srt.sampling.draws import uniforms

SEEDS = np.random.default_rng(1).integers(-(2**63), 2**63 - 1, 300)
LENGTHS = np.random.default_rng(2).integers(0, 2**31 - 1, 300).astype(np.int32)


def test_places() -> None:
    drafted = 0
    for seed in range(200):
        case = random_case(seed, width=1 + seed % 5, page_size=1 + seed % 4)
        wanted = expected(case)
        assert_placed(place_tokens.reference(*case.arguments), wanted)
        drafted += int((wanted.drafts >= 0).sum())
    assert drafted > 100, "drafts must be found, or nothing is compared"


def test_random_numbers_are_those_of_the_host() -> None:
    found = uniforms_at.reference(torch.from_numpy(SEEDS), torch.from_numpy(LENGTHS).long())
    assert np.array_equal(found.numpy(), uniforms(SEEDS, LENGTHS))


INTERPRETED = """
import numpy as np
from fixtures.late_row_cases import assert_placed, expected, random_case
from mysglang.srt.kernels.cuda import late_rows
from mysglang.srt.sampling.draws import uniforms
late_rows.BLOCK = 8
for seed in range(20):
    case = random_case(seed, width=1 + seed % 5, page_size=1 + seed % 4)
    assert_placed(late_rows.place_tokens(*case.arguments), expected(case))
seeds = np.random.default_rng(1).integers(-(2**63), 2**63 - 1, 30)
lengths = np.random.default_rng(2).integers(0, 2**31 - 1, 30).astype(np.int32)
found = late_rows.uniforms_at(torch.from_numpy(seeds), torch.from_numpy(lengths).long())
assert np.array_equal(found.numpy(), uniforms(seeds, lengths))
print("all agree")
"""


def test_kernels() -> None:
    pytest.importorskip("triton")
    assert run_interpreted(INTERPRETED).strip() == "all agree"
