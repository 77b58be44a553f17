"""``accel-ops env``: the environment variables with which other programs compile with ziglang's clang."""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
import sys
import sysconfig
from collections.abc import Sequence

from op_builder.command_line import reports_errors, run_main
from op_builder.errors import ToolchainError
from op_builder.toolchains.packaged import packaged_command


@reports_errors
def main(arguments: Sequence[str] | None = None, prog: str = "python -m op_builder.commands.compiler_env") -> int:
    """The command line; returns the exit status: 0, or 2 if something is not installed."""
    parser = argparse.ArgumentParser(
        prog=prog,
        description="Print the environment variables with which torch.compile, Triton and other programs compile with "
        'clang of the Python package ziglang. In a shell: eval "$(accel-ops env)".',
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print them as JSON")
    form.add_argument("--dockerfile", action="store_true", help="print them as lines of a Dockerfile")
    options = parser.parse_args(arguments)
    variables = compiler_variables()
    word = "ENV" if options.dockerfile else "export"
    lines = [f"{word} {name}={shlex.quote(value)}" for name, value in variables.items()]
    print(json.dumps(variables) if options.json else "\n".join(lines))
    return 0


def compiler_variables() -> dict[str, str]:
    """Names and values.

    Raises:
        ToolchainError: ziglang or the scripts of accel-ops are not installed.
    """
    if packaged_command("c++") is None:
        raise ToolchainError(f"ziglang is not installed in {sys.prefix}.", "Install it: `pip install ziglang`.")
    return {
        "CC": _script("accel-cc"),
        "CXX": _script("accel-c++"),
        # Inductor names a precompiled header with the command openssl, which small images lack.
        "TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS": "0",
    }


def _script(name: str) -> str:
    found = shutil.which(name, path=sysconfig.get_path("scripts")) or shutil.which(name)
    if found is None:
        raise ToolchainError(
            f"The program {name} is not installed in {sys.prefix}.",
            "Install accel-ops there: `pip install .` in its checkout.",
        )
    return found


if __name__ == "__main__":
    run_main(main)
