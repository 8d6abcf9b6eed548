"""Answers from an engine in this process tree: all prompts at once, so that they share batches and prefixes."""

from collections.abc import Iterator, Sequence

from tokenizers import Tokenizer
from tqdm import tqdm

from mysglang import Engine, ServerArgs
from mysglang.eval.chat_prompt import TINY, chat_template, prompt_text
from mysglang.eval.tiny_world.items import Item

MAX_NEW_TOKENS = 448
CHUNK = 64


def answers(items: Sequence[Item], flags: Sequence[str]) -> Iterator[str]:
    """The greedy answer to each item, in order. `flags` are the server's. Raises ConfigError for bad ones."""
    tokenizer = Tokenizer.from_file(str(TINY / "tokenizer.json"))
    template = chat_template()
    prompts = [tokenizer.encode(prompt_text(template, item)).ids for item in items]
    sampling = {"temperature": 0.0, "max_new_tokens": MAX_NEW_TOKENS}
    engine = Engine(**ServerArgs.from_cli(flags).flat())
    try:
        with tqdm(total=len(items), unit="item") as bar:
            for at in range(0, len(prompts), CHUNK):
                outputs = engine.generate(input_ids=prompts[at : at + CHUNK], sampling_params=sampling)
                yield from (output["text"] for output in outputs)
                bar.update(len(outputs))
    finally:
        engine.shutdown()
