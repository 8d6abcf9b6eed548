"""Attention that is planned with more keys than rows have: by each backend that takes lengths from the device, eagerly
and captured, and the kernels that find the lengths there."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from fixtures.attention_cases import PLAIN, SPECIALITIES, SPECS
from fixtures.late_attention import check_late_lengths
from fixtures.late_row_cases import assert_placed, expected, random_case, to_device
from mysglang.srt.kernels.late_rows import place_tokens, uniforms_at
from mysglang.srt.layers.attention.factory import EXACT
from mysglang.srt.layers.attention.invariant_triton import InvariantTritonBackend
from mysglang.srt.layers.attention.triton_backend import TritonBackend
from mysglang.srt.platforms import platform_named

LENGTHS = (4, 5, 15, 16, 17, 31, 33, 63, 64, 65, 127, 129, 511, 512, 513, 1023, 1025, 4097)
"""Around the borders of pages, of tiles of keys and of splits."""
DRAFTS = 4
BOUNDS = tuple(range(2 * DRAFTS + 2))
LATE = {"triton": TritonBackend, "invariant_triton": InvariantTritonBackend}
"""Backends that take bounds."""
WIDE = replace(PLAIN, num_heads=16, num_kv_heads=8, head_dim=128, scale=128**-0.5)
MANY_SHARE = replace(PLAIN, num_heads=16, num_kv_heads=2)
OTHERS = (SPECS["window and cap"], SPECIALITIES["chunks"])


def captured(attend: Callable[[], Tensor]) -> Callable[[], Tensor]:
    with platform_named("cuda").recorder() as recorder:
        graph, out = recorder.record(attend)

    def replay() -> Tensor:
        out.fill_(float("nan"))
        graph.replay()
        return out

    return replay


def test_every_backend_is_probed_that_takes_bounds() -> None:
    from mysglang.srt.layers.attention.factory import BACKENDS

    assert LATE.keys() == BACKENDS.keys() - EXACT.keys()


@pytest.mark.parametrize("q_len", [1, 4])
@pytest.mark.parametrize("graph", [False, True], ids=["eager", "captured"])
@pytest.mark.parametrize("name", LATE)
def test_keys_behind_the_real_end(name: str, graph: bool, q_len: int) -> None:
    specs = (WIDE, SPECS["window and cap"]) if name == "invariant_triton" else (WIDE, MANY_SHARE, *OTHERS)
    kinds = ((torch.bfloat16, 16, 2e-2), (torch.float32, 1, 1e-4))
    for spec in specs:
        # Kernels of the deterministic mode take a minute to compile in float32.
        for dtype, page_size, tolerance in kinds[:1] if name == "invariant_triton" else kinds:
            check_late_lengths(
                LATE[name],
                spec,
                LENGTHS,
                q_len=q_len,
                bounds=BOUNDS,
                page_size=page_size,
                dtype=dtype,
                device="cuda",
                tolerance=tolerance,
                run=captured if graph else lambda attend: attend,
                room=5 if graph and q_len > 1 else 0,
            )


def test_places_and_random_numbers() -> None:
    for seed in range(40):
        case = random_case(seed, rows=1 + seed, width=1 + seed % 5, page_size=1 + seed % 4)
        assert_placed(place_tokens(*to_device(case, "cuda").arguments), expected(case))
    seeds, lengths = torch.randint(-(2**62), 2**62, (1000,)), torch.randint(2**30, (1000,))
    found = uniforms_at(seeds.cuda(), lengths.cuda())
    assert torch.equal(found.cpu(), uniforms_at.reference(seeds, lengths))
