"""`mysglang COMMAND …`: find the command, and import only that one.

The top level knows names and one-line summaries, so `mysglang --help` and shell completion import no command and no
torch.
"""

from __future__ import annotations

import difflib
import importlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

from mysglang.bench.refused import Refused, run_tool
from mysglang.cli.command import Command, Group
from mysglang.cli.completion import complete, completing
from mysglang.cli.terminal import style_of
from mysglang.srt.utils.version import __version__

COMMANDS: Mapping[str, Command | Group] = MappingProxyType(
    {
        "serve": Command("Serve a model over HTTP.", "serve"),
        "chat": Command("Talk to a model in this terminal.", "chat"),
        "generate": Command("Answer one prompt.", "generate"),
        "models": Command("What models run, and what memory and time one needs.", "models"),
        "bench": Group(
            "Measure speed.",
            {
                "serving": Command("Load a running server as many users do.", "mysglang.bench_serving"),
                "offline": Command("All prompts at once, without a server.", "mysglang.bench_offline_throughput"),
                "one-batch": Command("Time the steps of one batch.", "mysglang.bench_one_batch"),
                "startup": Command("From the command to the first token.", "mysglang.bench_startup"),
                "compare": Command("The same load on several running servers, side by side.", "mysglang.bench_compare"),
            },
        ),
        "eval": Command("Count right answers: gsm8k, mmlu, mgsm, humaneval, tiny.", "evaluate"),
        "profile": Command("Record steps of a running server.", "profile"),
        "replay": Command("Send the requests of a crash dump again.", "replay"),
        "check-env": Command("Versions and devices of this machine, for a bug report.", "check_env"),
        "completion": Command("Print the completion script of a shell.", "completion"),
    }
)

SECTIONS = {
    "run a model": ("serve", "chat", "generate"),
    "look before you start": ("models", "check-env"),
    "measure and debug": ("bench", "eval", "profile", "replay"),
    "set up the shell": ("completion",),
}

EXAMPLES = """\
examples:
  mysglang serve                               serve the small model that is built in
  mysglang serve Qwen/Qwen3-8B --port 8000     serve a model of Hugging Face
  mysglang chat                                talk to the server on this machine
  mysglang models Qwen/Qwen3-8B                its memory and speed, before anything is loaded

exit status: 0 done, 1 failed, 2 wrong command line, 130 ended with Ctrl-C."""


def main() -> int:
    """Runs the `mysglang` command. Returns the exit status."""
    if completing():
        complete(COMMANDS)
    return run_tool(run)


def run(argv: Sequence[str]) -> int:
    """Run the command that `argv` names. Raises Refused."""
    return _run(list(argv), "mysglang", COMMANDS)


def _run(argv: list[str], prog: str, commands: Mapping[str, Command | Group]) -> int:
    if argv[:1] == ["help"] and "help" not in commands:
        argv = [*argv[1:], "--help"]
    if not argv or argv[0] in ("-h", "--help"):
        print(_overview() if prog == "mysglang" else _group_help(prog, commands))
        return 0 if argv else Refused.status
    name, *rest = argv
    if prog == "mysglang" and name in ("--version", "-V", "version"):
        print(f"mysglang {__version__}")
        return 0
    if name not in commands:
        raise Refused(_stranger(name, prog, commands))
    command = commands[name]
    if isinstance(command, Group):
        return _run(rest, f"{prog} {name}", command.commands)
    module = importlib.import_module(command.module_name)
    status: int = module.main(rest, f"{prog} {name}")
    return status


def _stranger(name: str, prog: str, commands: Mapping[str, Command | Group]) -> str:
    if name.startswith("-"):
        return f"{name} stands before a command; the first word is one of: {', '.join(commands)}."
    close = difflib.get_close_matches(name, commands, n=2, cutoff=0.5)
    hint = f"did you mean {' or '.join(f'{prog} {each}' for each in close)}?" if close else f"see {prog} --help."
    return f"{name!r} is not a command of {prog}; {hint}"


def _overview() -> str:
    style = style_of(sys.stdout)
    lines = [f"mysglang {__version__}: an inference server for large language models.", ""]
    lines += ["usage: mysglang COMMAND [OPTIONS]      (mysglang COMMAND --help lists the options)"]
    for section, names in SECTIONS.items():
        lines += ["", style.bold(f"{section}:")]
        for name in names:
            lines += _lines(name, COMMANDS[name])
    return "\n".join([*lines, "", EXAMPLES])


def _lines(name: str, command: Command | Group) -> Iterator[str]:
    if isinstance(command, Command):
        yield f"  {name:<18} {command.summary}"
        return
    for inner, each in command.commands.items():
        yield f"  {name + ' ' + inner:<18} {each.summary}"


def _group_help(prog: str, commands: Mapping[str, Command | Group]) -> str:
    lines = [f"usage: {prog} COMMAND [OPTIONS]      ({prog} COMMAND --help lists the options)", ""]
    return "\n".join([*lines, *(f"  {name:<12} {command.summary}" for name, command in commands.items())])


if __name__ == "__main__":
    sys.exit(main())
