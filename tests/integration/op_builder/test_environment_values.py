"""Blank and meaningless values of every environment variable, through load(), the report and commands."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from op_builder import env
from op_builder.build import main as build
from op_builder.commands.cache import main as cache_command
from op_builder.errors import AccelError
from op_builder.report.__main__ import main as report
from tests.support.small_ops import SmallBuilder

_NAMES = [variable.name for variable in env.VARIABLES if "<" not in variable.name]
_NONSENSE = ("'", "~ \\\n", "9" * 5000, "\udcff\x01")


@pytest.fixture(autouse=True)
def _in_a_directory_of_the_test(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A nonsensical ACCEL_CACHE_DIR is the name of a directory here."""
    monkeypatch.chdir(tmp_path)


def _uses(small: SmallBuilder) -> list[Callable[[], object]]:
    return [small.load, lambda: report(["cpu_sgd"]), lambda: cache_command(["list"]), lambda: build(["no_such_op"])]


def test_blank_values_count_as_unset(small: SmallBuilder) -> None:
    small.load()
    for name in _NAMES:
        for use in _uses(small):
            with env.scope(**{name: " \t\n"}):
                use()


@pytest.mark.parametrize("text", _NONSENSE, ids=range(4))
def test_errors_about_nonsense_name_the_variable(small: SmallBuilder, text: str) -> None:
    small.load()
    unclear = []
    for name in _NAMES:
        for use in _uses(small):
            with env.scope(**{name: text}):
                try:
                    use()
                except AccelError as error:
                    if name not in error.message or not error.remedy:
                        unclear.append((name, str(error)[:1000]))
    assert unclear == []


@pytest.mark.parametrize(
    "name", ["CXX", "ACCEL_MAX_JOBS", "MAX_JOBS", "ACCEL_COMPILE_TIMEOUT_S", "ACCEL_CACHE_MAX_MIB"]
)
@pytest.mark.parametrize(
    "text", [*_NONSENSE, "g++ -o x", "g++ @/missing", "1_000", "\u0663", "1e3", "0x4", "4.0"], ids=range(11)
)
def test_builds_name_the_variable_that_they_cannot_use(small: SmallBuilder, name: str, text: str) -> None:
    with env.scope(**{name: text}), pytest.raises(AccelError, match=name):
        small.load()
