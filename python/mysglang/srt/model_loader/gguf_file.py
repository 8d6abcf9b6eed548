"""GgufFile: the tensors of one file in GGUF, under Hugging Face's names, with what llama.cpp changed in them undone."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from mysglang.srt.errors import ConfigError
from mysglang.srt.model_loader.gguf_blocks import EXPANDED_BY, expanded
from mysglang.srt.model_loader.mapped_file import map_file, typed
from mysglang.srt.utils.gguf.model import GgufModel
from mysglang.srt.utils.gguf.tensor_names import NamedPart

PLAIN = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


class GgufFile:
    """Implements `WeightFile`. Plain numbers are views of the mapped file, others are expanded to float32."""

    def __init__(self, path: Path, parts: list[NamedPart]) -> None:
        self.path = path
        self._parts = {part.name: part for part in parts}
        self.names = list(self._parts)
        self._mapped = map_file(path)

    def read(self, name: str) -> Tensor:
        part = self._parts[name]
        stored = part.stored
        # Rows of bytes: a row of values is a whole number of blocks, so rows may be taken before they are expanded.
        raw = self._mapped[stored.begin : stored.end].view(_rows(stored.shape), -1)
        if part.expert is not None:
            size = part.shape[0]
            raw = raw[part.expert * size : (part.expert + 1) * size]
        if part.heads is not None:
            rows = part.shape[0]
            if not part.heads or rows % (2 * part.heads):
                raise ConfigError(
                    f"tensor {name} of {self.path.name} has {rows} rows, which are not those of {part.heads} heads"
                )
            raw = _halves_together(raw.view(rows, -1), part.heads)
        if stored.type.name in PLAIN:
            values = typed(raw.reshape(-1), PLAIN[stored.type.name])
        else:
            block = stored.type
            values = expanded(raw.reshape(-1, block.num_bytes), EXPANDED_BY[block.name], block.values, torch.float32)
        if part.one_more:
            values = values.float() - 1
        return values.view(part.shape)

    def header(self, name: str) -> Tensor:
        part = self._parts[name]
        dtype = torch.float32 if part.one_more else PLAIN.get(part.stored.type.name, torch.float32)
        return torch.empty(part.shape, dtype=dtype, device="meta")

    def stored_bytes(self, name: str) -> int:
        part = self._parts[name]
        whole = part.stored.end - part.stored.begin
        return whole if part.expert is None else whole // part.stored.shape[0]


def gguf_files(paths: tuple[Path, ...]) -> list[GgufFile]:
    """Returns the files of one model, the first of which has its metadata. Raises ConfigError for what cannot be
    served.
    """
    model = GgufModel(paths[0])
    return [GgufFile(header.path, model.parts(header)) for header in model.headers]


def _rows(shape: tuple[int, ...]) -> int:
    rows = 1
    for size in shape[:-1]:
        rows *= size
    return rows


def _halves_together(rows: Tensor, heads: int) -> Tensor:
    """Moves the even rows of each head before the odd ones. rows: [rows, bytes].

    llama.cpp rotates neighbouring rows of a head together, and stores them so: row i of the first half, row i of the
    second. Transformers rotates the first half of a head with the second.
    """
    return rows.view(heads, -1, 2, rows.shape[1]).transpose(1, 2).reshape(rows.shape)
