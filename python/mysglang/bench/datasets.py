"""Workloads by SGLang's names. The same options, seed and tokenizer give the same prompts; lengths are in tokens.

random-ids               random tokens; lengths even in [ratio * L, L], ends included
random                   the same lengths, filled with conversations out of a ShareGPT file
generated-shared-prefix  groups that begin with the same random system prompt
sharegpt, custom         prompts and answer lengths out of a file of conversations
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import cycle
from typing import TypeVar

import numpy as np

from mysglang.bench.conversations import Exchange, read_custom, read_sharegpt
from mysglang.bench.flags import natural, positive, share
from mysglang.bench.prompts import Prompt, Writer
from mysglang.bench.refused import Refused
from mysglang.bench.vocabulary import Longs, Vocabulary

T = TypeVar("T")

SHORTEST = 2
"""Tokens that a prompt and an answer of a conversation must have to be used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetOptions:
    """Values of the flags with the same names."""

    dataset_name: str
    dataset_path: str
    num_prompts: int
    seed: int
    random_input_len: int
    random_output_len: int
    random_range_ratio: float
    gsp_num_groups: int
    gsp_prompts_per_group: int
    gsp_system_prompt_len: int
    gsp_question_len: int
    gsp_output_len: int
    gsp_ordered: bool
    sharegpt_output_len: int | None
    sharegpt_context_len: int | None

    @classmethod
    def of(cls, found: argparse.Namespace) -> DatasetOptions:
        return cls(**{field.name: getattr(found, field.name) for field in fields(cls)})


def add_dataset_flags(parser: argparse.ArgumentParser, *, seed: int) -> None:
    """Adds the flags that DatasetOptions reads. `seed` is the tool's default seed."""
    part = parser.add_argument_group("dataset")
    part.add_argument("--dataset-name", choices=list(_DATASETS), default="sharegpt", help="Source of the prompts.")
    part.add_argument(
        "--dataset-path", default="", metavar="FILE", help="File with the data, for sharegpt, custom and random."
    )
    part.add_argument(
        "--num-prompts", type=positive, default=1000, help="Number of requests (not for generated-shared-prefix)."
    )
    part.add_argument("--seed", type=natural, default=seed, help="Seed of all random choices.")
    part.add_argument(
        "--random-input-len", type=positive, default=1024, help="Length of the longest prompt, in tokens."
    )
    part.add_argument(
        "--random-output-len", type=positive, default=1024, help="Length of the longest answer, in tokens."
    )
    part.add_argument(
        "--random-range-ratio", type=share, default=0.0, help="Shortest length as a share of the longest."
    )
    part.add_argument(
        "--sharegpt-output-len", type=positive, help="Answer length in tokens, instead of the length in the file."
    )
    part.add_argument(
        "--sharegpt-context-len",
        type=positive,
        help="Leave out requests whose prompt and answer together exceed so many tokens.",
    )
    part.add_argument("--gsp-num-groups", type=positive, default=64, help="Number of different system prompts.")
    part.add_argument(
        "--gsp-prompts-per-group", type=positive, default=16, help="Number of requests with each system prompt."
    )
    part.add_argument("--gsp-system-prompt-len", type=natural, default=2048, help="Tokens of each system prompt.")
    part.add_argument(
        "--gsp-question-len", type=natural, default=128, help="Tokens of each request after the system prompt."
    )
    part.add_argument("--gsp-output-len", type=positive, default=256, help="Answer length in tokens.")
    part.add_argument(
        "--gsp-ordered",
        action="store_true",
        help="Send the requests of one group after those of another, not shuffled.",
    )


def make_dataset(options: DatasetOptions, vocabulary: Vocabulary, writer: Writer) -> list[Prompt]:
    """Returns the prompts in the order in which they are to be sent. Raises Refused."""
    rng = np.random.default_rng(options.seed)
    prompts = _DATASETS[options.dataset_name](options, vocabulary, writer, rng)
    if not prompts:
        raise Refused(f"no prompt of {options.dataset_path} can be used.")
    return prompts


def _random_ids(
    options: DatasetOptions, vocabulary: Vocabulary, writer: Writer, rng: np.random.Generator
) -> list[Prompt]:
    lens = _random_lens(options, rng)
    return [writer.prompt(writer.draw(rng, input_len), output_len) for input_len, output_len in lens]


