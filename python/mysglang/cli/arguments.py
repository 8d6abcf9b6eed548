"""Flags that several subcommands share: which server to use, and how answers are sampled."""

from __future__ import annotations

import argparse

from mysglang.bench.flags import natural
from mysglang.srt.environ import API_KEY, BASE_URL


def add_server_flags(parser: argparse.ArgumentParser, *, own: bool = False) -> None:
    """Adds the flags that say which server to use. `own`: whether the command can start a server itself."""
    part = parser.add_argument_group("server")
    part.add_argument(
        "--base-url",
        "--url",
        metavar="URL",
        help=f"URL of a running server. Default: ${BASE_URL.name}, else {BASE_URL.default}.",
    )
    part.add_argument(
        "--api-key", metavar="KEY", help=f"API key of the server. Default: ${API_KEY.name}, if it is set."
    )
    if own:
        part.add_argument(
            "--model-path",
            metavar="MODEL",
            help="Start a server for this model, and end it with the command; `tiny` is the model that is built in. "
            "Options of `mysglang serve` may follow.",
        )


def add_sampling_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the sampling flags. If a flag is not given, the server's default holds."""
    part = parser.add_argument_group("sampling")
    part.add_argument("--temperature", type=float, help="0 takes the likeliest token. Default: the model's.")
    part.add_argument("--top-p", type=float, help="Draw from the likeliest tokens of this total probability.")
    part.add_argument("--max-tokens", type=natural, help="Longest answer, in tokens. Default: what the context holds.")
    part.add_argument("--seed", type=int, help="The same seed draws the same answer.")
    part.add_argument(
        "--thinking",
        choices=("on", "off"),
        help="Let the model think first, or not, if it can do both. Default: the model's own.",
    )


def sampling_fields(options: argparse.Namespace) -> dict[str, object]:
    """Returns the fields of a request that the flags of `add_sampling_flags` give."""
    names = ("temperature", "top_p", "max_tokens", "seed")
    fields: dict[str, object] = {name: value for name in names if (value := getattr(options, name)) is not None}
    if options.thinking is not None:
        fields["chat_template_kwargs"] = {"enable_thinking": options.thinking == "on"}
    return fields
