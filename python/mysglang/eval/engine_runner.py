"""Answers from an engine in this process tree: all prompts at once, so that they share batches and prefixes."""

from collections.abc import Iterator, Sequence

from tokenizers import Tokenizer
from tqdm import tqdm

from mysglang.eval.chat_prompt import TINY, chat_template, prompt_text
from mysglang.eval.tiny_world.items import Item
from mysglang.srt.entrypoints.engine import Engine
from mysglang.srt.server_args import ServerArgs

MAX_NEW_TOKENS = 448
CHUNK = 64


def answers(items: Sequence[Item], flags: Sequence[str]) -> Iterator[str]:
    """The greedy answer to each item, in order. `flags` are the server's. Raises ConfigError for bad ones."""
    tokenizer = Tokenizer.from_file(str(TINY / "tokenizer.json"))
    template = chat_template()
    prompts = [tokenizer.encode(prompt_text(template, item)).ids for item in items]
    sampling = {"temperature": 0.0, "max_new_tokens": MAX_NEW_TOKENS}
    args = ServerArgs.from_cli(["--log-level", "error", *flags])
    with Engine(server_args=args) as engine, tqdm(total=len(items), unit="item") as bar:
        for at in range(0, len(prompts), CHUNK):
            outputs = engine.generate(input_ids=prompts[at : at + CHUNK], sampling_params=sampling)
            assert isinstance(outputs, list)
            yield from (str(output["text"]) for output in outputs)
            bar.update(len(outputs))
