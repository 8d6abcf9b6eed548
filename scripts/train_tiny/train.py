"""The training loop: AdamW, warm-up and cosine, bf16 autocast, a moving average of the weights that is what we ship."""

import json
import math
import queue
import threading
import time
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path

import data
import export
import numpy as np
import torch
import torch.nn.functional as F
from model import Llama, Shape
from safetensors.torch import load_file
from scoring import held_out_scores
from tokenizers import Tokenizer
from torch import Tensor
from tqdm import tqdm


@dataclass(frozen=True, slots=True)
class Plan:
    """One run. `max_seconds` ends a run that is too slow for its host; what it then exports is not reproducible."""

    steps: int = 9_000
    rows_per_step: int = 8
    peak_rate: float = 2.5e-3
    warm_up: int = 200
    weight_decay: float = 0.1
    prompt_weight: float = 0.1
    average: float = 0.998
    seed: int = 1
    processes: int = 15
    max_seconds: float = float("inf")
    score_every: int = 3_000


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows on the device: tokens [rows, CONTEXT + 1] int64, kinds [rows, CONTEXT] float32; `bounds` for attention."""

    tokens: Tensor
    kinds: Tensor
    bounds: Tensor


def run(shape: Shape, plan: Plan, folder: Path, device: str, log: Path | None, start: Path | None = None) -> None:
    """Train and export to `folder`, which must hold tokenizer.json. `start`: safetensors file to begin with."""
    torch.manual_seed(plan.seed)
    torch.set_float32_matmul_precision("high")
    shards = math.ceil(plan.steps * plan.rows_per_step / data.SHARD_ROWS)
    rows = data.stream(folder, plan.seed, shards, plan.processes)
    first = next(rows)  # the workers fork before the device is touched
    model = Llama(shape)
    if start is not None:
        model.take_hugging_face_weights(load_file(start))
    model = model.to(device)
    averaged = deepcopy(model).requires_grad_(False)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    batches = _ahead(_batches(chain([first], rows), plan, device))
    record = _train(model, averaged, batches, plan, device, lambda: held_out_scores(averaged, tokenizer, 32, device))
    for weight in averaged.parameters():  # what is shipped is bf16, so that is what is scored
        weight.copy_(weight.bfloat16())
    export.write(averaged, folder)
    scores, sure = held_out_scores(averaged, tokenizer, 50, device)
    record |= {"scores": scores, "mean_top1": sure, "parameters": sum(p.numel() for p in model.parameters())}
    print(json.dumps(record))
    if log:
        log.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


def _train(
    model: Llama,
    averaged: Llama,
    batches: Iterator[Batch],
    plan: Plan,
    device: str,
    score: Callable[[], tuple[dict[str, float], float]],
) -> dict[str, object]:
    decayed = [p for p in model.parameters() if p.dim() == 2]
    plain = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": decayed, "weight_decay": plan.weight_decay}, {"params": plain, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=plan.peak_rate, betas=(0.9, 0.98), fused=device == "cuda")
    compute: Callable[[Llama, Tensor, Tensor, Tensor, float], Tensor] = (
        torch.compile(loss, dynamic=False) if device == "cuda" else loss
    )
    began, step, running = time.monotonic(), 0, 0.0
    bar = tqdm(total=plan.steps, unit="step", mininterval=5.0)
    for step, batch in enumerate(islice(batches, plan.steps)):
        for group in optimizer.param_groups:
            group["lr"] = rate(plan, step, time.monotonic() - began)
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            value = compute(model, batch.tokens, batch.kinds, batch.bounds, plan.prompt_weight)
        value.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        # A young average would remember the random start: its memory grows with the run.
        keep = min(plan.average, (step + 1) / (step + 10))
        torch._foreach_lerp_(list(averaged.parameters()), list(model.parameters()), 1 - keep)
        if step % 50 == 0:
            running = float(value.detach())
            bar.set_postfix(loss=f"{running:.4f}", refresh=False)
        if step and step % plan.score_every == 0:
            tqdm.write(f"step {step} loss {running:.4f} {time.monotonic() - began:.0f} s {_short(*score())}")
        bar.update()
        if time.monotonic() - began > plan.max_seconds:
            break
    bar.close()
    seconds = time.monotonic() - began
    tokens = (step + 1) * plan.rows_per_step * data.CONTEXT
    return {
        "steps": step + 1,
        "tokens": tokens,
        "seconds": round(seconds, 1),
        "tokens_per_second": round(tokens / seconds),
        "loss": running,
    }


def loss(model: Llama, tokens: Tensor, kinds: Tensor, bounds: Tensor, prompt_weight: float) -> Tensor:
    """Mean cross-entropy; answers weigh one, prompts `prompt_weight`, padding nothing."""
    logits = model(tokens[:, :-1], bounds)
    each = F.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten(), reduction="none")
    kinds = kinds.flatten()
    weights = torch.where(kinds == data.PROMPT, prompt_weight, (kinds == data.ANSWER).float())
    return (each * weights).sum() / weights.sum()


def rate(plan: Plan, step: int, seconds: float) -> float:
    """Linear warm-up, then half a cosine to a hundredth of the peak, by steps or time, whichever is further along."""
    if step < plan.warm_up:
        return plan.peak_rate * (step + 1) / plan.warm_up
    done = min(1.0, max((step - plan.warm_up) / max(1, plan.steps - plan.warm_up), seconds / plan.max_seconds))
    return plan.peak_rate * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * done)))


def _batches(rows: Iterator[data.Rows], plan: Plan, device: str) -> Iterator[Batch]:
    for shard in rows:
        for at in range(0, data.SHARD_ROWS, plan.rows_per_step):
            yield _to_device(shard, slice(at, at + plan.rows_per_step), device)


def _to_device(rows: data.Rows, chosen: slice, device: str) -> Batch:
    tokens = torch.from_numpy(rows.tokens[chosen].astype(np.int64))
    kinds = torch.from_numpy(rows.kinds[chosen, 1:].astype(np.float32))
    starts = np.flatnonzero(rows.starts[chosen, :-1])
    total = tokens.shape[0] * data.CONTEXT
    # Always the same number of bounds, so that the compiled step has one shape; the last documents are then empty.
    bounds = np.full(data.CONTEXT // 64 * tokens.shape[0], total, np.int32)
    bounds[: len(starts)] = starts
    assert len(starts) < len(bounds)
    if device == "cuda":
        tokens, kinds = tokens.pin_memory(), kinds.pin_memory()
    return Batch(
        tokens.to(device, non_blocking=True),
        kinds.to(device, non_blocking=True),
        torch.from_numpy(bounds).to(device, non_blocking=True),
    )


def _ahead(batches: Iterator[Batch]) -> Iterator[Batch]:
    """The batches, a few of them prepared ahead by a thread."""
    ready: queue.Queue[Batch | None] = queue.Queue(8)

    def fill() -> None:
        try:
            for batch in batches:
                ready.put(batch)
        finally:  # the thread's own traceback says why it ended early
            ready.put(None)

    threading.Thread(target=fill, daemon=True).start()
    while (batch := ready.get()) is not None:
        yield batch


def _short(scores: dict[str, float], sure: float) -> str:
    return f"top1 {sure:.4f} " + " ".join(f"{task} {100 * score:.0f}" for task, score in scores.items())
