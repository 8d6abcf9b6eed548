"""Attention that is planned with more keys than rows have: by each backend that takes lengths from the device, eagerly
and captured, and the kernels that find the lengths there."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from fixtures.attention_cases import PLAIN, SPECIALITIES, SPECS
from fixtures.late_attention import check_late_lengths
from fixtures.late_row_cases import assert_placed, expected, random_case, to_device
from mysglang.srt.forward.forward_batch import AttentionBackend, AttentionSpec
from mysglang.srt.kernels.late_rows import place_tokens, uniforms_at
from mysglang.srt.layers.attention.factory import EXACT
from mysglang.srt.layers.attention.invariant_triton import InvariantTritonBackend
from mysglang.srt.layers.attention.sgl_kernel_backend import SglKernelBackend
from mysglang.srt.layers.attention.triton_backend import TritonBackend
from mysglang.srt.mem_cache.kv_pool.base import KvPool
from mysglang.srt.platforms import platform_named

LENGTHS = (4, 5, 15, 16, 17, 31, 33, 63, 64, 65, 127, 129, 511, 512, 513, 1023, 1025, 4097)
"""Around the borders of pages, of tiles of keys and of splits."""
DRAFTS = 4
BOUNDS = tuple(range(2 * DRAFTS + 2))


@dataclass(frozen=True)
class Probed:
    """A backend that takes bounds, and what it is asked."""

    make: Callable[[AttentionSpec], Callable[[KvPool, Tensor], AttentionBackend]]
    specs: tuple[AttentionSpec, ...]
    kinds: tuple[tuple[torch.dtype, int, float], ...]
    """Dtype, page size, tolerance."""
    same_bits: bool = True


BF16, FLOAT32 = (torch.bfloat16, 16, 2e-2), (torch.float32, 1, 1e-4)
WIDE = replace(PLAIN, num_heads=16, num_kv_heads=8, head_dim=128, scale=128**-0.5)
MANY_SHARE = replace(PLAIN, num_heads=16, num_kv_heads=2)
OTHERS = (SPECS["window and cap"], SPECIALITIES["chunks"])
TEAMS = (
    replace(WIDE, num_heads=32),  # two warps on the queries of five tokens
    replace(PLAIN, num_heads=16, num_kv_heads=1, logit_cap=3.0),  # warps that share the keys of a head, six on a tile
    replace(PLAIN, num_heads=4, num_kv_heads=2, head_dim=256),
)
"""Layers whose queries our decode kernel divides among its warps in other ways."""
LATE = {
    "triton": Probed(lambda _: TritonBackend, (WIDE, MANY_SHARE, *OTHERS), (BF16, FLOAT32)),
    # Kernels of the deterministic mode take a minute to compile in float32.
    "invariant_triton": Probed(lambda _: InvariantTritonBackend, (WIDE, SPECS["window and cap"]), (BF16,)),
    # How long a row may be decides where its keys are cut.
    "sgl_kernel": Probed(
        lambda spec: lambda pool, table: SglKernelBackend(pool, table, [spec]),
        (WIDE, MANY_SHARE, *TEAMS),
        (BF16, (torch.float16, 1, 5e-3)),
        same_bits=False,
    ),
}


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
    probed = LATE[name]
    for spec in probed.specs:
        for dtype, page_size, tolerance in probed.kinds:
            check_late_lengths(
                probed.make(spec),
                spec,
                LENGTHS,
                q_len=q_len,
                bounds=BOUNDS,
                page_size=page_size,
                dtype=dtype,
                device="cuda",
                tolerance=tolerance,
                same_bits=probed.same_bits,
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
