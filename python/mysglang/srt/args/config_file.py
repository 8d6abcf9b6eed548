"""`--config FILE`: server options from a YAML file, under the names that they have as flags.

    model-path: Qwen/Qwen3-8B
    port: 8000
    enable-metrics: true
    cuda-graph-bs: [1, 2, 4]

Reads one flat mapping. Option names come with dashes or underscores, aliases included. A value without quotes is what
it is on a command line: `served-model-name: 1.10` is a text, 1e3 a number, and `~/x` begins with the home directory.
What the values may be is judged with the command line's, later. Knows no command line.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from mysglang.srt.args.field import Option
from mysglang.srt.args.groups import option_named, unknown
from mysglang.srt.errors import ConfigError

MAX_BYTES = 1 << 20
"""Size of the largest file that is read."""
_PLAIN = frozenset(f"tag:yaml.org,2002:{name}" for name in ("str", "int", "float", "bool", "timestamp"))
"""Tags that YAML gives to words without quotes, apart from null."""


def read_config(path: str) -> dict[str, Any]:
    """Returns the options in the file at `path`, by their names; lists become tuples.

    Raises ConfigError with every problem: a file that cannot be read, that is not one flat mapping, a name that is
    unknown or occurs twice, a flag that is neither true nor false. Each problem names the file and the line.
    """
    try:
        root = yaml.compose(_text(path), Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        raise ConfigError(f"--config {path}: it is not YAML: {' '.join(str(error).split())}") from None
    except RecursionError:
        raise ConfigError(f"--config {path}: it is nested too deeply") from None
    if root is None:
        return {}
    if not isinstance(root, yaml.MappingNode):
        raise ConfigError(f"--config {path}: it must be a mapping of option names to values, such as `port: 8000`")
    found: dict[str, Any] = {}
    problems: list[str] = []
    for key, value in root.value:
        place = f"--config {path}, line {key.start_mark.line + 1}"
        option = option_named(key.value) if isinstance(key, yaml.ScalarNode) else None
        if option is None:
            problems.append(f"{place}: {unknown(str(key.value))}")
        elif option.name in found:
            problems.append(f"{place}: {option.flag} occurs twice")
        else:
            found[option.name] = None
            problems += (f"{place}: {problem}" for problem in _read(option, value, found))
    if problems:
        raise ConfigError(*problems)
    return found


def _text(path: str) -> str:
    try:
        with Path(os.path.expanduser(path)).open("rb") as file:
            content = file.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise ConfigError(f"--config {path}: it is larger than {MAX_BYTES} bytes")
        return content.decode("utf-8")
    except OSError as error:
        raise ConfigError(f"--config {path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"--config {path}: it is not UTF-8 text") from None


def _read(option: Option, node: yaml.Node, found: dict[str, Any]) -> Iterator[str]:
    """Put the option's value into `found`, or say what is wrong with its form."""
    if isinstance(node, yaml.MappingNode):
        yield f"{option.flag} takes {'a list' if option.many else 'one value'}, not a mapping"
        return
    items = node.value if option.many and isinstance(node, yaml.SequenceNode) else [node]
    try:
        values = tuple(_value(option, item) for item in items)
    except (yaml.YAMLError, ValueError) as error:
        yield f"{option.flag}: {' '.join(str(error).split())}"
        return
    if option.many:
        found[option.name] = values
    elif option.kind is bool and not isinstance(values[0], bool):
        yield f"{option.flag} is a flag; give true or false"
    else:
        found[option.name] = values[0]


def _value(option: Option, node: yaml.Node) -> Any:
    """Returns the value of one node. YAML would read 0123 as 83, 12:30 as 750 and 1e3 as a text."""
    if option.kind is bool or not isinstance(node, yaml.ScalarNode) or node.style or node.tag not in _PLAIN:
        return yaml.SafeLoader("").construct_document(node)
    # A shell does so with a word that begins with it.
    word = os.path.expanduser(node.value)
    try:
        return option.kind(word)
    except ValueError:
        return word
