"""`mysglang chat`: a conversation in the terminal. Reads lines, streams answers, keeps the history.

    you> hello
    (thoughts, dimmed)
    the answer
    you> /save talk.json

Ctrl-C ends the answer that is being written and keeps what was said; Ctrl-D or /quit ends the program.
"""

from __future__ import annotations

import contextlib
import difflib
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import orjson

from mysglang.bench.flags import ToolParser
from mysglang.bench.refused import FAILED, Failed, Refused
from mysglang.cli.answer import Answer, Call
from mysglang.cli.api_client import ApiClient
from mysglang.cli.arguments import add_sampling_flags, add_server_flags, sampling_fields
from mysglang.cli.own_server import chosen_server, parse_for_server
from mysglang.cli.terminal import Style, harmless, style_of, take_any_bytes

PATH = "/v1/chat/completions"
YOU = "you> "


def make_parser(prog: str) -> ToolParser:
    parser = ToolParser(
        prog,
        "Talk to a model in this terminal. /help lists what can be typed; Ctrl-C stops an answer.",
        examples={
            "{prog}": "Talk to the server on this machine.",
            "{prog} --base-url http://gpu7:30000": "Talk to a server elsewhere.",
            "{prog} --model-path Qwen/Qwen3-0.6B": "Start a server for this talk, and end it afterwards.",
        },
    )
    parser.add_argument("--system", metavar="TEXT", help="System message at the beginning of the conversation.")
    parser.add_argument(
        "--tools", metavar="FILE", help="JSON list of tools, as in OpenAI's API. You type what a called tool returns."
    )
    parser.add_argument("--stats", action="store_true", help="Show tokens and seconds after each answer.")
    add_sampling_flags(parser)
    add_server_flags(parser, own=True)
    return parser


def main(argv: Sequence[str], prog: str) -> int:
    options, flags = parse_for_server(make_parser(prog), argv)
    tools = None if options.tools is None else _read_tools(options.tools)
    own = ["--reasoning-parser", "auto", *flags] if options.model_path is not None else flags
    with chosen_server(options, own) as client:
        model = str(client.get("/v1/models")["data"][0]["id"])
        fields = {"model": model, **sampling_fields(options), **({} if tools is None else {"tools": tools})}
        chat = Chat(client, fields, system=options.system, stats=options.stats)
        chat.greet(model)
        chat.run()
    return chat.status


def _read_tools(path: str) -> list[Any]:
    try:
        found = orjson.loads(Path(path).read_bytes())
    except OSError as error:
        raise Failed(f"--tools {path} cannot be read: {error.strerror}.") from None
    except orjson.JSONDecodeError as error:
        raise Refused(f"--tools {path} is not JSON: {error}.") from None
    if not isinstance(found, list):
        raise Refused(f"--tools {path} must hold a JSON list of tools.")
    return found


