"""Families of models that other packages bring: entry points in the group `mysglang.models`.

    [project.entry-points."mysglang.models"]
    Ministral = "my_models.ministral:MinistralConfig"

The name is what the names of the architectures begin with; the value is the family's `DecoderConfig`, or a mapping from
names of architectures to `Architecture`. A package is imported only if a config.json names such an architecture that is
not built in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from mysglang.srt.errors import ConfigError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "mysglang.models"

Row = TypeVar("Row")


def plug_ins(architecture: str | None = None) -> list[EntryPoint]:
    """Returns the entry points of all installed packages; if an architecture is named, only those that may serve it."""
    # Here, because 35 modules come with it, email's and zipfile's among them, and built-in families need none of them.
    from importlib.metadata import entry_points

    found = entry_points(group=GROUP)
    return [point for point in found if architecture is None or architecture.startswith(point.name)]


def load_plug_in(
    point: EntryPoint,
    row: type[Row],
    family: type,
    rows_of: Callable[[str, Any], Mapping[str, Row]],
    wrong: Callable[[Row], str | None],
) -> Mapping[str, Row]:
    """Returns the rows of a package. Raises ConfigError, which names the package, if the entry point is not a family or
    a table of rows.

    rows_of(name, config): the rows of a family with that config. wrong(row): what is wrong with a row of a table, or
    None.
    """
    package = point.dist.name if point.dist is not None else "a package"
    where = f"{package} registers {point.name} = {point.value!r} among {GROUP}, and"
    if point.pattern.match(point.value) is None:
        raise ConfigError(f"{where} that is no place of a Python object; write module:name")
    try:
        value = point.load()
    except (Exception, SystemExit) as error:  # it is not ours
        raise ConfigError(f"{where} that cannot be imported ({type(error).__name__}: {error})") from error
    if isinstance(value, type) and issubclass(value, family):
        return rows_of(point.name, value)
    if not isinstance(value, Mapping) or not all(
        isinstance(name, str) and isinstance(each, row) for name, each in value.items()
    ):
        raise ConfigError(
            f"{where} that is neither a subclass of {family.__name__} nor a mapping from names of architectures to "
            f"{row.__name__}"
        )
    for name, each in value.items():
        if (problem := wrong(each)) is not None:
            raise ConfigError(f"{where} the row of {name} there is not right: {problem}")
    return value