def _random(options: DatasetOptions, vocabulary: Vocabulary, writer: Writer, rng: np.random.Generator) -> list[Prompt]:
    texts = (exchange.prompt for exchange in _shuffled(read_sharegpt(_path(options, "random-ids")), rng))
    usable = [ids for text in texts if (ids := vocabulary.encode(text))]
    if not usable:
        return []
    lens = _random_lens(options, rng)
    return [
        writer.prompt(writer.of_ids([*_first(ids, input_len)]), output_len)
        for ids, (input_len, output_len) in zip(cycle(usable), lens, strict=False)
    ]


def _generated_shared_prefix(
    options: DatasetOptions, vocabulary: Vocabulary, writer: Writer, rng: np.random.Generator
) -> list[Prompt]:
    prompts = []
    for _ in range(options.gsp_num_groups):
        system = writer.draw(rng, options.gsp_system_prompt_len)
        for _ in range(options.gsp_prompts_per_group):
            question = writer.draw(rng, options.gsp_question_len)
            prompts.append(writer.prompt(writer.join(system, question), options.gsp_output_len))
    return prompts if options.gsp_ordered else _shuffled(prompts, rng)


def _sharegpt(
    options: DatasetOptions, vocabulary: Vocabulary, writer: Writer, rng: np.random.Generator
) -> list[Prompt]:
    return _usable(options, vocabulary, writer, _shuffled(read_sharegpt(_path(options, "random-ids")), rng))


def _custom(options: DatasetOptions, vocabulary: Vocabulary, writer: Writer, rng: np.random.Generator) -> list[Prompt]:
    """Returns the prompts of the user's file, in its order."""
    return _usable(options, vocabulary, writer, read_custom(_path(options)))


def _usable(
    options: DatasetOptions, vocabulary: Vocabulary, writer: Writer, exchanges: Sequence[Exchange]
) -> list[Prompt]:
    """Returns the first `num_prompts` that are neither too short nor too long."""
    prompts: list[Prompt] = []
    for exchange in exchanges:
        prompt = writer.prompt(writer.of_text(exchange.prompt), _output_len(options, vocabulary, exchange))
        total = prompt.prompt_len + prompt.output_len
        fits = options.sharegpt_context_len is None or total <= options.sharegpt_context_len
        if fits and min(prompt.prompt_len, prompt.output_len) >= SHORTEST:
            prompts.append(prompt)
        if len(prompts) == options.num_prompts:
            break
    return prompts


def _output_len(options: DatasetOptions, vocabulary: Vocabulary, exchange: Exchange) -> int:
    if options.sharegpt_output_len is not None:
        return options.sharegpt_output_len
    if exchange.output_len is not None:
        return exchange.output_len
    return len(vocabulary.encode(exchange.answer))


def _random_lens(options: DatasetOptions, rng: np.random.Generator) -> list[tuple[int, int]]:
    """Draws the pair (input tokens, output tokens) of each request."""

    def lens(longest: int) -> Longs:
        shortest = max(1, int(longest * options.random_range_ratio))
        return rng.integers(shortest, longest, options.num_prompts, endpoint=True)

    inputs, outputs = lens(options.random_input_len), lens(options.random_output_len)
    return list(zip(inputs.tolist(), outputs.tolist(), strict=True))


def _shuffled(items: Sequence[T], rng: np.random.Generator) -> list[T]:
    return [items[at] for at in rng.permutation(len(items)).tolist()]


def _first(ids: list[int], count: int) -> Iterator[int]:
    """Yields `count` ids: the beginning of `ids`, or `ids` repeated until there are enough."""
    return (item for item, _ in zip(cycle(ids), range(count), strict=False))


def _path(options: DatasetOptions, instead: str = "") -> str:
    if not options.dataset_path:
        hint = f", or take --dataset-name {instead}, which needs none" if instead else ""
        raise Refused(f"--dataset-name {options.dataset_name} reads a file: name it with --dataset-path{hint}.")
    return options.dataset_path


_Make = Callable[[DatasetOptions, Vocabulary, Writer, np.random.Generator], list[Prompt]]
_DATASETS: dict[str, _Make] = {
    "sharegpt": _sharegpt,
    "custom": _custom,
    "random": _random,
    "random-ids": _random_ids,
    "generated-shared-prefix": _generated_shared_prefix,
}
