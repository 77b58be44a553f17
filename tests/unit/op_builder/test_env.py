"""The environment table: one reader, typed values, clear errors, generated documentation."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from op_builder import env
from op_builder.errors import AccelError, EnvironmentValueError

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize(("text", "value"), [("1", True), ("0", False), ("on", True), ("False", False), ("", True)])
def test_flag_is_parsed_and_empty_means_default(text: str, value: bool) -> None:
    with env.scope(ACCEL_JIT=text):
        assert env.ACCEL_JIT.get() is value


@pytest.mark.parametrize(
    ("name", "text"),
    [
        *(("ACCEL_JIT", "maybe"), ("ACCEL_MAX_JOBS", "0"), ("ACCEL_MAX_JOBS", "many"), ("LOCAL_RANK", "x")),
        ("ACCEL_SYCL_TOOLCHAIN", "gcc"),
    ],
)
def test_bad_value_names_variable_value_and_remedy(name: str, text: str) -> None:
    variable = next(variable for variable in env.VARIABLES if variable.name == name)
    with env.scope(**{name: text}), pytest.raises(EnvironmentValueError) as caught:
        variable.get()
    message = str(caught.value)
    assert name in message
    assert repr(text) in message
    assert "Remedy" in message
    assert isinstance(caught.value, (AccelError, ValueError))


def test_only_variables_that_look_misspelled_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ACCEL_ACELERATOR", "ACCEL_BUILD_ACME_SUM", "ACCEL_BOX"):
        monkeypatch.setenv(name, "1")
    assert env.misspelled() == {"ACCEL_ACELERATOR": "Did you mean ACCEL_ACCELERATOR?"}


def test_scope_restores_what_was_and_what_was_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCEL_JIT", "0")
    monkeypatch.delenv("MAX_JOBS", raising=False)
    with env.scope(ACCEL_JIT=None, MAX_JOBS="3"):
        assert (env.ACCEL_JIT.get(), env.MAX_JOBS.get()) == (True, 3)
    assert os.environ["ACCEL_JIT"] == "0"
    assert "MAX_JOBS" not in os.environ


def test_nothing_else_reads_the_environment() -> None:
    reading = re.compile(r"os\.environ|os\.getenv|from os import environ")
    offenders = [
        str(path.relative_to(ROOT))
        for package in ("accelerator", "op_builder")
        for path in (ROOT / package).rglob("*.py")
        if path.name != "env.py" and reading.search(path.read_text())
    ]
    assert offenders == []


def test_documentation_table_is_current() -> None:
    document = (ROOT / "docs" / "environment.md").read_text()
    assert env.markdown_table() in document, "run: python -m op_builder.env, and paste the table"
