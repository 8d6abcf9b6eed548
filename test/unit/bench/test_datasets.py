"""Workloads: the same for the same seed, lengths as the contract says, and files read as they are written."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mysglang.bench.datasets import DatasetOptions, make_dataset
from mysglang.bench.prompts import IdWriter, Prompt, TextWriter
from mysglang.bench.refused import Refused
from mysglang.bench.vocabulary import Vocabulary

TINY = Path(__file__).parents[3] / "python" / "mysglang" / "assets" / "tiny"
DEFAULTS: dict[str, Any] = {
    "dataset_path": "",
    "num_prompts": 40,
    "seed": 1,
    "random_input_len": 64,
    "random_output_len": 16,
    "random_range_ratio": 0.0,
    "gsp_num_groups": 3,
    "gsp_prompts_per_group": 4,
    "gsp_system_prompt_len": 24,
    "gsp_question_len": 6,
    "gsp_output_len": 5,
    "gsp_ordered": False,
    "sharegpt_output_len": None,
    "sharegpt_context_len": None,
}
IDS = Vocabulary.of_size(1000)
TALKS = [
    {"conversations": [{"from": "human", "value": "What is the capital of France?"}, {"value": "Paris is it."}]},
    {"conversations": [{"from": "human", "value": "alone"}]},
    {"conversations": [{"content": "Name three long rivers of the world " * 20}, {"content": "Nile, Amazon, Yangtze"}]},
]


@pytest.fixture(scope="module")
def tiny() -> Vocabulary:
    return Vocabulary.load(str(TINY))


def ids_of(name: str, **changed: Any) -> list[Prompt]:
    return make_dataset(DatasetOptions(**DEFAULTS | {"dataset_name": name} | changed), IDS, IdWriter(IDS))


def texts_of(vocabulary: Vocabulary, name: str, **changed: Any) -> list[Prompt]:
    options = DatasetOptions(**DEFAULTS | {"dataset_name": name} | changed)
    return make_dataset(options, vocabulary, TextWriter(vocabulary))


class TestRandomIds:
    def test_a_seed_decides_everything(self) -> None:
        assert ids_of("random-ids") == ids_of("random-ids")
        assert ids_of("random-ids") != ids_of("random-ids", seed=2)

    @pytest.mark.parametrize(("ratio", "shortest"), [(0.0, 1), (0.5, 50), (1.0, 100)])
    def test_lengths_are_even_in_the_range(self, ratio: float, shortest: int) -> None:
        prompts = ids_of(
            "random-ids", num_prompts=4000, random_input_len=100, random_output_len=100, random_range_ratio=ratio
        )
        for lens in ([p.prompt_len for p in prompts], [p.output_len for p in prompts]):
            assert (min(lens), max(lens)) == (shortest, 100)
            values = 101 - shortest
            # The share of each length has a deviation of sqrt(1 / values / 4000); six of them are never met by chance.
            counts = np.bincount(lens, minlength=101)[shortest:]
            assert np.abs(counts / 4000 - 1 / values).max() <= 6 * (1 / values / 4000) ** 0.5
        assert all(len(p.content) == p.prompt_len for p in prompts)

    def test_tokens_are_drawn_from_all(self) -> None:
        prompts = ids_of("random-ids", num_prompts=50, random_input_len=2000, random_range_ratio=1.0)
        drawn = [token for prompt in prompts for token in prompt.content]
        counts = np.bincount(drawn, minlength=1000)
        assert len(counts) == 1000
        assert counts.min() > 40 and counts.max() < 170  # 100 of each, give or take seven deviations

    def test_texts_have_the_length_too(self, tiny: Vocabulary) -> None:
        prompts = texts_of(tiny, "random-ids", num_prompts=60, random_range_ratio=1.0)
        assert all(prompt.prompt_len == len(tiny.encode(str(prompt.content))) for prompt in prompts)
        assert sum(prompt.prompt_len == 64 for prompt in prompts) >= 57
        assert all(abs(prompt.prompt_len - 64) <= 4 for prompt in prompts)

    def test_no_special_token_is_drawn(self, tiny: Vocabulary) -> None:
        assert min(tiny.draw(np.random.default_rng(0), 20_000)) > 10  # the tiny model's special tokens are 0 to 10


class TestSharedPrefix:
    def test_groups_share_their_beginning_and_no_more(self) -> None:
        prompts = ids_of("generated-shared-prefix", gsp_ordered=True)
        assert {(p.prompt_len, p.output_len) for p in prompts} == {(30, 5)}
        groups = [prompts[at : at + 4] for at in range(0, 12, 4)]
        systems = [{tuple(p.content[:24]) for p in group} for group in groups]
        assert [len(system) for system in systems] == [1, 1, 1]
        assert len(set.union(*systems)) == 3
        assert len({tuple(p.content[24:]) for p in prompts}) == 12

    def test_they_come_mixed(self) -> None:
        mixed, ordered = ids_of("generated-shared-prefix"), ids_of("generated-shared-prefix", gsp_ordered=True)
        assert mixed != ordered
        assert sorted(p.content for p in mixed) == sorted(p.content for p in ordered)

    def test_texts(self, tiny: Vocabulary) -> None:
        prompts = texts_of(tiny, "generated-shared-prefix", gsp_ordered=True)
        systems = [str(prompt.content).split("\n\n")[0] for prompt in prompts[:4]]
        assert len(set(systems)) == 1


class TestFiles:
    def write(self, folder: Path, text: str) -> str:
        (folder / "data").write_text(text)
        return str(folder / "data")

    def test_sharegpt(self, tiny: Vocabulary, tmp_path: Path) -> None:
        path = self.write(tmp_path, json.dumps(TALKS))
        prompts = texts_of(tiny, "sharegpt", dataset_path=path)
        by_text = {str(prompt.content): prompt for prompt in prompts}
        assert len(prompts) == 2
        assert by_text["What is the capital of France?"].output_len == len(tiny.encode("Paris is it."))

    def test_sharegpt_lengths(self, tiny: Vocabulary, tmp_path: Path) -> None:
        path = self.write(tmp_path, json.dumps(TALKS))
        (only,) = texts_of(tiny, "sharegpt", dataset_path=path, sharegpt_output_len=7, sharegpt_context_len=50)
        assert (only.content, only.output_len) == ("What is the capital of France?", 7)
        with pytest.raises(Refused, match="no prompt"):
            texts_of(tiny, "sharegpt", dataset_path=path, sharegpt_context_len=5)

    def test_random_is_filled_from_the_file(self, tiny: Vocabulary, tmp_path: Path) -> None:
        path = self.write(tmp_path, json.dumps(TALKS))
        options = {"dataset_path": path, "random_range_ratio": 1.0, "num_prompts": 4}
        made = make_dataset(DatasetOptions(**DEFAULTS | {"dataset_name": "random"} | options), tiny, IdWriter(tiny))
        assert [prompt.prompt_len for prompt in made] == [64] * 4
        short = tiny.encode("What is the capital of France?")
        assert (short * 64)[:64] in [prompt.content for prompt in made]

    def test_custom(self, tiny: Vocabulary, tmp_path: Path) -> None:
        lines = [{"prompt": "Say something nice", "output_len": 9}, TALKS[0], {"prompt": "How many?", "output_len": 3}]
        path = self.write(tmp_path, "\n".join(map(json.dumps, lines)) + "\n\n")
        prompts = texts_of(tiny, "custom", dataset_path=path)
        assert [prompt.content for prompt in prompts] == [
            "Say something nice",
            TALKS[0]["conversations"][0]["value"],
            "How many?",
        ]
        assert [prompts[0].output_len, prompts[2].output_len] == [9, 3]
        assert len(texts_of(tiny, "custom", dataset_path=path, num_prompts=2)) == 2

    @pytest.mark.parametrize(
        ("name", "text", "said"),
        [
            ("sharegpt", "{", "not JSON"),
            ("sharegpt", "{}", "not a list"),
            ("custom", '{"prompt": "a b c", "output_len": 3}\n{"text": "b"}', "line 2 has neither"),
        ],
    )
    def test_a_wrong_file_is_refused(self, tiny: Vocabulary, tmp_path: Path, name: str, text: str, said: str) -> None:
        with pytest.raises(Refused, match=said):
            texts_of(tiny, name, dataset_path=self.write(tmp_path, text))

    def test_no_file(self, tiny: Vocabulary) -> None:
        with pytest.raises(Refused, match="--dataset-path, or take --dataset-name random-ids"):
            texts_of(tiny, "random")
        with pytest.raises(Refused, match="cannot be read"):
            texts_of(tiny, "sharegpt", dataset_path="/nowhere/at/all")

    def test_texts_need_a_tokenizer(self, tmp_path: Path) -> None:
        with pytest.raises(Refused, match="--tokenizer"):
            texts_of(IDS, "random-ids")
        with pytest.raises(Refused, match="no tokenizer could be read"):
            Vocabulary.load(str(tmp_path))
