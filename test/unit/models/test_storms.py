"""Every family under a storm: a small model of its own, on the CPU, under the real scheduler with overlap.

A family is here by its row in `fixtures/tiny_checkpoints.py`.
"""

from dataclasses import replace
from pathlib import Path

import pytest
from transformers import PreTrainedModel
from transformers.models.auto import modeling_auto

from fixtures.foreign_checkpoints import FOREIGN
from fixtures.model_storm import CHUNK, ModelStorm, told_logprobs
from fixtures.tiny_checkpoints import CLASSES, FAMILIES, VOCAB_SIZE, make_checkpoint, save_random
from mysglang.srt.configs.architectures import DECODERS
from mysglang.srt.messages.outputs import RowLogprobs

# Which family has which is without meaning: several of each kind have each.
PAGE_SIZES, ORDERS = (1, 16), ("prefill_first", "mixed", "bounded")


@pytest.mark.promise(14)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_storm(family: str, tmp_path: Path) -> None:
    survive(list(FAMILIES).index(family), make_checkpoint(family, tmp_path), tmp_path)


@pytest.mark.parametrize("name", ["vaultgemma", "dots1"])
def test_a_storm_over_layers_of_transformers(name: str, tmp_path: Path) -> None:
    """Windows, soft caps and experts."""
    survive(list(FOREIGN).index(name), save_random(FOREIGN[name](), tmp_path), tmp_path)


def survive(number: int, theirs: PreTrainedModel, tmp_path: Path) -> None:
    storm = ModelStorm(tmp_path, page_size=PAGE_SIZES[number % 2], order=ORDERS[number % 3], seed=number)
    scheduler = storm.rage()
    storm.judge(scheduler.answers, theirs)
    answers = scheduler.answers.values()
    assert scheduler.retractions > 2 and storm.aborted
    # Where layers keep states, a hit is one of a checkpoint too.
    assert sum(answer.cached_tokens > 0 for answer in answers) > len(answers) / 4
    assert sum(len(asked.prompt) > CHUNK for asked in storm.asked.values()) > len(answers) / 3


def test_the_judge_sees_another_token_and_another_probability(tmp_path: Path) -> None:
    theirs = make_checkpoint("llama", tmp_path)
    storm = ModelStorm(tmp_path)
    answers = storm.rage().answers
    storm.judge(answers, theirs)
    rid, answer = next((rid, answer) for rid, answer in answers.items() if storm.asked[rid].logprobs and answer.ids)
    other = (answer.ids[0] + 1) % VOCAB_SIZE
    with pytest.raises(AssertionError, match="misses the likeliest"):
        storm.judge({**answers, rid: replace(answer, ids=[other, *answer.ids[1:]])}, theirs)
    wrong = [RowLogprobs(output_vals=(told_logprobs(answer) - 0.01).numpy().tobytes())]
    with pytest.raises(AssertionError, match="close"):
        storm.judge({**answers, rid: replace(answer, logprobs=wrong)}, theirs)


def test_every_family_that_transformers_has_is_here() -> None:
    theirs = set(modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values())
    assert {f"{name}ForCausalLM" for name in DECODERS} & theirs <= set(CLASSES.values())
