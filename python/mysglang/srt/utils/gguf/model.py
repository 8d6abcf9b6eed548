"""GgufModel: a model in a GGUF file, or in the parts of one, under the names and in the forms of Hugging Face."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mysglang.srt.utils.gguf.config_json import Facts, config_json, family_of
from mysglang.srt.utils.gguf.files import gguf_parts
from mysglang.srt.utils.gguf.header import GgufHeader, read_header
from mysglang.srt.utils.gguf.tensor_names import NamedPart, named_parts
from mysglang.srt.utils.gguf.tokenizer_json import tokenizer_config, tokenizer_json
from mysglang.srt.utils.plain_files import TEMPLATE_LIMIT
from mysglang.srt.utils.weight_headers import MAX_TENSORS, HeaderRoom, StoredTensor, damaged


class GgufModel:
    """One model in GGUF files, whose headers are read."""

    def __init__(self, path: Path, room: HeaderRoom | None = None) -> None:
        """`path`: the file, or the first of its parts. Raises ConfigError for a file that cannot be served."""
        room = room or HeaderRoom()
        self.headers: list[GgufHeader] = [read_header(part, room) for part in gguf_parts(path)]
        tensors = [tensor for header in self.headers for tensor in header.tensors]
        by_name = {tensor.name: tensor for tensor in tensors}
        if len(by_name) < len(tensors):
            twice = next(name for name in by_name if sum(tensor.name == name for tensor in tensors) > 1)
            raise damaged(path, f"tensor {twice[:80]} occurs twice")
        self._facts = Facts(self.headers[0], by_name)
        count = self._facts.metadata.get("split.count", 1)
        if type(count) is int and count > 1 and count != len(self.headers):
            raise self._facts.refused(
                f"it is one of {count} parts (split.count), and its name says {len(self.headers)}; parts are found by "
                f"names that end in -00001-of-{count:05}.gguf"
            )

    def parts(self, header: GgufHeader) -> list[NamedPart]:
        """Returns the tensors in one of the files, by the names of Hugging Face's checkpoints."""
        facts = self._facts
        naming = family_of(facts).naming(facts)
        heads, kv_heads = facts.heads()
        found: list[NamedPart] = []
        for tensor in header.tensors:
            found += named_parts(naming, tensor, heads=heads, kv_heads=kv_heads)
            if len(found) > MAX_TENSORS:
                raise damaged(header.path, f"it holds more than {MAX_TENSORS} tensors")
        return found

    def stored_tensors(self) -> list[StoredTensor]:
        return [
            StoredTensor(part.name, part.shape, header.path.name)
            for header in self.headers
            for part in self.parts(header)
        ]

    def config(self) -> dict[str, Any]:
        """Returns the content of an equivalent config.json."""
        return config_json(self._facts)

    def tokenizer_json(self) -> bytes:
        """Returns the content of an equivalent tokenizer.json."""
        return tokenizer_json(self._facts)

    def tokenizer_config(self) -> dict[str, Any]:
        """Returns the content of an equivalent tokenizer_config.json."""
        config = tokenizer_config(self._facts)
        templates = config.get("chat_template")
        for text in [each["template"] for each in templates] if isinstance(templates, list) else [templates or ""]:
            if len(text.encode()) > TEMPLATE_LIMIT:
                raise self._facts.refused(f"a chat template has more than {TEMPLATE_LIMIT} bytes")
        return config
