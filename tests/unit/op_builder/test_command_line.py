"""``accel-ops``: one name for every command line."""

from __future__ import annotations

import os
import re

import pytest

from op_builder import __main__ as command
from tests.support.foreign_package import python

COMMANDS = ("report", "doctor", "build", "cache", "new", "tune-aio", "env", "run", "caches", "launch")


def printed(capsys: pytest.CaptureFixture[str], *arguments: str, status: int) -> str:
    """What a command prints that ends with that status."""
    with pytest.raises(SystemExit) as ended:
        command.main(arguments)
    assert ended.value.code == status
    return "".join(capsys.readouterr())


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_explains_itself_by_the_name_that_was_used(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, name, "--help", status=0)
    assert text.startswith(f"usage: accel-ops {name} [")
    assert re.search(r"(Examples?|examples|In\s+a\s+shell):\s", text)
    assert f"    {name} " in printed(capsys, "--help", status=0)
    assert command.main([]) == 0
    assert f"    {name} " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argument", "message"), [("reprot", "Did you mean report?"), ("xyz", "'xyz'."), ("--no-such-option", "--no-such")]
)
def test_an_unknown_command_is_an_error_with_near_matches(
    argument: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in printed(capsys, argument, status=2)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no device that is always full")
@pytest.mark.parametrize("size", [4, 100_000])
def test_a_full_disk_behind_the_output_is_one_line(size: int) -> None:
    ended = python(
        "-c",
        "import os, sys\nos.dup2(os.open('/dev/full', os.O_WRONLY), 1)\n"
        "from op_builder.command_line import run_main\n"
        f"run_main(lambda: print('x' * {size}) or 0)",
    )
    assert ended.returncode == 1
    assert ended.stderr == "The output cannot be written: No space left on device.\n"


@pytest.mark.parametrize("name", ["ENOSPC", "EPIPE"])
def test_an_error_of_another_file_is_not_one_of_the_output(name: str) -> None:
    text = f"""
import errno, os
from op_builder.command_line import run_main
def main():
    print("text")
    raise OSError(errno.{name}, os.strerror(errno.{name}))
run_main(main)
"""
    ended = python("-c", text)
    assert ended.returncode == 1
    assert ended.stdout == "text\n"
    assert "Traceback" in ended.stderr
