"""``python -m accelerator.conformance``: check that an accelerator implements the whole contract, with pytest."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from op_builder.command_line import run_main

_HELP = """\
usage: python -m accelerator.conformance [--accelerator NAME] [options of pytest]

Check that an accelerator implements the whole contract. This is pytest on the suite in the package accelerator.testing:
pytest -p accelerator.testing --pyargs accelerator.testing

options:
  -h, --help            show this help
  --accelerator NAME    cpu, cuda, ... or a plug-in's name, as in ACCEL_ACCELERATOR (default: the detected one)

options of pytest, among others (pytest --help lists all):
  -k EXPRESSION         run the tests whose names match, such as -k "memory and not pinned"
  -x                    stop at the first failure
  -v                    print a line for each test
  -rs                   print why tests are skipped: they do not apply to the device
  --collect-only -q     list the tests
  --lf                  run the tests that failed last
  --junitxml FILE       write a report in JUnit's format
  -n 1                  (pytest-xdist) run in a child process: a test that ends it fails, and the others run
  -o faulthandler_timeout=SECONDS -o faulthandler_exit_on_timeout=true
                        (pytest 9) end the process with a traceback if a test takes longer

Exit status: 0 if no test failed, 1 if one failed, 4 if nothing can be checked (an unknown name, a missing package, no
device, a wrong option), 5 if no test was selected.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    options = sys.argv[1:] if arguments is None else list(arguments)
    if {"-h", "--help"} & set(options):
        print(_HELP, end="")
        return 0
    try:
        import pytest
    except ModuleNotFoundError:
        print(
            f"pytest, which runs the checks, is not installed in {sys.prefix}. "
            "Remedy: `pip install pytest pytest-xdist`.",
            file=sys.stderr,
        )
        return 4
    return int(pytest.main(["-p", "accelerator.testing", "--pyargs", "accelerator.testing", *options]))


if __name__ == "__main__":
    run_main(main)
