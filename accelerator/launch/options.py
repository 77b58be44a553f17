"""The options of ``accel-launch``, each in both spellings: ``--a_b`` and ``--a-b``."""

from __future__ import annotations

import argparse
import difflib
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from accelerator.launch.job import DEFAULT_PORT, LAUNCHERS, split_arguments

_EXAMPLES = """examples:
  accel-launch --bind_cores_to_rank train.py          one worker for each NUMA node, each on its own cores
  accel-launch --num_accelerators 2 --module my.train --steps 10
  accel-launch --hostfile hosts --include a:0,1@b train.py
  accel-launch --hostfile hosts --launcher openmpi --dry_run train.py
  accel-launch --show_topology

Exit status: that of the first rank that fails (128 and the signal's number where a signal ended it),
130 after Ctrl-C, 2 where nothing was started. The page docs/launcher.md has the rest."""


def _number(expected: str, is_right: Callable[[float], bool], kind: type = int) -> Callable[[str], Any]:
    """A type for an option whose value is a number."""

    def convert(text: str) -> Any:
        try:
            value = kind(text)
        except ValueError:
            value = math.nan
        if not is_right(value):
            raise argparse.ArgumentTypeError(f"expected {expected}, not {text!r}")
        return value

    return convert


_COUNT = _number("a whole number of at least 1", lambda value: value >= 1)
_INDEX = _number("a whole number of at least 0", lambda value: value >= 0)
_PORT = _number("a port, 1 to 65535", lambda value: 0 < value < 65536)
_SECONDS = _number("a number of seconds", lambda value: 0 < value < 1e6, float)


def _slots(text: str) -> tuple[int, ...]:
    return tuple(int(slot) for slot in text.split(","))


class _Parser(argparse.ArgumentParser):
    """Knows several spellings of options, near matches, and where the program's own arguments begin."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        # By spelling: what help calls the option, and whether a value follows.
        self._spellings = {"-h": ("-h", False), "--help": ("--help", False)}

    def option(self, name: str, *aliases: str, group: argparse._ArgumentGroup | None = None, **settings: Any) -> None:
        """Add an option by its name with ``_``; ``-`` does as well, and so do aliases."""
        (group or self).add_argument(f"--{name}", **settings)
        takes_value = settings.get("action") != "store_true"
        for spelling in (name, *aliases):
            for written in {spelling, spelling.replace("_", "-")}:
                self._spellings[f"--{written}"] = (f"--{name}", takes_value)

    def split(self, arguments: Sequence[str]) -> tuple[list[str], list[str]]:
        """This launcher's own arguments, in the spelling of the help, and the program with its."""
        own: list[str] = []
        index = 0
        while index < len(arguments) and arguments[index].startswith("-") and arguments[index] != "-":
            if arguments[index] == "--":
                index += 1
                break
            name, equals, value = arguments[index].partition("=")
            canonical, takes_value = self._spellings.get(name, (name, False))
            own.append(f"{canonical}{equals}{value}")
            index += 1
            if takes_value and not equals and index < len(arguments):
                own[-1] += f"={arguments[index]}"  # a value may begin with "-": --launcher_args "-p 2222"
                index += 1
        return own, list(arguments[index:])

    def error(self, message: str) -> NoReturn:
        unknown = message.removeprefix("unrecognized arguments: ")
        if unknown != message:
            name = unknown.split()[0].partition("=")[0]
            near = difflib.get_close_matches(name, self._spellings, 1)
            message = f"there is no option {name}" + (f"; did you mean {self._spellings[near[0]][0]}?" if near else "")
        super().error(message)


