"""Environment variables: typed, read when asked for, refused by name."""

from __future__ import annotations

import pytest

from mysglang.srt.environ import REFERENCE_OPS, START_TIMEOUT, VARIABLES, unknown_variables
from mysglang.srt.errors import ConfigError


def test_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in VARIABLES:
        monkeypatch.delenv(variable.name, raising=False)
        assert variable.get() == variable.default
        monkeypatch.setenv(variable.name, "")
        assert variable.get() == variable.default


@pytest.mark.parametrize(("text", "value"), [("1", True), ("true", True), ("OFF", False), ("0", False)])
def test_truth(monkeypatch: pytest.MonkeyPatch, text: str, value: bool) -> None:
    monkeypatch.setenv(REFERENCE_OPS.name, text)
    assert REFERENCE_OPS.get() is value


def test_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(START_TIMEOUT.name, "2.5")
    assert START_TIMEOUT.get() == 2.5


@pytest.mark.parametrize(
    ("variable", "text"), [(REFERENCE_OPS, "maybe"), (START_TIMEOUT, "0"), (START_TIMEOUT, "soon")]
)
def test_nonsense_is_refused_by_name(monkeypatch: pytest.MonkeyPatch, variable: object, text: str) -> None:
    name = variable.name  # type: ignore[attr-defined]
    monkeypatch.setenv(name, text)
    with pytest.raises(ConfigError, match=f"{name}='{text}'"):
        variable.get()  # type: ignore[attr-defined]


def test_names_are_ours_and_unique() -> None:
    names = [variable.name for variable in VARIABLES]
    assert all(name.startswith("MYSGLANG_") for name in names)
    assert len(set(names)) == len(names)


def test_a_typo_is_reported_with_the_name_that_was_meant(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in VARIABLES:
        monkeypatch.setenv(variable.name, "1")
    monkeypatch.setenv("MYSGLANG_KERNEL_CACHE", "/tmp")
    assert not [*unknown_variables()]
    monkeypatch.setenv("MYSGLANG_START_TIMEOUTS", "5")
    monkeypatch.setenv("MYSGLANG_NONSENSE", "1")
    nonsense, typo = unknown_variables()
    assert nonsense.startswith("The environment variable MYSGLANG_NONSENSE has no effect. Known are: ")
    assert typo.endswith("MYSGLANG_START_TIMEOUTS has no effect. Did you mean MYSGLANG_START_TIMEOUT?")
