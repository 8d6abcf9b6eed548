"""Modules that each process imports at start. A module costs time and memory, and most models need few of them."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCHEDULER = """
import torch
from mysglang.srt.args.resolve import EMBEDDED_MODEL
from mysglang.srt.configs.load_config import LoadConfig
from mysglang.srt.configs.model_config import ModelConfig
from mysglang.srt.managers import scheduler_process
from mysglang.srt.model_executor import executor
from mysglang.srt.model_loader.loader import load_model
load_model(ModelConfig.from_path(str(EMBEDDED_MODEL)), LoadConfig(), torch.device("cpu"), torch.float32)
"""
"""The imports of a scheduler, and a dense model."""

MAIN = "from mysglang.srt.entrypoints import http_server, launcher, server_life"


def loaded_by(program: str) -> set[str]:
    """Returns the modules of a new process after this program."""
    listing = f"{program}\nimport sys\nprint(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", listing], check=True, capture_output=True, text=True)
    return set(run.stdout.split())


@pytest.mark.parametrize(
    ("program", "needed", "unneeded"),
    [
        pytest.param(
            SCHEDULER,
            "mysglang.srt.models.mixers",
            (
                *("mysglang.srt.models.latent_mixers", "mysglang.srt.models.state_mixers"),
                *("mysglang.srt.layers.moe", "mysglang.srt.layers.latent_attention", "mysglang.srt.layers.indexer"),
                *("mysglang.srt.layers.linear_attention.mamba2", "mysglang.srt.layers.quantization.int8wo"),
                *("mysglang.srt.model_loader.gguf_file", "mysglang.srt.model_loader.torch_file"),
                *("mysglang.srt.model_loader.remote", "mysglang.srt.model_loader.sharded_state"),
                *("mysglang.srt.utils.gguf.model", "mysglang.srt.utils.torch_archive"),
                *("mysglang.srt.utils.remote_files", "statistics"),
                *("mysglang.srt.models.stream_layers", "mysglang.srt.layers.altup", "mysglang.srt.layers.sparse_mlp"),
                *("mysglang.srt.model_executor.draft_model", "mysglang.srt.model_executor.vectors"),
                *("mysglang.srt.models.encoder_model", "mysglang.srt.models.pooling_decoder"),
                *("mysglang.srt.layers.pooler", "mysglang.srt.layers.encoder_attention"),
            ),
            id="a dense model's scheduler",
        ),
        pytest.param(
            MAIN,
            "mysglang.srt.entrypoints.openai.files_desk",
            ("sqlite3", "mysglang.srt.entrypoints.openai.open_desk", "mysglang.srt.utils.remote_files"),
            id="the main process",
        ),
    ],
)
def test_a_process_imports_no_code_of_what_it_does_not_serve(
    program: str, needed: str, unneeded: tuple[str, ...]
) -> None:
    loaded = loaded_by(program)
    assert needed in loaded
    assert not loaded & set(unneeded)


BODIES = """
from mysglang.srt.entrypoints import http_app
from mysglang.srt.entrypoints.strict_model import StrictModel

bodies = [body for body in http_app._BODIES if issubclass(body, StrictModel)]
assert len(bodies) > 20, bodies
assert not (built := [body for body in bodies if body.__pydantic_complete__]), built
"""


def test_validators_are_built_when_a_body_is_read() -> None:
    subprocess.run([sys.executable, "-c", BODIES], check=True)
