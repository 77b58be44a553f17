"""``accel-ops`` and ``python -m op_builder``: the project's command lines by one name."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import NamedTuple, NoReturn

from op_builder._version import __version__
from op_builder.command_line import run_main
from op_builder.messages import did_you_mean


class _Command(NamedTuple):
    module: str  # has main(arguments, prog)
    help: str


_COMMANDS = {
    "report": _Command("op_builder.report.__main__", "show what is installed, what works here, and why not"),
    "doctor": _Command(
        "op_builder.report.doctor", "list what does not work here, or where a library or wheel can load"
    ),
    "build": _Command("op_builder.build", "compile ops ahead of time, into the cache"),
    "cache": _Command("op_builder.commands.cache", "list, verify, prune, export and import built ops"),
    "new": _Command("op_builder.commands.new", "create a package with a native op of your own"),
    "tune-aio": _Command("op_builder.tune_aio", "find the fastest async_io settings for a disk"),
    "env": _Command("op_builder.commands.compiler_env", "print settings for torch.compile with ziglang"),
    "run": _Command("op_builder.commands.run", "run a program on this engine, or list the compilers that it starts"),
    "caches": _Command("op_builder.commands.caches", "list the caches of JIT compilers, and what moves them"),
    "launch": _Command("accelerator.launch.command_line", "start a program on each accelerator, on one host or many"),
}


def run() -> NoReturn:
    """The console script."""
    run_main(main)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command with the rest of the arguments; return its exit status."""
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = argparse.ArgumentParser(
        prog="accel-ops",
        description="Build, inspect and manage native ops for PyTorch.",
        epilog="'accel-ops COMMAND --help' explains a command.",
    )
    parser.add_argument("--version", action="version", version=f"accel-ops {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    for name, command in _COMMANDS.items():
        commands.add_parser(name, help=command.help, add_help=False)
    if not arguments:
        parser.print_help()
        return 0
    # The command parses what follows its name.
    name = arguments[0]
    if not name.startswith("-") and name not in _COMMANDS:
        parser.error(f"unknown command {name!r}. {did_you_mean(name, _COMMANDS)}".rstrip())
    parser.parse_args([name])
    status: int = import_module(_COMMANDS[name].module).main(arguments[1:], prog=f"accel-ops {name}")
    return status


if __name__ == "__main__":
    run()
