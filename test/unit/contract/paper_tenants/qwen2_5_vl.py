"""Qwen2.5-VL: a tower turns images into embeddings, which are in the prompt after placeholder ids.

Positions have three rows: time, height and width. A text token has the same in all. An image of 2 x 3 merged patches at
position 5 has t = 5, h = 5 … 6, w = 5 … 7. The text goes on at 8, though 6 tokens follow 5.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from mysglang.srt.configs.layer_plan import RopePlan
from mysglang.srt.forward.worker_batch import EmbedColumns, Floats, ForwardMode, Ints, ModelWorkerBatch
from mysglang.srt.model_executor.kv_setup import ModelStores
from mysglang.srt.model_executor.model_memory import ModelMemory
from mysglang.srt.model_executor.programs import Runnable
from mysglang.srt.models.checkpoint_model import CheckpointModel

IMAGE_PAD = 151655

ROPE = RopePlan({"rope_type": "mrope", "rope_theta": 1e6, "mrope_section": [16, 24, 24]})
"""Sayable: the parameters are open. What they are applied to is not, see `step`."""


@dataclass(frozen=True, slots=True)
class Image:
    """A range of a prompt."""

    start: int
    height: int
    """Merged patches."""
    width: int
    digest: int
    """64 bits of its content. CANNOT be a key of the prefix cache: keys are the int32 ids of the prompt, which are the
    same for all images of a size. `extra_key` keeps apart whole requests, and with them the text before an image."""

    @property
    def tokens(self) -> int:
        return self.height * self.width


class Tower:
    """`programs.ServedModel` without stores: the first half of an encoder in the executor of the model it serves."""

    attention = "windows of 112 pixels"
    stores = ModelStores((), torch.bfloat16)

    def __init__(self, model: CheckpointModel) -> None:
        self.model = model

    def workspace(self, *, max_tokens: int, max_context: int) -> int:
        return max_tokens * 4 * 1280 * 2

    def ready(self, memory: ModelMemory) -> Runnable:
        """CANNOT: a program takes a ModelWorkerBatch of token ids; pixels, and the entries of an encoder cache that
        they become, have no step. The programs of two models cannot reach each other either.
        """
        raise NotImplementedError


def positions(length: int, images: list[Image]) -> tuple[npt.NDArray[np.int64], int]:
    """[3, length] time, height and width of each token; and what a decoding row's index lacks of its position."""
    rows = np.zeros((3, length), dtype=np.int64)
    at, place = 0, 0
    for image in images:
        text = image.start - at
        rows[:, at : image.start] = place + np.arange(text)
        place += text
        grid = np.indices((image.height, image.width)).reshape(2, -1)
        rows[0, image.start : image.start + image.tokens] = place
        rows[1:, image.start : image.start + image.tokens] = place + grid
        at, place = image.start + image.tokens, place + max(image.height, image.width)
    rows[:, at:] = place + np.arange(length - at)
    return rows, place + length - at - length


def step(ids: Ints, slot: int, page: int, image: Image, vectors: Floats) -> ModelWorkerBatch:
    """A whole prompt in one step on pages of 1024.

    CANNOT: three positions for each token, or, of a decoding row, index + offset: a position is the index in the row,
    in `ModelWorkerBatch` and in `ForwardBatch.positions` [T]. CANNOT: that the embeddings are on the device already:
    `vectors` [tokens, hidden] are float32 on the host, and every step with them is run eagerly.
    """
    count = len(ids)
    return ModelWorkerBatch(
        mode=ForwardMode.EXTEND,
        input_ids=np.where(ids == IMAGE_PAD, 0, ids).astype(np.int32),
        slots=np.array([slot]),
        seq_lens=np.array([count], dtype=np.int32),
        extend_lens=np.array([count], dtype=np.int32),
        out_cache_locs=(np.arange(count, dtype=np.int32) + page * 1024,),
        yields=np.array([True]),
        embeds=EmbedColumns(np.arange(image.start, image.start + image.tokens, dtype=np.int32), vectors),
    )


def deepstack(hidden: Tensor, batch: ModelWorkerBatch) -> Tensor:
    """Qwen3-VL adds image features in the first three layers, too. CANNOT: given vectors are for layer 0."""
    return hidden
