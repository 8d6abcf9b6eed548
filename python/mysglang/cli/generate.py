"""`mysglang generate`: one prompt, one answer on stdout, as it is written or as one JSON object."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Generator, Sequence
from typing import Any

import orjson

from mysglang.bench.flags import ToolParser
from mysglang.bench.refused import Refused
from mysglang.cli.api_client import ApiClient
from mysglang.cli.arguments import add_sampling_flags, add_server_flags, sampling_fields
from mysglang.cli.own_server import chosen_server, parse_for_server
from mysglang.cli.terminal import harmless, style_of, take_any_bytes

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"


def make_parser(prog: str) -> ToolParser:
    parser = ToolParser(
        prog,
        "Answer one prompt and end. The prompt is an argument, or comes on stdin.",
        examples={
            '{prog} "Name three rivers."': "Ask the server on this machine.",
            "{prog} --json < question.txt": "Read the prompt from a file; print the whole answer as JSON.",
            '{prog} --model-path tiny --temperature 0 "hello"': "Start a server for this one prompt.",
        },
    )
    parser.add_argument("prompt", nargs="?", help="The prompt; - or nothing reads stdin.")
    parser.add_argument("--system", metavar="TEXT", help="A system message before the prompt.")
    parser.add_argument(
        "--raw", action="store_true", help="Continue the prompt as it stands, without the model's chat template."
    )
    parser.add_argument("--json", action="store_true", help="Print the server's whole answer as one JSON object.")
    parser.add_argument(
        "--show-thinking", action="store_true", help="Print the model's thoughts before its answer, dimmed."
    )
    add_sampling_flags(parser)
    add_server_flags(parser, own=True)
    return parser


def main(argv: Sequence[str], prog: str) -> int:
    options, flags = parse_for_server(make_parser(prog), argv)
    prompt = _prompt(options.prompt)
    for flag, value in {"--system": options.system, "--thinking": options.thinking}.items():
        if options.raw and value is not None:
            raise Refused(f"{flag} needs the model's chat template, which --raw leaves out.")
    path, body = _request(options, prompt)
    with chosen_server(options, flags) as client:
        if options.json:
            print(orjson.dumps(client.post(path, body), option=orjson.OPT_INDENT_2).decode())
        else:
            _print_pieces(client, path, body, thoughts=options.show_thinking)
    return 0


def _prompt(given: str | None) -> str:
    if given is None and sys.stdin.isatty():
        raise Refused('there is no prompt: give one as an argument, such as "hello", or on stdin.')
    take_any_bytes()
    prompt = sys.stdin.read() if given in (None, "-") else given
    assert prompt is not None
    if not prompt.strip():
        raise Refused("the prompt is empty.")
    return prompt


def _request(options: argparse.Namespace, prompt: str) -> tuple[str, dict[str, Any]]:
    """Returns the route, and the body for it."""
    common = {"model": "default", **sampling_fields(options)}
    if options.raw:
        return COMPLETIONS, {**common, "prompt": prompt}
    system = [] if options.system is None else [{"role": "system", "content": options.system}]
    return CHAT, {**common, "messages": [*system, {"role": "user", "content": prompt}]}


def _print_pieces(client: ApiClient, path: str, body: dict[str, Any], *, thoughts: bool) -> None:
    style = style_of(sys.stdout)
    last = ""
    with contextlib.closing(_pieces(client, path, body)) as pieces:
        for kind, piece in pieces:
            if kind == "thought" and not thoughts:
                continue
            shown = harmless(piece) if sys.stdout.isatty() else piece
            print(style.dim(shown) if kind == "thought" else shown, end="", flush=True)
            last = piece or last
    if not last.endswith("\n"):
        print()


def _pieces(client: ApiClient, path: str, body: dict[str, Any]) -> Generator[tuple[str, str]]:
    """Yields pairs (kind, piece) as they arrive; kind is `thought` or `text`."""
    for event in client.stream(path, {**body, "stream": True}):
        for choice in event.get("choices", ()):
            delta = choice.get("delta", choice)
            if thought := delta.get("reasoning_content"):
                yield "thought", thought
            if text := delta.get("content") or delta.get("text"):
                yield "text", text
