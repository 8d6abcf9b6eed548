"""Answers from an engine in this process tree: many prompts at once, so that they share batches and prefixes."""

from collections.abc import Iterator, Sequence

from tqdm import tqdm

from mysglang.eval.exam import LONGEST_ANSWER, Item, chat_template, prompt_text
from mysglang.srt.entrypoints.engine import Engine
from mysglang.srt.server_args import ServerArgs

PROMPTS_AT_ONCE = 64


def answers(items: Sequence[Item], flags: Sequence[str]) -> Iterator[str]:
    """Starts an engine with the server options `flags`, and yields its greedy answer to each item, in order. Raises
    ConfigError for invalid options.
    """
    template = chat_template()
    prompts = [prompt_text(template, item) for item in items]
    sampling = {"temperature": 0.0, "max_new_tokens": LONGEST_ANSWER}
    args = ServerArgs.from_cli(["--log-level", "error", *flags])
    with Engine(server_args=args) as engine, tqdm(total=len(items), unit="item", disable=None) as bar:
        for at in range(0, len(prompts), PROMPTS_AT_ONCE):
            outputs = engine.generate(prompt=prompts[at : at + PROMPTS_AT_ONCE], sampling_params=sampling)
            yield from (str(output["text"]) for output in outputs)
            bar.update(len(outputs))
