"""Time of a whole decode step in one kernel, beside the time of reading its weights and its cache once.

    python sgl-kernel/benchmark/bench_decoder.py [--models llama-8b] [--rows 1 2] [--context 128 1024]

Random weights. Steps are replayed from a graph, one after another; the median of several rounds. `--trace` tells where
the time goes in a layer: median over layers, then lowest, median and highest over the multiprocessors, in clock ticks.
"""

import argparse
import statistics
from dataclasses import dataclass

import torch
from torch import Tensor

from mysgl_kernel.decoder import SILU, DecoderTensors, DecodeStep, DoesNotFitError, GatedActivation, LayerTensors

POINTS = (
    *("others are through", "added", "normed", "qkv", "heads ready", "attended", "unit merged", "units merged", "sent"),
    *("others are through", "received", "o", "others are through", "added", "normed", "gate_up"),
    *("others are through", "received", "down"),
    *("others are through", "added", "normed", "router"),
)
"""Points of a layer at which a trace records the time."""
ORDER = (*range(12), *range(19, 23), *range(12, 19))
"""Their numbers in the order of time. A layer passes some of them."""


@dataclass(frozen=True)
class Model:
    layers: int
    hidden: int
    q_heads: int
    kv_heads: int
    head_dim: int
    inner: int
    vocab: int
    qk_norm: bool = False
    experts: int = 0
    chosen: int = 0
    biases: bool = False
    window: int = 0
    """Keys that every other layer sees, on pages of their own; 0: all layers see all."""
    sinks: bool = False
    activation: GatedActivation = SILU


MODELS = {
    "llama-8b": Model(32, 4096, 32, 8, 128, 14336, 128256),
    "qwen3-0.6b": Model(28, 1024, 16, 8, 128, 3072, 151936, qk_norm=True),
    "qwen3-4b": Model(36, 2560, 32, 8, 128, 9728, 151936, qk_norm=True),
    "llama-1b": Model(16, 2048, 32, 8, 64, 8192, 128256),
    "qwen3-30b-a3b": Model(48, 2048, 32, 4, 128, 768, 151936, qk_norm=True, experts=128, chosen=8),
    "qwen3-30b-a3b, 24 layers": Model(24, 2048, 32, 4, 128, 768, 151936, qk_norm=True, experts=128, chosen=8),
    "gpt-oss-20b": Model(
        *(24, 2880, 64, 8, 64, 2880, 201088),
        experts=32,
        chosen=4,
        biases=True,
        window=128,
        sinks=True,
        activation=GatedActivation(steepness=1.702, limit=7.0, lift=1.0),
    ),
}


def random_model(model: Model, rows: int, context: int) -> DecoderTensors:
    bf16 = {"dtype": torch.bfloat16, "device": "cuda"}

    def weight(*shape: int) -> Tensor:
        return torch.empty(*shape, **bf16).normal_(0, shape[-1] ** -0.5)

    def bias(*shape: int) -> Tensor | None:
        return torch.empty(*shape, **bf16).normal_(0, 0.02) if model.biases else None

    stacked = (model.experts,) if model.experts else ()
    qkv = (model.q_heads + 2 * model.kv_heads) * model.head_dim
    cache = (rows * context + 1, model.kv_heads, model.head_dim)
    head_norm = torch.ones(model.head_dim, **bf16) if model.qk_norm else None
    layers = [
        LayerTensors(
            qkv=weight(qkv, model.hidden),
            qkv_bias=bias(qkv),
            o=weight(model.hidden, model.q_heads * model.head_dim),
            o_bias=bias(model.hidden),
            router=weight(model.experts, model.hidden) if model.experts else None,
            router_bias=bias(model.experts) if model.experts else None,
            gate_up=weight(*stacked, 2 * model.inner, model.hidden),
            gate_up_bias=bias(*stacked, 2 * model.inner),
            down=weight(*stacked, model.hidden, model.inner),
            down_bias=bias(*stacked, model.hidden),
            input_norm=torch.ones(model.hidden, **bf16),
            post_norm=torch.ones(model.hidden, **bf16),
            q_norm=head_norm,
            k_norm=head_norm,
            keys=torch.empty(cache, **bf16).normal_(),
            values=torch.empty(cache, **bf16).normal_(),
            window=model.window if number % 2 == 0 else 0,
            sinks=torch.randn(model.q_heads, device="cuda") if model.sinks else None,
            space=int(model.window > 0 and number % 2 == 0),
        )
        for number in range(model.layers)
    ]
    return DecoderTensors(
        layers=layers,
        embedding=weight(model.vocab, model.hidden),
        final_norm=torch.ones(model.hidden, **bf16),
        lm_head=weight(model.vocab, model.hidden),
        cos_sin=torch.rand(context, model.head_dim, device="cuda"),
        page_tables=[
            (torch.randperm(rows * context, device="cuda").view(rows, context) + 1).int()
            for _ in range(1 + (model.window > 0))
        ],
        page_size=1,
        q_heads=model.q_heads,
        eps=1e-5,
        qk_eps=1e-6,
        scale=model.head_dim**-0.5,
        chosen=model.chosen,
        renormalize=model.experts > 0,
        activation=model.activation,
    )


