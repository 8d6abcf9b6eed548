"""Writes the model's folder in Hugging Face format beside the tokenizer's files."""

import json
from pathlib import Path

from model import Llama
from safetensors.torch import save_file


def write(model: Llama, folder: Path) -> None:
    """config.json, generation_config.json and model.safetensors (bf16, the head tied to the embedding)."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file(model.hugging_face_weights(), folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)
    _json(folder / "config.json", model.shape.config())
    _json(folder / "generation_config.json", {"eos_token_id": [2, 0], "pad_token_id": 0, "do_sample": False})


def _json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
