"""``accel-ops run``: run a program whose ``torch.utils.cpp_extension`` calls build with this engine."""

from __future__ import annotations

import argparse
import os
import runpy
import sys
import traceback
from collections.abc import Sequence

from op_builder.command_line import run_main
from op_builder.integrations import torch_extensions


def main(arguments: Sequence[str] | None = None, prog: str = "python -m op_builder.run") -> int:
    """Run the program in this process; its exit status is that of the command."""
    parser = argparse.ArgumentParser(
        prog=prog,
        description="Run a Python program in which torch.utils.cpp_extension.load() and load_inline() build with the "
        "engine and the cache of accel-ops. Child processes do the same.",
        usage=f"{prog} [-h] (SCRIPT | -m MODULE) [ARGUMENT ...]",
    )
    parser.add_argument("-m", dest="is_module", action="store_true", help="run a module, as python -m does")
    parser.add_argument("program", metavar="SCRIPT", help="the script, or the module after -m, and its arguments")
    given = list(sys.argv[1:] if arguments is None else arguments)
    # argparse would drop a "--" of the program's own arguments.
    own = next((count for count, word in enumerate(given, 1) if not word.startswith("-")), len(given))
    chosen = parser.parse_args(given[:own])
    if not chosen.is_module and not os.path.exists(chosen.program):
        parser.error(f"there is no file {chosen.program}")
    torch_extensions.on()
    torch_extensions.warn_if_not_in_children()
    sys.argv[:] = [chosen.program, *given[own:]]
    try:
        if chosen.is_module:
            sys.path[0:0] = [os.getcwd()]
            runpy.run_module(chosen.program, run_name="__main__", alter_sys=True)
        else:
            # As Python does: follow links to a script, and make __file__ absolute. runpy adds a directory itself.
            if not os.path.isdir(chosen.program):
                sys.path[0:0] = [os.path.dirname(os.path.realpath(chosen.program))]
            runpy.run_path(os.path.abspath(chosen.program), run_name="__main__")
    except (Exception, KeyboardInterrupt) as error:
        if _has_no_program(error):
            parser.error(str(error))
        # The program's own error, which run_main() must not handle.
        sys.excepthook(type(error), error, error.__traceback__)
        return 130 if isinstance(error, KeyboardInterrupt) else 1
    return 0


def _has_no_program(error: BaseException) -> bool:
    """Whether ``runpy`` raised an error because it cannot find or read the program: no frame is the program's."""
    own = (globals(), vars(runpy))
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    is_own = all(any(frame.f_globals is each for each in own) for frame in frames)
    return is_own and isinstance(error, ImportError | OSError)


if __name__ == "__main__":
    run_main(main)