def floor(model: Model, rows: int, context: int, read: float) -> float:
    """Returns the seconds to read the weights and the cache, at `read` bytes a second."""
    mlp = 3 * model.inner * max(1, model.chosen) + model.experts
    weights = model.hidden * ((2 * model.q_heads + 2 * model.kv_heads) * model.head_dim + mlp)
    seen = (context + min(context, model.window)) / 2 if model.window else context
    keys = rows * seen * 2 * model.kv_heads * model.head_dim
    return 2 * (model.layers * (weights + keys) + model.vocab * model.hidden) / read


def measure(step: DecodeStep, inputs: tuple[Tensor, ...], steps: int) -> float:
    """Seconds a step."""
    step.run(*inputs)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step.run(*inputs)
    times = []
    for _ in range(5):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        graph.replay()
        begin.record()
        for _ in range(steps):
            graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) / steps / 1e3)
    return statistics.median(times)


def print_trace(ticks: Tensor) -> None:
    """Times of all layers except the first, whose beginning differs."""
    passed = [point for point in ORDER if (ticks[:, point] > 0).any()]
    times = ticks[:, passed].double()
    times[times == 0] = float("nan")
    before = torch.cat((times[:-1, -1:], times[1:, :-1]), 1)
    spent = (times[1:] - before).nanmedian(0).values
    for name, line in zip((POINTS[point] for point in passed), spent, strict=True):
        known = line[~line.isnan()]
        print(f"    {name:20} {known.min():8.0f} {known.median():8.0f} {known.max():8.0f}")
    print(f"    {'layer':20} {(times[1:, -1] - times[:-1, -1]).median():17.0f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=["llama-8b", "qwen3-0.6b"])
    parser.add_argument("--rows", nargs="+", type=int, default=[1, 2, 4, 8])
    parser.add_argument("--context", nargs="+", type=int, default=[128, 1024, 8192])
    parser.add_argument("--read", type=float, default=4.6, help="TB/s that benchmark/ceilings.py measures")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--trace", action="store_true")
    options = parser.parse_args()
    for name in options.models:
        model = MODELS[name]
        tensors = random_model(model, max(options.rows), max(options.context))
        for rows in options.rows:
            for context in options.context:
                try:
                    step = DecodeStep(tensors, rows)
                except DoesNotFitError as error:
                    print(f"{name:12} rows {rows} context {context:5}: {error}")
                    break
                whole = torch.arange(rows, device="cuda")
                lens = torch.full((rows,), context, dtype=torch.int32, device="cuda")
                new = [table[:rows, context - 1].long() for table in tensors.page_tables]
                inputs = (whole, lens.long() - 1, whole, lens, *new)
                seconds, least = measure(step, inputs, options.steps), floor(model, rows, context, 1e12 * options.read)
                print(
                    f"{name:12} rows {rows} context {context:5}: {1e3 * seconds:7.3f} ms, floor {1e3 * least:6.3f}, "
                    f"{least / seconds:.3f} of it"
                )
                if options.trace:
                    print_trace(step.trace(*inputs))


if __name__ == "__main__":
    main()
