"""Options about access: files of keys and certificates, and who is invited."""

import os
import subprocess
from pathlib import Path

import pytest

from fixtures.certificate import make_certificate
from mysglang.srt.args.serving import ServingArgs, read_keys
from mysglang.srt.errors import ConfigError
from mysglang.srt.server_args import ServerArgs
from mysglang.srt.utils.hardware import Hardware


def test_keys_come_from_the_flag_and_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("# whose\none\n\n  two  \n")
    assert read_keys(str(file)) == ("one", "two")
    assert ServingArgs(api_key="k", api_key_file=str(file)).keys() == ("k", "one", "two")
    assert not ServingArgs().has_keys
    assert ServingArgs(api_key_file=str(file)).has_keys
    assert ServingArgs(api_key_file=str(file)).keeps_keys_apart
    assert not ServingArgs(api_key_file=str(file), share_cache_between_keys=True).keeps_keys_apart
    assert not ServingArgs(api_key="k").keeps_keys_apart


def test_a_key_file_that_is_removed_leaves_no_server_open(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("one")
    args = ServerArgs.from_kwargs(Hardware(), model_path=str(tmp_path), api_key_file=str(file))
    file.unlink()
    with pytest.raises(ConfigError, match="there is no such file, or it contains no key"):
        args.serving.keys()


def test_a_key_file_that_cannot_be_read_twice_or_is_no_text_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "binary").write_bytes(b"key\xff")
    for name, words in {"pipe": "it is not a regular file", "binary": "it is not UTF-8 text"}.items():
        with pytest.raises(ConfigError, match=f"--api-key-file {tmp_path / name}: {words}"):
            ServerArgs.from_kwargs(Hardware(), model_path=str(tmp_path), api_key_file=str(tmp_path / name))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"api_key_file": "/nowhere"}, "--api-key-file /nowhere: there is no such file, or it contains no key"),
        ({"api_key": ""}, "--api-key is empty"),
        ({"admin_api_key": " "}, "--admin-api-key is empty"),
        ({"served_model_aliases": ("a", "")}, "--served-model-aliases is empty"),
        ({"ssl_certfile": __file__}, "must be given together"),
        ({"ssl_ca_certs": __file__}, "need --ssl-certfile"),
        ({"ssl_certfile": "/nowhere", "ssl_keyfile": __file__}, "--ssl-certfile /nowhere: there is no such file"),
        ({"ssl_certfile": __file__, "ssl_keyfile": __file__}, f"--ssl-certfile {__file__}: it holds no certificates"),
        ({"api_key": "k", "admin_api_key": "k"}, "--admin-api-key must differ from the API keys of clients"),
        ({"fastapi_root_path": "/api/"}, "--fastapi-root-path /api/: give an ASCII path such as"),
        ({"fastapi_root_path": "/"}, "without a slash at its end"),
        ({"fastapi_root_path": "api"}, "give an ASCII path such as"),
        ({"fastapi_root_path": "/é"}, "give an ASCII path"),
        (
            {"skip_tokenizer_init": True, "tool_call_parser": "qwen"},
            "--tool-call-parser cannot be combined with --skip-tokenizer-init",
        ),
        (
            {"skip_tokenizer_init": True, "chat_template": "chatml"},
            "--chat-template cannot be combined with --skip-tokenizer-init",
        ),
        ({"priority_scheduling_preemption_threshold": 5}, "needs --enable-priority-scheduling"),
        ({"cors_allow_origins": ("a.example",)}, "give https://host[:port], or *"),
        ({"cors_allow_origins": ("https://a.example/path",)}, "give https://host[:port], or *"),
    ],
)
def test_what_cannot_be_is_refused_at_once(tmp_path: Path, options: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ServerArgs.from_kwargs(Hardware(), model_path=str(tmp_path), **options)
    assert words in str(caught.value)


def test_files_of_tls_are_read_before_the_start(tmp_path: Path) -> None:
    cert, key = make_certificate(tmp_path)
    (other := tmp_path / "other").mkdir()
    files = {"ssl_certfile": cert, "ssl_keyfile": key}
    ServerArgs.from_kwargs(Hardware(), **files, ssl_ca_certs=cert)
    for changed, words in (
        ({"ssl_keyfile": make_certificate(other)[1]}, "that fits --ssl-certfile"),
        ({"ssl_keyfile": __file__}, f"--ssl-keyfile {__file__}: it holds no private key"),
        ({"ssl_ca_certs": __file__}, f"--ssl-ca-certs {__file__}: it holds no certificates"),
    ):
        with pytest.raises(ConfigError, match=words):
            ServerArgs.from_kwargs(Hardware(), **files | changed)


def test_a_key_with_a_password_needs_it(tmp_path: Path) -> None:
    cert, plain = make_certificate(tmp_path)
    key = str(tmp_path / "locked.pem")
    lock = ["openssl", "pkey", "-in", plain, "-aes128", "-passout", "pass:open", "-out", key]
    subprocess.run(lock, check=True, capture_output=True)
    files = {"ssl_certfile": cert, "ssl_keyfile": key}
    ServerArgs.from_kwargs(Hardware(), **files, ssl_keyfile_password="open")
    for wrong in (None, "shut"):
        with pytest.raises(ConfigError, match="that --ssl-keyfile-password opens"):
            ServerArgs.from_kwargs(Hardware(), **files, ssl_keyfile_password=wrong)


@pytest.mark.parametrize("path", ["", "/api", "/a/b-c.d_e~1"])
def test_paths_below_which_a_proxy_shows_a_server(tmp_path: Path, path: str) -> None:
    assert ServerArgs.from_kwargs(Hardware(), model_path=str(tmp_path), fastapi_root_path=path)


def test_origins_are_sites() -> None:
    args = ServerArgs.from_kwargs(Hardware(), cors_allow_origins=("https://a.example", "http://[::1]:3000", "*"))
    assert len(args.serving.cors_allow_origins) == 3
