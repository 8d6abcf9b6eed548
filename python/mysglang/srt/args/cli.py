"""Parses a command line to flat options, and prints `--help` with one titled part for each group.

A value that does not fit the type of its option stays text: `validate` reports it, together with all other problems.
Options of a file that `--config` names come first, and those of the command line replace them.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NoReturn

from mysglang.srt.args.field import Option, flag_of
from mysglang.srt.args.groups import GROUP_TITLES, ArgGroups, group_options, option_named, unknown
from mysglang.srt.args.vllm_flags import VLLM_SHORT
from mysglang.srt.errors import ConfigError
from mysglang.srt.utils.help_text import HelpFormatter
from mysglang.srt.utils.version import __version__

CONFIG = "config"
MODEL = "positional model"
"""Name under which argparse keeps the positional model, which is not an option of a group."""

TRUTHS = {**dict.fromkeys(("true", "yes", "on", "1"), True), **dict.fromkeys(("false", "no", "off", "0"), False)}
"""Words that a user may write after a switch -> whether they turn it on."""

MORE_NAMES = {"served_model_name": "--served-model-aliases"}
"""Option that takes one value -> the flag for more of them."""

EPILOG = """
examples:
  {prog}
      Serve the embedded model on 127.0.0.1:30000.
  {prog} {model}Qwen/Qwen3-8B --port 8000 --enable-metrics
      Serve a model of Hugging Face, and count what happens for Prometheus.
  {prog} --config server.yaml --port 8001
      Take the options from a file, such as `port: 8000`; an option that is given here replaces the file's.
