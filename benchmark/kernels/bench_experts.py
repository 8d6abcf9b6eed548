"""Times one layer's mixture of experts at the shapes of real models. Prints one JSON object as its last line.

route     the choice of experts, from the logits
router    the logits and the choice; "library": the logits by torch's product, then the choice
experts   sorting, both products and the sum, as they are without and with deterministic inference

Each time is that of one of many launches in a captured graph. Layers take turns, and so do routings, drawn evenly, so
that no weight is in the cache. The floor is the time in which the weights of the experts that were hit can be read, or
their products be multiplied, at the bandwidth and the rate that are measured first. Before it is timed, a result of up
to 64 tokens is compared with the reference in float32.

python benchmark/kernels/bench_experts.py [--tokens 1 4 16 64 256 1024 4096]
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mysglang.srt.kernels.cuda.experts import fused_experts, invariant_fused_experts
from mysglang.srt.kernels.experts import Selection, route_experts, select_experts, topk_softmax
from mysglang.srt.kernels.experts import fused_experts as op

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from bench import microseconds
from ceilings import measure

TOKENS = (1, 4, 16, 64, 256, 1024, 4096)
TURNS = 8
"""Routings; layers take turns among them."""
LAYERS = 2
COMPARED = 64
TOLERANCE = 1e-2

Experts = Callable[..., Tensor]


@dataclass(frozen=True, slots=True)
class Shape:
    """One layer's experts."""

    experts: int
    top_k: int
    width: int
    inner: int

    @property
    def expert_values(self) -> int:
        """Weights of one expert."""
        return 3 * self.width * self.inner

    def floor(self, tokens: int, hit: float, *, read_tb_s: float, tflop_s: float) -> float:
        """Microseconds, for bfloat16 weights of `hit` experts."""
        read = hit * self.expert_values * 2 / read_tb_s / 1e6
        return max(read, 2 * tokens * self.top_k * self.expert_values / tflop_s / 1e6)

    def expected_hit(self, tokens: int) -> float:
        """Experts that are hit if every choice is as likely."""
        return self.experts * (1 - (1 - self.top_k / self.experts) ** tokens)


SHAPES = {
    "qwen3-30b-a3b": Shape(experts=128, top_k=8, width=2048, inner=768),
    "deepseek-v2-lite": Shape(experts=64, top_k=6, width=2048, inner=1408),
    "gpt-oss-20b": Shape(experts=32, top_k=4, width=2880, inner=2880),
    "qwen3-next": Shape(experts=512, top_k=10, width=2048, inner=512),
    "qwen3-235b-a22b": Shape(experts=128, top_k=8, width=4096, inner=1536),
}


def drawn(*shape: int, scale: float = 1.0) -> Tensor:
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16).mul_(scale)


def layer_of(shape: Shape) -> tuple[torch.Tensor, torch.Tensor]:
    """Weights of gate and up, and of down."""
    return (
        drawn(shape.experts, 2 * shape.inner, shape.width, scale=shape.width**-0.5),
        drawn(shape.experts, shape.width, shape.inner, scale=shape.inner**-0.5),
    )


def bench(shape: Shape, tokens: int, layers: list[tuple[Tensor, Tensor]], ceilings: dict[str, Any]) -> dict[str, Any]:
    logits = [drawn(tokens, shape.experts) for _ in range(TURNS)]
    routed = [topk_softmax(each, shape.top_k, True) for each in logits]
    rows = [drawn(tokens, shape.width) for _ in range(TURNS)]
    hit = sum(len(ids.unique()) for ids, _ in routed) / TURNS

    def times(experts: Experts) -> float:
        def launch(i: int) -> Tensor:
            return experts(rows[i], *layers[i % LAYERS], *routed[i], "silu")

        if tokens <= COMPARED:
            check(launch(0), op.reference(rows[0].float(), *(each.float() for each in layers[0]), *routed[0], "silu"))
        return microseconds(launch, TURNS)

    route = microseconds(lambda i: topk_softmax(logits[i], shape.top_k, True), TURNS)
    weights = [drawn(shape.experts, shape.width, scale=shape.width**-0.5) for _ in range(LAYERS)]
    best = Selection(score="softmax", top_k=shape.top_k, renormalize=True)
    router = microseconds(lambda i: route_experts(rows[i], weights[i % LAYERS], None, None, best), TURNS)
    library = microseconds(lambda i: select_experts(F.linear(rows[i], weights[i % LAYERS]), None, best), TURNS)
    us, invariant = times(fused_experts), times(invariant_fused_experts)
    rates = {"read_tb_s": float(ceilings["read_tb_s"]), "tflop_s": float(ceilings["gemm_bf16_tflop_s"])}
    floor = shape.floor(tokens, hit, **rates)
    return {
        "tokens": tokens,
        "hit": round(hit, 1),
        "floor_us": round(floor, 1),
        "us": round(us, 1),
        "of_floor": round(floor / us, 2),
        "invariant_us": round(invariant, 1),
        "route_us": round(route, 1),
        "router_us": round(router, 1),
        "library_us": round(library, 1),
    }


def check(found: Tensor, expected: Tensor) -> None:
    error = float((found - expected).norm() / expected.norm())
    assert error < TOLERANCE, f"off by {error}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["qwen3-30b-a3b"], choices=list(SHAPES))
    parser.add_argument("--tokens", nargs="+", type=int, default=TOKENS)
    arguments = parser.parse_args()
    ceilings = measure()
    results = []
    for model in arguments.models:
        shape = SHAPES[model]
        layers = [layer_of(shape) for _ in range(LAYERS)]
        for tokens in arguments.tokens:
            result = {"model": model, **bench(shape, tokens, layers, ceilings)}
            print(*result.values(), flush=True)
            results.append(result)
    print(json.dumps({"ceilings": ceilings, "experts": results}))


if __name__ == "__main__":
    main()
