"""The reference: the same weights through transformers, in small batches padded on the left."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from tqdm import tqdm
from transformers import AutoModelForCausalLM, AutoTokenizer

from mysglang.eval.exam import LONGEST_ANSWER, TINY, Item, chat_template, prompt_text


def answers(items: Sequence[Item], dtype: str, batch_size: int, folder: Path = TINY) -> Iterator[str]:
    """Yields the greedy answer to each item, in order."""
    tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype)).to(device).eval()
    template = chat_template(folder)
    prompts = [prompt_text(template, item) for item in items]
    # Rows of one batch should be of one length, prompt and answer alike, so that little of it is padding.
    order = sorted(range(len(items)), key=lambda i: (len(items[i].answer.content) // 64, len(prompts[i])))
    found = [""] * len(items)
    with tqdm(total=len(items), unit="item", disable=None) as bar, torch.inference_mode():
        for at in range(0, len(order), batch_size):
            chosen = order[at : at + batch_size]
            batch = tokenizer([prompts[i] for i in chosen], return_tensors="pt", padding=True).to(device)
            output = model.generate(**batch, max_new_tokens=LONGEST_ANSWER, do_sample=False)
            texts = tokenizer.batch_decode(output[:, batch["input_ids"].shape[1] :], skip_special_tokens=True)
            for i, text in zip(chosen, texts, strict=True):
                found[i] = text
            bar.update(len(chosen))
    yield from found
