"""Vectors on the front side: cut where the model allows it, refused by name where not; ranking over a fake manager."""

import dataclasses
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest

from mysglang.srt.configs.pooling_config import PoolingConfig
from mysglang.srt.errors import Aborted, InvalidRequest
from mysglang.srt.managers.pooled import check_dimensions, cut, embeddings, pooled
from mysglang.srt.managers.ranking import rerank, sigmoid, softmax
from mysglang.srt.managers.request_state import Floats, GenerationChunk
from mysglang.srt.messages.embedding import EmbeddingReqInput, parse_embedding
from mysglang.srt.messages.generate import GenerateReqInput
from mysglang.srt.messages.outputs import Abort, Length

EMBED = PoolingConfig(task="embed", mode="mean", width=4, normalize=True)
CROSS = PoolingConfig(
    task="classify", mode="cls", width=1, normalize=False, labels=("LABEL_0",), activation="sigmoid", pairs=True
)


@dataclass
class FakeManager:
    """Answers the prompts with these vectors, the last one first; a None is an abort."""

    vectors: Sequence[Sequence[float] | None]
    asked: list[GenerateReqInput] = field(default_factory=list)

    @property
    def input_tokenizer(self) -> "FakeManager":
        return self

    async def encode_pairs(self, pairs: Sequence[tuple[str, str]]) -> list[tuple[list[int], int | None]]:
        return [([len(first), len(second)], 1) for first, second in pairs]

    async def generate_request(self, obj: GenerateReqInput) -> AsyncGenerator[GenerationChunk, None]:
        self.asked.append(obj)
        for index, vector in reversed(list(enumerate(self.vectors))):
            yield GenerationChunk(
                index=index,
                rid=f"r{index}",
                text="",
                token_bytes=b"",
                finish_reason=Length(0) if vector is not None else Abort("gone"),
                prompt_tokens=3 + index,
                completion_tokens=0,
                cached_tokens=0,
                retractions=0,
                vector=None if vector is None else np.array(vector, dtype=np.float32),
            )


def texts(count: int) -> EmbeddingReqInput:
    return EmbeddingReqInput(text=["a"] * count)


async def test_answers_come_in_the_order_of_the_prompts() -> None:
    manager = FakeManager([[1, 0, 0, 0], [0, 1, 0, 0]])
    found = await embeddings(manager.generate_request, texts(2), EMBED)
    assert [one["embedding"] for one in found] == [[1, 0, 0, 0], [0, 1, 0, 0]]
    assert [one["meta_info"]["prompt_tokens"] for one in found] == [3, 4]
    (asked,) = manager.asked
    assert asked.pool and not isinstance(asked.sampling_params, list) and asked.sampling_params.max_new_tokens == 0


async def test_an_abort_is_no_vector() -> None:
    with pytest.raises(Aborted):
        await pooled(FakeManager([None]).generate_request, texts(1).request(), EMBED)


def test_cut_vectors_have_length_one_again() -> None:
    vector: Floats = np.array([3, 4, 12, 84], dtype=np.float32) / 85
    np.testing.assert_allclose(cut(vector, 2, True), [0.6, 0.8], rtol=1e-6)
    np.testing.assert_allclose(cut(vector, 2, False), vector[:2])
    assert not cut(np.zeros(4, dtype=np.float32), 2, True).any()


@pytest.mark.parametrize(
    ("allowed", "good", "bad"),
    [((), (1, 3, 4), (0, -1, 5)), ((2, 3), (2, 3), (1, 4)), (None, (None,), (2, 4))],
)
def test_dimensions(allowed: tuple[int, ...] | None, good: Sequence[int | None], bad: Sequence[int]) -> None:
    config = dataclasses.replace(EMBED, dimensions=allowed)
    for dimensions in good:
        check_dimensions(config, dimensions)
    for wrong in bad:
        with pytest.raises(InvalidRequest) as caught:
            check_dimensions(config, wrong)
        assert caught.value.param == "dimensions"