"""


@dataclass(frozen=True, slots=True)
class Usage:
    """Describes the program whose command line is parsed."""

    prog: str
    positional_model: bool
    """True if the model may be given as a positional argument, without --model-path."""


LAUNCH_SERVER = Usage("python -m mysglang.launch_server", positional_model=False)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message}; --help lists the options.")


def parse(argv: Sequence[str], usage: Usage = LAUNCH_SERVER) -> dict[str, Any]:
    """Returns the options that `argv` gives, and those of its --config file that it does not give.

    Raises ConfigError; exits after --help and --version.
    """
    words = [_dashed(word) for word in argv]
    # Asked first: with a positional model, the word after a switch would become the model.
    if problems := _values_of_switches(words):
        raise ConfigError(*problems)
    found, rest = make_parser(usage).parse_known_args(words)
    given = vars(found)
    config, model = given.pop(CONFIG, None), given.pop(MODEL, None)
    if problems := _strangers(rest, words, model):
        raise ConfigError(*problems)
    if model is not None:
        if "model_path" in given:
            raise ConfigError(f"the model is named twice: {model}, and --model-path {given['model_path']}")
        given["model_path"] = model
    from_file = {} if config is None else _read_file(config)
    by_name = {option.name: option for members in group_options().values() for option in members}
    return from_file | {name: _read(by_name[name], value) for name, value in given.items()}


def _read_file(path: str) -> dict[str, Any]:
    # Imported here: a child process of the server, and most launches, never read such a file.
    from mysglang.srt.args.config_file import read_config

    return read_config(path)


def make_parser(usage: Usage) -> argparse.ArgumentParser:
    """Returns the parser of all server options. Values stay text; an option that is not given is left out."""
    model = "[MODEL]" if usage.positional_model else "[--model-path MODEL]"
    parser = _Parser(
        prog=usage.prog,
        usage=f"%(prog)s {model} [OPTIONS]",
        description="Serve a language model over HTTP. Flags have the names that they have in SGLang.\n"
        "docs/flags.md has the same list.",
        epilog=EPILOG.format(prog=usage.prog, model="" if usage.positional_model else "--model-path "),
        formatter_class=HelpFormatter,
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
    )
    if usage.positional_model:
        text = "Directory of a model, or its name on Hugging Face. Default: the small model that is built in."
        parser.add_argument(MODEL, metavar="MODEL", nargs="?", help=text)
    parser.add_argument("--version", action="version", version=f"mysglang {__version__}")
    parser.add_argument("--config", dest=CONFIG, metavar="FILE", help="Read options from a YAML file.")
    defaults = ArgGroups()
    for group, members in group_options().items():
        doc = type(getattr(defaults, group)).__doc__
        part = parser.add_argument_group(GROUP_TITLES[group], doc)
        for option in members:
            _add(part, option)
    return parser


def _add(part: argparse._ArgumentGroup, option: Option) -> None:
    flags = [option.flag, *map(flag_of, option.aliases)]
    text = option.help.replace("%", "%%")
    if option.kind is bool:
        part.add_argument(*flags, dest=option.name, action="store_true", help=text)
        return
    if option.default not in (None, "", ()):
        text += f" Default: {option.default}."
    metavar = "{" + ",".join(option.choices) + "}" if option.choices else option.kind.__name__.upper()
    nargs = "+" if option.many else None
    part.add_argument(*flags, dest=option.name, metavar=metavar, nargs=nargs, help=text)


def _dashed(word: str) -> str:
    """Writes a flag of ours with dashes, if it is written with underscores."""
    flag, equals, value = word.partition("=")
    known = _option_of(flag) if "_" in flag else None
    return word if known is None else flag.replace("_", "-") + equals + value


def _option_of(word: str) -> Option | None:
    """Returns the option that a word of the command line names; None for a value, and for an unknown flag."""
    return option_named(word[2:].partition("=")[0]) if word.startswith("--") else None


def _values_of_switches(words: Sequence[str]) -> list[str]:
    """Returns a line for each switch that is given a value, such as `--enable-metrics true`."""
    problems = []
    for word, after in pairwise([*words, ""]):
        option = _option_of(word)
        if option is None or option.kind is not bool:
            continue
        value = word.partition("=")[2] if "=" in word else after if after.lower() in TRUTHS else None
        if value is not None:
            instead = f"write {option.flag} alone" if TRUTHS.get(value.lower(), True) else f"leave {option.flag} out"
            problems.append(f"{option.flag} is a switch and takes no value, got {value!r}; {instead}.")
    return problems


def _strangers(rest: Sequence[str], words: Sequence[str], model: str | None) -> list[str]:
    """Returns a line for each argument that is not an option of ours. Values after an unknown flag belong to it.

    rest: the arguments that the parser did not take. model: the positional model, if one was given.
    """
    problems: list[str] = []
    for word in rest:
        if word.startswith("--"):
            problems.append(unknown(word.partition("=")[0]))
        elif word in VLLM_SHORT:
            problems.append(f"{word} is a short flag of vLLM; write {VLLM_SHORT[word]}.")
        elif not problems:
            problems.append(_why_not_taken(word, words, model))
    return problems


def _why_not_taken(word: str, words: Sequence[str], model: str | None) -> str:
    """Returns why `word`, which looks like a value, is none of an option."""
    at = len(words) - 1 - words[::-1].index(word)
    option = _option_of(words[at - 2]) if at > 1 else None
    if option is not None and option.kind is not bool and "=" not in words[at - 2] and words[at - 1] != model:
        further = f" Write further names after {MORE_NAMES[option.name]}." if option.name in MORE_NAMES else ""
        return f"{option.flag} takes one value, and {word!r} is a second one; quote a value with spaces.{further}"
    if model is not None:
        return f"{word!r} follows no option, and the model is named already: {model}"
    return f"{word!r} follows no option; to name a model, write --model-path {word}"


def _read(option: Option, value: Any) -> Any:
    if option.many:
        return tuple(_read_one(option, item) for item in value)
    return _read_one(option, value)


def _read_one(option: Option, text: Any) -> Any:
    if option.kind in (bool, str):
        return text
    try:
        return option.kind(text)
    except ValueError:
        return text
