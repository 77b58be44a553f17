"""The options of ``accel-launch``, each in both spellings: ``--a_b`` and ``--a-b``."""

from __future__ import annotations

import argparse
import math
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from accelerator.launch.job import DEFAULT_PORT, LAUNCHERS
from accelerator.launch.processes import LEVELS
from op_builder.command_line import number
from op_builder.messages import did_you_mean

FORMATS = ("text", "json", "taskset", "vllm")

_EPILOG = """examples:
  accel-launch --bind_cores_to_rank train.py          one rank per NUMA node, each on its own cores
  accel-launch --num_accelerators 2 --module my.train --steps 10
  accel-launch --hostfile hosts --include a:0,1@b train.py
  accel-launch --hostfile hosts --launcher openmpi --dry_run train.py
  accel-launch --show_topology

Exit status: that of the first failing rank (128 plus the signal number if a signal ended it),
130 after Ctrl-C, 2 if nothing was started. See also docs/launcher.md."""


# What DeepSpeed's command takes beyond these options: names of launchers, and options with what to use instead.
_SAME_LAUNCHER = {"pdsh": "ssh", "mvapich": "mpich"}
_INSTEAD = {
    "--save_pid": "no file is written; the process that you start is the launcher, and a signal to it ends all ranks",
    "--autotuning": "run DeepSpeed's own command to tune a configuration",
    **dict.fromkeys(
        ("--elastic_training", "--min_elastic_nodes", "--max_elastic_nodes"),
        "use --max_restarts; the number of hosts does not change",
    ),
}

_AT_LEAST_ONE = number("a whole number of at least 1, or -1 for all", 1, math.inf)
_INDEX = number("a whole number of at least 0", 0, math.inf)
_PORT = number("a port, 1 to 65535", 1, 65535)
_SECONDS = number("a number of seconds", 1e-3, 1e6, float)


def _unless(word: str, meaning: Any, convert: Callable[[str], Any]) -> Callable[[str], Any]:
    """A converter for an option's value that gives ``word``, one of DeepSpeed's, its meaning."""
    return lambda text: meaning if text == word else convert(text)


_COUNT = _unless("-1", None, _AT_LEAST_ONE)


