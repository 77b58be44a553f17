"""``accel-ops run``: run a program whose ``torch.utils.cpp_extension`` calls build with this engine."""

from __future__ import annotations

import argparse
import os
import site
import sys
from collections.abc import Sequence

from op_builder import env
from op_builder.command_line import run_main
from op_builder.integrations.torch_extensions import START_FILE
from op_builder.system.interpreter import python


def main(arguments: Sequence[str] | None = None, prog: str = "python -m op_builder.commands.run") -> int:
    """Replace this process by Python with the program; returns only the status of an error."""
    parser = argparse.ArgumentParser(
        prog=prog,
        description="Run a Python program in which torch.utils.cpp_extension.load() and load_inline() build with the "
        "engine and the cache of accel-ops. Child processes do the same. The arguments are those of Python.",
        usage=f"{prog} [-h] [OPTION ...] (SCRIPT | -m MODULE) [ARGUMENT ...]",
    )
    given = list(sys.argv[1:] if arguments is None else arguments)
    if not given or given[0] in ("-h", "--help"):
        parser.parse_args(given)
        parser.error("name a script, or a module after -m")
    directories = [*site.getsitepackages(), site.getusersitepackages()]
    if any(os.path.exists(os.path.join(directory, START_FILE)) for directory in directories):
        sys.stdout.flush()
        program = python()
        os.execve(program, [program, *given], env.child_environment(**{env.ACCEL_CPP_EXTENSION.name: "1"}))
    reason = f"Programs would keep torch's functions, because {sys.prefix} lacks the file {START_FILE}."
    print(f"{reason}\n  Remedy: Install accel-ops there with pip.", file=sys.stderr)
    return 2


if __name__ == "__main__":
    run_main(main)
