"""``accel-ops``: one name for every command line."""

from __future__ import annotations

import pytest

from op_builder import __main__ as command
from tests.support.foreign_package import python

COMMANDS = ("report", "doctor", "build", "cache", "new", "tune-aio", "env", "launch")


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_explains_itself_by_the_name_that_was_used(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        command.main([name, "--help"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith(f"usage: accel-ops {name} [")


def test_the_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command.main(["--help"])
    out = capsys.readouterr().out
    assert all(f"    {name} " in out for name in COMMANDS)


@pytest.mark.parametrize("arguments", [[], ["reprot"], ["--no-such-option"]])
def test_a_command_that_does_not_exist_is_an_error(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        command.main(arguments)
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith("usage: accel-ops [")


def test_python_runs_it_as_a_module() -> None:
    done = python("-m", "op_builder", "report", "--op", "no_such_op")
    assert done.returncode == 2
    assert "no_such_op" in done.stderr
