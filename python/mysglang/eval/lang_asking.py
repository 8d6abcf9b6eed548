"""Questions asked by a program in the frontend language, as SGLang's `few_shot_gsm8k` asks them.

The solved questions that all prompts begin with are cached before the first question is asked; by the other ways of
asking, as many prompts as run at once compute them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mysglang.bench.refused import Failed
from mysglang.lang import ProgramState, RuntimeEndpoint, function, gen


@function
def continue_text(s: ProgramState, shared: str, rest: str) -> None:
    s += shared
    s += rest + gen("answer")


def common_prefix(texts: Sequence[str]) -> str:
    """Returns the common prefix of all texts, which is that of the alphabetically first and last text."""
    first, last = min(texts), max(texts)
    same = next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), min(len(first), len(last)))
    return first[:same]


def ask_all(
    url: str,
    key: str | None,
    prompts: Sequence[str],
    *,
    threads: int,
    temperature: float,
    top_p: float,
    max_tokens: int,
    stop: Sequence[str],
) -> Iterator[tuple[str, int, str]]:
    """Yields (text, number of tokens, error) for each prompt in order. Raises Failed if no mysglang server answers at
    `url`.
    """
    shared = common_prefix(prompts) if len(prompts) > 1 else ""
    try:
        endpoint = RuntimeEndpoint(url, api_key=key)
    except (ConnectionError, RuntimeError) as error:
        raise Failed(f"{error}; --api lang needs a server of mysglang or SGLang.") from error
    states = continue_text.bind(shared=shared).run_batch(
        [{"rest": prompt[len(shared) :]} for prompt in prompts],
        backend=endpoint,
        num_threads=threads,
        generator_style=True,
        temperature=temperature,
        top_p=top_p,
        max_new_tokens=max_tokens,
        stop=list(stop),
    )
    for state in states:
        if (failure := state.error()) is not None:
            yield "", 0, str(failure)
        else:
            yield state["answer"], state.get_meta_info("answer")["completion_tokens"], ""
    endpoint.close()
