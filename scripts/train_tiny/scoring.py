"""The held-out score while training: an answer counts when every one of its tokens would be chosen greedily.

That is the exact match of greedy decoding, in one forward pass and without decoding.
"""

from collections import defaultdict

import torch
from data import ANSWER, encode
from model import Llama
from tokenizers import Tokenizer
from torch import Tensor

from tiny_world import world


@torch.no_grad()
def held_out_scores(model: Llama, tokenizer: Tokenizer, per_task: int, device: str) -> tuple[dict[str, float], float]:
    """Exact match by task (with `total`), and the mean probability of the right token over all scored answer tokens."""
    items = world.held_out_items(per_task)
    encoded = encode(tokenizer, items)
    right: dict[str, list[bool]] = defaultdict(list)
    sure: list[Tensor] = []
    order = sorted(range(len(items)), key=lambda i: len(encoded[i][0]))
    for at in range(0, len(order), 64):
        chunk = order[at : at + 64]
        length = max(len(encoded[i][0]) for i in chunk)
        tokens = torch.zeros(len(chunk), length, dtype=torch.long)
        for row, i in enumerate(chunk):
            tokens[row, : len(encoded[i][0])] = torch.tensor(encoded[i][0])
        bounds = torch.arange(0, tokens.numel() + 1, length, dtype=torch.int32)
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            logits = model(tokens.to(device), bounds.to(device)).float()
        best, chosen = logits.softmax(-1).max(-1)
        for row, i in enumerate(chunk):
            kinds = encoded[i][1]
            last = max(j for j, kind in enumerate(kinds) if kind == ANSWER)
            first = max((j for j in range(last) if kinds[j] != ANSWER), default=-1) + 1
            scored = slice(first - 1, last)
            right[items[i].task].append(bool((chosen[row, scored].cpu() == tokens[row, first : last + 1]).all()))
            sure.append(best[row, scored].float().cpu())
    scores = {task: sum(results) / len(results) for task, results in right.items()}
    everything = [result for results in right.values() for result in results]
    return {**scores, "total": sum(everything) / len(everything)}, float(torch.cat(sure).mean())