async def test_ranks_by_pairs() -> None:
    manager = FakeManager([[-1.0], [2.0], [2.0], [0.0]])
    ranked = await rerank(manager, CROSS, "q", ["a", "bb", "ccc", ""])
    assert [one.index for one in ranked] == [1, 2, 3, 0], "equals keep their order"
    assert ranked[0].score == pytest.approx(1 / (1 + np.exp(-2)))
    (asked,) = manager.asked
    assert asked.input_ids == [[1, 1], [1, 2], [1, 3], [1, 0]] and asked.second_texts == [1, 1, 1, 1]
    plain = await rerank(FakeManager([[-1.0]]), dataclasses.replace(CROSS, activation="identity"), "q", ["a"])
    assert plain[0].score == -1


async def test_ranks_by_angles() -> None:
    """The vectors have different lengths."""
    manager = FakeManager([[2, 0, 0, 0], [0, 3, 0, 0], [5, 5, 0, 0], [0, 0, 0, 0]])
    ranked = await rerank(manager, dataclasses.replace(EMBED, normalize=False), "q", ["a", "b", "c"])
    assert [one.index for one in ranked] == [1, 0, 2]
    assert [one.score for one in ranked] == pytest.approx([0.5**0.5, 0, 0])
    assert sum(one.prompt_tokens for one in ranked) == 3 + 4 + 5 + 6


async def test_no_cosine_is_beyond_one() -> None:
    vector = [0.1, 0.7, 0.3, 0.9]
    for sign in (1, -1):
        others = [[sign * scale * number for number in vector] for scale in np.linspace(0.1, 3, 500)]
        found = await rerank(FakeManager([vector, *others]), EMBED, "q", ["a"] * 500)
        assert all(-1 <= one.score <= 1 for one in found)
        assert [one.score for one in found] == pytest.approx([sign] * 500)


class RefusingManager(FakeManager):
    """Refuses requests with one of these texts."""

    def __init__(self, *refused: str) -> None:
        super().__init__([[1, 0, 0, 0], [0, 1, 0, 0]])
        self._refused = refused

    async def generate_request(self, obj: GenerateReqInput) -> AsyncGenerator[GenerationChunk, None]:
        if set(self._refused) & {*([obj.text] if isinstance(obj.text, str) else obj.text or [])}:
            raise InvalidRequest("text is not taken.", param="text")
        async for chunk in super().generate_request(obj):
            yield chunk


@pytest.mark.parametrize(("refused", "param"), [("q", "query"), ("a", "text")])
async def test_an_error_names_the_text_that_is_wrong(refused: str, param: str) -> None:
    with pytest.raises(InvalidRequest, match="is not taken") as caught:
        await rerank(RefusingManager(refused), EMBED, "q", ["a"])
    assert caught.value.param == param and caught.value.message.startswith(param)


@pytest.mark.parametrize("config", [None, dataclasses.replace(CROSS, width=2), dataclasses.replace(CROSS, pairs=False)])
async def test_others_rank_nothing(config: PoolingConfig | None) -> None:
    with pytest.raises(InvalidRequest, match="cannot rank"):
        await rerank(FakeManager([]), config, "q", ["a"])


def test_functions_do_not_overflow() -> None:
    with np.errstate(all="raise"):
        np.testing.assert_allclose(sigmoid(np.array([-800.0, 0.0, 800.0])), [0, 0.5, 1], atol=1e-12)
        np.testing.assert_allclose(softmax(np.array([[500.0, 500.0], [-500.0, -500.0]])), 0.5)


@pytest.mark.parametrize("name", ["image_data", "lora_path", "embed_overrides", "is_cross_encoder_request", "x"])
def test_fields_are_refused_by_name(name: str) -> None:
    with pytest.raises(InvalidRequest, match=f"`{name}`"):
        parse_embedding({"text": "a", name: "b"})
    parse_embedding({"text": "a", "image_data": None, "sampling_params": {}, "is_cross_encoder_request": False})
