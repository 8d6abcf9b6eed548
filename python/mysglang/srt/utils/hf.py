"""A model's directory: found on this machine or fetched from Hugging Face, and its JSON files read with care.

Knows nothing of what the files mean, imports no torch and no transformers, and never runs code that came with a model.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

from mysglang.srt.errors import ConfigError
from mysglang.srt.utils.gguf.files import ggufs_in, is_gguf, listed_files
from mysglang.srt.utils.plain_files import is_there, read_plain, size_limit

CONFIG_FILES = ["*.json", "*.jinja", "*.model", "*.txt"]
SAFETENSORS, TORCH_FILES = ["*.safetensors"], ["*.bin", "*.pt", "*.pth"]
WEIGHT_FILES: dict[str, list[list[str]]] = {
    "auto": [SAFETENSORS, TORCH_FILES],
    "safetensors": [SAFETENSORS],
    "pt": [TORCH_FILES],
    "gguf": [["*.gguf"]],
    "sharded_state": [SAFETENSORS],
    "dummy": [[]],
}
"""Load format -> the patterns of its files. Later patterns are downloaded only if no file has an earlier one."""
# Sub-folders hold other formats of the same weights, but for the numbered ones, which sentence-transformers writes its
# modules' configs to. Mistral's consolidated files are another format, too.
UNWANTED_FILES = ["[!0-9]*/*", "consolidated*"]

_REPOSITORY = re.compile(r"[A-Za-z0-9_][\w.-]*(/[\w.-]+)?")
_GGUF = re.compile(r"([A-Za-z0-9_][\w.-]*/[\w.-]+)/([\w.-]+\.gguf)")
"""A file of a repository: OWNER/NAME/FILE.gguf."""

GGUF_NAMES = "give the path of a GGUF file, or OWNER/NAME/FILE.gguf for one of a Hugging Face repository"
"""Advice where a GGUF file is missing."""

REMOTE_NOTE = "remote.json"
"""File of a directory, fetched from a URL, that says where the weights are."""

_URL = re.compile(r"([a-z][a-z0-9]*)://.+", re.ASCII)


def is_url(model: str) -> bool:
    """True if the model's path is a URL."""
    return _URL.fullmatch(model) is not None


def resolve_model_path(
    model: str, *, revision: str | None = None, download_dir: str | None = None, load_format: str = "auto"
) -> Path:
    """Returns the directory of `model`: a directory of this machine, else a Hugging Face id, downloaded unless it is
    cached. It may be a GGUF file, too: one of this machine, the only one in a directory without config.json, or
    OWNER/NAME/FILE.gguf.

    With the load format `dummy`, only the configuration and tokenizer files are fetched. Raises ConfigError.
    """
    # os.path returns False where pathlib raises: for names that are too long, and for homes of unknown users.
    path = os.path.expanduser(model)
    if model and os.path.isdir(path):
        return _gguf_in(Path(path).resolve())
    if is_gguf(Path(path)) and os.path.isfile(path):
        return Path(path).resolve()
    if (file := _GGUF.fullmatch(model)) is not None:
        # Further parts of a model have other numbers in their names.
        pattern = re.sub(r"-00001-of-(\d{5}\.gguf)$", r"-*-of-\1", file[2])
        fetched = _download(file[1], revision, download_dir, [pattern]) / file[2]
        if not is_there(fetched):
            raise ConfigError(f"the Hugging Face repository {file[1]} has no file {file[2]}; {GGUF_NAMES}")
        return fetched
    if os.path.isfile(path):
        raise ConfigError(f"model path {model} is a file; give the directory that holds config.json, or a file in GGUF")
    if not _REPOSITORY.fullmatch(model) and is_gguf(Path(path)):
        raise ConfigError(f"there is no file {model!r}; {GGUF_NAMES}")
    if not _REPOSITORY.fullmatch(model):
        raise ConfigError(
            f"model path {model!r} does not exist; give a directory, or a Hugging Face id such as org/name"
        )
    for patterns in WEIGHT_FILES[load_format]:
        folder = _download(model, revision, download_dir, CONFIG_FILES + patterns)
        if any(path for pattern in patterns for path in folder.glob(pattern)):
            break
    return folder


def _gguf_in(folder: Path) -> Path:
    """Returns the GGUF file that is all of a model in the directory, if there is one; else the directory."""
    found = [] if is_there(folder / "config.json") else ggufs_in(folder)
    if len(found) > 1:
        raise ConfigError(f"{folder} holds several GGUF models ({listed_files(found)}); give the path of one of them")
    return found[0] if found else folder


def _download(model: str, revision: str | None, download_dir: str | None, patterns: list[str]) -> Path:
    # Imported here: most launches name a directory, and the client takes long to load.
    import huggingface_hub
    from httpx import HTTPError
    from huggingface_hub import errors

    try:
        folder = huggingface_hub.snapshot_download(
            model,
            revision=revision,
            # The client fails at a `~` that is no home, unless something precedes it.
            cache_dir=download_dir and os.path.abspath(os.path.expanduser(download_dir)),
            allow_patterns=patterns,
            ignore_patterns=UNWANTED_FILES,
        )
    except errors.GatedRepoError:
        why = "it is gated: accept its licence on huggingface.co and set HF_TOKEN"
    except errors.RevisionNotFoundError:
        why = f"it has no revision {revision}"
    except (errors.RepositoryNotFoundError, errors.HFValidationError):
        why = "there is no such public repository (for a private one set HF_TOKEN)"
    except errors.LocalEntryNotFoundError:
        why = "it is not in the local cache and huggingface.co cannot be reached; connect, or give a directory"
    except (HTTPError, OSError) as error:
        why = f"the download failed ({_first_line(error)}); try again, or give a directory"
    else:
        return Path(folder)
    if is_gguf(Path(model)):
        raise ConfigError(f"there is no file {model} on this machine, nor such a repository ({why}); {GGUF_NAMES}")
    raise ConfigError(f"{model} is not a local directory, and could not be downloaded from Hugging Face: {why}")


def read_json(path: Path) -> dict[str, Any]:
    """Returns the object in a JSON file. Raises ConfigError for a file that cannot be read, is too large or holds no
    object.
    """
    try:
        value = json.loads(read_plain(path, size_limit(path)).decode("utf-8"))
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} cannot be read: {_first_line(error)}") from error
    except ValueError as error:  # also for a number of more digits than Python reads
        raise ConfigError(f"{path} is not valid JSON: {error}; download it again") from error
    except RecursionError as error:
        raise ConfigError(f"{path} is nested too deeply") from error
    if not isinstance(value, dict):
        raise ConfigError(f"{path} must hold a JSON object, not {type(value).__name__}")
    return value


def read_json_if_there(path: Path) -> dict[str, Any]:
    """Does what `read_json` does, for a file that a model may lack; the result is then an empty object."""
    return read_json(path) if is_there(path) else {}


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def adapter_refused(found: str) -> ConfigError:
    """Returns the error for a LoRA adapter in place of a model. `found`: a clause that says where it is."""
    return ConfigError(
        f"{found}, and adapters are not supported. Merge it into its base model (merge_and_unload of the library "
        "peft), save that, and serve the result."
    )