def make_parser() -> _Parser:
    """The command line."""
    parser = _Parser(
        prog="accel-launch",
        usage="accel-launch [options] script.py [its own arguments]",
        description="Start a program once for each accelerator or NUMA node, on one machine or many, bound to cores.\n"
        "All options may be written with '-' instead of '_'.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    ranks = parser.add_argument_group("how many ranks, and where")
    parser.option(
        "num_accelerators", "num_gpus", "nproc_per_node", group=ranks, type=_COUNT, metavar="N",
        help="ranks on each host; default: its accelerators, on CPUs its NUMA nodes with cores",
    )  # fmt: skip
    parser.option("hostfile", group=ranks, type=Path, metavar="FILE", help="hosts, a line 'name slots=N' for each")
    parser.option("include", group=ranks, metavar="HOSTS", help="use these hosts and slots alone: a:0,1@b")
    parser.option("exclude", group=ranks, metavar="HOSTS", help="use all but these")
    parser.option(
        "num_nodes", "nnodes", group=ranks, type=_COUNT, metavar="N",
        help="the first N hosts of the hostfile; without one: N hosts run this very command",
    )  # fmt: skip
    parser.option("node_rank", group=ranks, type=_INDEX, default=0, metavar="I", help="which of these this host is")
    parser.option("master_addr", group=ranks, metavar="NAME", help="where rank 0 runs; default: the first host")
    parser.option(
        "master_port", group=ranks, type=_PORT, metavar="PORT",
        help=f"where rank 0 listens; default: {DEFAULT_PORT}, but by torchrun on one host any that is free",
    )  # fmt: skip

    binding = parser.add_argument_group("binding")
    parser.option("bind_cores_to_rank", group=binding, action="store_true", help="give each rank cores of its own")
    parser.option(
        "bind_core_list", group=binding, metavar="CPUS",
        help="deal out these CPUs, such as 0-51,56-107, and leave the others to daemons; implies the former",
    )  # fmt: skip

    how = parser.add_argument_group("how")
    parser.option("launcher", group=how, choices=LAUNCHERS, help="default: torchrun for one host, ssh for many")
    parser.option(
        "launcher_args", group=how, type=split_arguments, default=(), metavar="ARGS",
        help="for ssh, mpirun or srun itself, such as '-p 2222'",
    )  # fmt: skip
    parser.option("module", group=how, action="store_true", help="the program is a module, as for python -m")
    parser.option("no_python", group=how, action="store_true", help="the program is no Python script")
    parser.option("log_dir", group=how, type=Path, metavar="DIR", help="keep what each rank writes here, too")
    parser.option(
        "max_restarts", group=how, type=_INDEX, default=0, metavar="N", help="start again N times after a failure"
    )
    parser.option(
        "grace_period", group=how, type=_SECONDS, default=10.0, metavar="S",
        help="seconds between telling ranks to end and ending them (default 10)",
    )  # fmt: skip

    look = parser.add_argument_group("only look")
    parser.option("dry_run", group=look, action="store_true", help="print every command and binding; run nothing")
    parser.option("show_topology", group=look, action="store_true", help="draw this machine, and what ranks would get")
    parser.option("json", group=look, action="store_true", help="with --show_topology: as data")

    # What a driver tells the launcher of one host.
    kinds = {"slots": int, "chosen": _slots, "launch": str, "address": str, "devices": str}
    for name, kind in kinds.items():
        parser.option(f"host_{name}", type=kind, help=argparse.SUPPRESS)
    return parser


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The options, with ``program``, the list of the program and its arguments."""
    parser = make_parser()
    own, program = parser.split(arguments)
    options = parser.parse_args(own)
    options.program = program
    if options.module and options.no_python:
        parser.error("--module and --no_python exclude each other")
    if options.json and not options.show_topology:
        parser.error("--json goes with --show_topology")
    if not program and not options.show_topology:
        parser.error("which script? Nothing follows the options")
    if options.bind_core_list is not None:
        options.bind_cores_to_rank = True
    if options.node_rank and options.node_rank >= (options.num_nodes or 1):
        parser.error(f"--node_rank {options.node_rank}: with --num_nodes {options.num_nodes or 1} the last is "
                     f"{(options.num_nodes or 1) - 1}")  # fmt: skip
    return options
