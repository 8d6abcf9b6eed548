"""Options of the hierarchical cache, and those that are refused by name."""

from __future__ import annotations

import pytest

from mysglang.srt.args.field import flag_of
from mysglang.srt.args.hicache import OTHER_STORAGE_BACKENDS, HicacheArgs, StorageConfig, read_storage_config
from mysglang.srt.errors import ConfigError
from mysglang.srt.server_args import ServerArgs, prepare_server_args
from mysglang.srt.utils.hardware import Hardware

ON = ("--enable-hierarchical-cache",)
FILE = (*ON, "--hicache-storage-backend", "file")


def test_the_names_of_sglang_are_known() -> None:
    args = prepare_server_args(
        [
            *("--enable-hicache", "--hicache-ratio", "1.5", "--hicache-write-policy", "write_back"),
            *(
                "--hicache-io-backend",
                "direct",
                "--hicache-mem-layout",
                "layer_first",
                "--hicache-storage-backend",
                "file",
            ),
            *("--hicache-storage-prefetch-policy", "best_effort"),
            *("--hicache-storage-backend-extra-config", '{"path": "/tmp/kv", "size_gb": 2}'),
        ]
    )
    assert args.hicache.enable_hierarchical_cache and args.hicache.hicache_ratio == 1.5
    assert args.hicache.storage_path == "/tmp/kv"


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (("--hicache-ratio", "3"), "--hicache-ratio needs --enable-hierarchical-cache"),
        (("--hicache-ratio", "2"), "--hicache-ratio needs --enable-hierarchical-cache"),
        (("--hicache-io-backend", "kernel"), "--hicache-io-backend needs --enable-hierarchical-cache"),
        ((*ON, "--hicache-storage-prefetch-policy", "timeout"), "policy needs --hicache-storage-backend"),
        ((*ON, "--disable-radix-cache"), "which leaves no prefixes to keep"),
        ((*ON, "--hicache-storage-prefetch-policy", "wait_complete"), "policy needs --hicache-storage-backend"),
        ((*ON, "--hicache-storage-backend", "floppy"), "there is no such backend; give file"),
        (FILE, "needs a directory"),
        ((*FILE, "--hicache-storage-backend-extra-config", '{"path": "/tmp/kv", "size": 2}'), "unknown field `size`"),
        ((*FILE, "--hicache-storage-backend-extra-config", "{"), "malformed|truncated"),
        ((*FILE, "--hicache-storage-backend-extra-config", '{"path": "/x", "block_tokens": 0}'), "greater than 0"),
        ((*ON, "--hicache-mem-layout", "page_head"), "page_head"),
        ((*ON, "--hicache-io-backend", "kernel_ascend"), "kernel_ascend"),
        (("--hicache-host-memory-mode", "buffer_only"), "does not support"),
    ],
)
def test_what_does_not_go_together(options: tuple[str, ...], complaint: str) -> None:
    with pytest.raises((ConfigError, SystemExit), match=complaint):
        prepare_server_args(list(options))


@pytest.mark.parametrize("name", sorted(HicacheArgs.__dataclass_fields__.keys() - {"enable_hierarchical_cache"}))
def test_every_flag_of_the_cache_names_the_flag_that_it_needs(name: str) -> None:
    """A value that is the default has no effect either, so a flag with its default is refused, too."""
    texts = {"hicache_storage_backend": "file", "hicache_storage_backend_extra_config": "{}"}
    value = texts.get(name, getattr(HicacheArgs(), name))
    with pytest.raises(ConfigError, match=f"{flag_of(name)} needs --"):
        ServerArgs.from_kwargs(Hardware(), **{name: value})


@pytest.mark.parametrize("name", OTHER_STORAGE_BACKENDS)
def test_other_stores_are_refused_by_name(name: str) -> None:
    with pytest.raises(ConfigError, match=f"--hicache-storage-backend {name}: this version does not support it"):
        prepare_server_args([*ON, "--hicache-storage-backend", name])


def test_the_defaults_of_the_storage() -> None:
    assert read_storage_config(None) == StorageConfig()
    assert read_storage_config('{"prefetch_threshold": 1}').prefetch_threshold == 1
    with pytest.raises(ValueError, match="negative"):
        read_storage_config('{"prefetch_timeout_base": -1}')