class _Parser(argparse.ArgumentParser):
    """Adds spellings of options, and suggestions."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.names = ["--help"]

    def group(self, title: str) -> Callable[..., None]:
        """Add a section of the help; returns a function that adds an option; the help shows one spelling of it."""
        section = self.add_argument_group(title)

        def add(name: str, *aliases: str, **settings: Any) -> None:
            self.names += [name, *aliases]
            shown = [alias for alias in aliases if alias[1] != "-"] + [name]
            action = section.add_argument(*shown, **settings)
            spellings = {alias.replace("_", dash) for alias in (name, *aliases) for dash in "-_"} - set(shown)
            if spellings:
                settings |= {"dest": action.dest, "default": argparse.SUPPRESS, "help": argparse.SUPPRESS}
                self.add_argument(*sorted(spellings), **settings)

        return add

    def error(self, message: str) -> NoReturn:
        unknown = message.removeprefix("unrecognized arguments: ")
        if unknown != message:
            name = unknown.split()[0].partition("=")[0]
            spelling = name.replace("-", "_").replace("__", "--", 1)
            if spelling in _INSTEAD:
                super().error(f"{name} is not supported: {_INSTEAD[spelling]}")
            message = f"unknown option {name}. {did_you_mean(spelling, self.names, common='--')}".rstrip()
        super().error(message)


def make_parser(prog: str = "accel-launch") -> _Parser:
    """The command line."""
    parser = _Parser(
        prog=prog,
        usage=f"{prog} [options] script.py [its own arguments]",
        description="Start one process per accelerator or NUMA node, on one or several hosts, bound to cores.\n"
        "All options may be written with '-' instead of '_'.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.group("ranks and hosts")
    add("--num_accelerators", "--num_gpus", "--nproc_per_node", type=_COUNT, metavar="N",
        help="ranks per host (default, and -1: its accelerators, or its NUMA nodes on CPUs)")  # fmt: skip
    add("--hostfile", "-H", type=Path, metavar="FILE", help="file with a line 'name slots=N' per host")
    add("--include", "-i", metavar="HOSTS", help="use only these hosts and slots: a:0,1@b")
    add("--exclude", "-e", metavar="HOSTS", help="use all but these")
    add("--num_nodes", "--nnodes", type=_COUNT, metavar="N",
        help="use the first N hosts of the hostfile (-1: all); without one, N hosts run this command")  # fmt: skip
    add("--node_rank", type=_unless("-1", 0, _INDEX), default=0, metavar="I", help="index of this host")
    add("--no_ssh", action="store_true",
        help="every host of the hostfile runs this command, with its own --node_rank")  # fmt: skip
    add("--force_multi", action="store_true", help="use the launcher for several hosts also for one")
    add("--master_addr", metavar="NAME", help="address of the host with rank 0 (default: the first host)")
    add("--master_port", type=_PORT, metavar="PORT",
        help=f"port of rank 0 (default: {DEFAULT_PORT}; with torchrun on one host, any free port)")  # fmt: skip

    add = parser.group("binding")
    add("--bind_cores_to_rank", action="store_true", help="bind each rank to its own cores")
    add("--bind_core_list", metavar="CPUS",
        help="use only these CPUs, such as 0-51,56-107; implies --bind_cores_to_rank")  # fmt: skip

    add = parser.group("launch")
    add("--launcher", type=str.lower, choices=(*LAUNCHERS, *_SAME_LAUNCHER),
        help="default: torchrun for one host, ssh for several; pdsh means ssh, and mvapich mpich")  # fmt: skip
    add("--launcher_args", type=shlex.split, default=(), metavar="ARGS",
        help="options for ssh, mpirun or srun, such as '-p 2222'")  # fmt: skip
    add("--ssh_port", type=_PORT, metavar="PORT", help="port of ssh on the other hosts")
    add("--venv_script", type=Path, metavar="FILE", help="activate an environment on the other hosts (ssh)")
    add("--module", "-m", action="store_true", help="the program is a module, as for python -m")
    add("--no_python", action="store_true", help="the program is not a Python script")
    add("--no_local_rank", action="store_true", help="no effect: the program never gets an option --local_rank")
    add("--no_ssh_check", action="store_true", help="no effect: ssh is never tried before the launch")
    add("--log_dir", "--enable_each_rank_log", type=_unless("None", None, Path), metavar="DIR",
        help="also write the output of each rank to files in DIR")  # fmt: skip
    add("--max_restarts", type=_INDEX, default=0, metavar="N", help="restart all ranks up to N times after a failure")
    add("--grace_period", type=_SECONDS, default=10.0, metavar="S",
        help="seconds between SIGTERM and SIGKILL (default: 10)")  # fmt: skip

    add = parser.group("information")
    add("--log_level", choices=LEVELS, default="info", help="least important message that is printed (default: info)")
    add("--quiet", "-q", action="store_true", help="the same as --log_level error")
    add("--dry_run", action="store_true", help="print the commands and bindings without running them")
    add("--show_topology", action="store_true", help="draw this machine with the ranks on it")
    add("--format", choices=FORMATS,
        help="print the topology as text or JSON, or the bindings alone, for taskset or vLLM")  # fmt: skip
    add("--json", action="store_const", dest="format", const="json", help="the same as --format json")
    add("--host_job", help=argparse.SUPPRESS)  # a driver passes the job of one host
    parser.add_argument("program", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return parser


def parse(arguments: Sequence[str], prog: str = "accel-launch") -> argparse.Namespace:
    """The options, with ``program``, the list of the program and its arguments."""
    parser = make_parser(prog)
    options = parser.parse_args(arguments)
    if options.program[:1] == ["--"]:
        del options.program[0]
    if options.module and options.no_python:
        parser.error("--module and --no_python cannot be used together")
    if options.format and not options.show_topology:
        parser.error(f"--format {options.format} requires --show_topology")
    if not options.program and not options.show_topology:
        parser.error("no script was given")
    nodes = options.num_nodes or 1
    if options.node_rank >= nodes and options.node_rank > 0 and not (options.no_ssh and options.hostfile):
        parser.error(f"--node_rank {options.node_rank}: expected at most {nodes - 1} with --num_nodes {nodes}")
    if options.launcher == "pdsh" and options.launcher_args:
        parser.error("--launcher pdsh uses ssh without pdsh; use --launcher ssh, with ssh's options in --launcher_args")
    if options.no_ssh and options.launcher not in (None, "torchrun"):
        parser.error("--no_ssh and --launcher cannot be used together")
    options.launcher = _SAME_LAUNCHER.get(options.launcher, options.launcher)
    options.log_level = "error" if options.quiet else options.log_level
    options.bind_cores_to_rank |= options.bind_core_list is not None
    return options