class Chat:
    """One conversation. Errors of a request are shown, and the talk goes on."""

    def __init__(self, client: ApiClient, fields: dict[str, Any], *, system: str | None, stats: bool) -> None:
        """`fields`: fields of every request, in addition to its messages."""
        self._client = client
        self._fields = fields
        self._system = system
        self._stats = stats
        self._style = style_of(sys.stdout)
        self._messages: list[dict[str, Any]] = []
        """The conversation so far, without the system message."""
        self._over = False
        self._failures = 0
        """Requests that ended with an error."""
        self._commands: dict[str, tuple[Callable[[str], None], str]] = {
            "/help": (self._help, "list what can be typed"),
            "/reset": (self._reset, "forget the conversation; the system message stays"),
            "/system": (self._set_system, "TEXT: set the system message; without TEXT there is none any more"),
            "/save": (self._save, "FILE: write the conversation as JSON"),
            "/quit": (self._quit, "end; so does Ctrl-D"),
        }

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The conversation as it is sent."""
        system = [] if self._system is None else [{"role": "system", "content": self._system}]
        return [*system, *self._messages]

    @property
    def status(self) -> int:
        """The exit status. At a terminal errors were seen; a script that pipes lines in learns of them by this."""
        return FAILED if self._failures and not sys.stdin.isatty() else 0

    def greet(self, model: str) -> None:
        self._note(f"{harmless(model)} at {self._client.base_url}. /help lists commands; Ctrl-C stops an answer.")

    def run(self) -> None:
        """Reads and answers messages until the end of input, or /quit."""
        take_any_bytes()
        if sys.stdin.isatty():
            with contextlib.suppress(ImportError):
                import readline  # noqa: F401  (gives input() a history and an editor)
        while not self._over:
            try:
                line = self._read(YOU)
            except EOFError:
                if sys.stdin.isatty():
                    print()
                return
            except KeyboardInterrupt:
                print()
                self._note("/quit or Ctrl-D ends.")
                continue
            self._take(line.strip())

    def _take(self, line: str) -> None:
        if line.startswith("/") and not line.startswith("//"):
            name, _, rest = line.partition(" ")
            if name in self._commands:
                self._commands[name][0](rest.strip())
                return
            close = difflib.get_close_matches(name, self._commands, n=1) or ["/help"]
            self._note(f"{name} is not a command; did you mean {close[0]}? Begin with // to send a slash.")
        elif line:
            self._messages.append({"role": "user", "content": line.removeprefix("/") if line[0] == "/" else line})
            self._answer()

    def _answer(self) -> None:
        """Ask, show the answer as it comes, and go on as long as tools are called."""
        while calls := self._ask():
            for call in calls:
                try:
                    result = self._read(f"{harmless(call.name)} returns> ")
                except (EOFError, KeyboardInterrupt):
                    print()
                    self._forget_question()
                    return
                self._messages.append({"role": "tool", "tool_call_id": call.id, "content": result})

    def _ask(self) -> list[Call]:
        """Sends one request and shows its answer. Returns the tool calls that wait for results."""
        answer, begun = Answer(), time.perf_counter()
        stream = self._client.stream(PATH, self._body())
        stopped = False
        try:
            for event in stream:
                self._show(answer.take(event))
        except KeyboardInterrupt:
            stopped = True
        except Failed as error:
            self._end_line(answer)
            self._failures += 1
            self._error(harmless(str(error)))
            self._forget_question()
            return []
        finally:
            stream.close()
        self._end_line(answer)
        if stopped:
            self._note("[stopped]")
        for call in () if stopped else answer.calls:
            print(self._style.cyan(f"[tool call] {harmless(call.name)}({harmless(call.arguments)})"))
        if self._stats:
            seconds = time.perf_counter() - begun
            self._note(f"{answer.tokens} tokens in {seconds:.2f} s, {answer.tokens / seconds:.1f} tokens/s")
        return self._keep(answer, stopped=stopped)

    def _keep(self, answer: Answer, *, stopped: bool) -> list[Call]:
        """Put the answer into the history; a call that was cut short is not part of it."""
        message = answer.message(with_calls=not stopped)
        if message is None:
            self._forget_question()
            return []
        self._messages.append(message)
        return [] if stopped else answer.calls

    def _forget_question(self) -> None:
        """Drops what has no answer from the history, back to before the last line of the user."""
        while self._messages and self._messages.pop()["role"] != "user":
            pass

    def _body(self) -> dict[str, Any]:
        usage = {"stream": True, "stream_options": {"include_usage": True}}
        return {**self._fields, "messages": self.messages, **usage}

    def _show(self, pieces: Sequence[tuple[str, str]]) -> None:
        for kind, piece in pieces:
            text = harmless(piece)
            print(self._style.dim(text) if kind == "thought" else text, end="", flush=True)

    def _end_line(self, answer: Answer) -> None:
        if answer.shown and not answer.shown.endswith("\n"):
            print()

    def _read(self, prompt: str) -> str:
        if not sys.stdin.isatty():
            line = sys.stdin.readline()
            if not line:
                raise EOFError
            return line.rstrip("\n")
        return input(_for_readline(self._style, prompt))

    def _error(self, text: str) -> None:
        print(self._style.red(f"error: {text}"), flush=True)

    def _note(self, text: str) -> None:
        print(self._style.dim(text), flush=True)

    def _help(self, _rest: str) -> None:
        for name, (_, what) in self._commands.items():
            print(f"  {name:<10} {what}")
        print("Anything else is said to the model. Ctrl-C stops an answer.", flush=True)

    def _reset(self, _rest: str) -> None:
        self._messages.clear()
        self._note("The conversation is empty.")

    def _set_system(self, text: str) -> None:
        self._system = text or None
        self._note("The system message is set." if text else "There is no system message.")

    def _save(self, path: str) -> None:
        if not path:
            self._note("/save needs a file, such as /save talk.json")
            return
        try:
            Path(os.path.expanduser(path)).write_bytes(orjson.dumps(self.messages, option=orjson.OPT_INDENT_2))
        except OSError as error:
            self._error(f"{path} cannot be written: {error.strerror}")
        except TypeError:
            self._error(f"{path} cannot be written: a message holds bytes that are not UTF-8 text")
        else:
            self._note(f"{len(self.messages)} messages are in {path}.")

    def _quit(self, _rest: str) -> None:
        self._over = True


def _for_readline(style: Style, prompt: str) -> str:
    """Returns `prompt` in bold, with the marks that tell readline which characters take no space on the line."""
    return f"\x01\x1b[1m\x02{prompt}\x01\x1b[0m\x02" if style.colours else prompt
