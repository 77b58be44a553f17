"""``accel-ops doctor``: what does not work on this machine, and what to do about it."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

from op_builder.command_line import run_main


def main(arguments: Sequence[str] | None = None, prog: str = "python -m op_builder.report.doctor") -> int:
    """The command line; returns the exit status: 0, 1 if a named op does not work, 2 for an unknown op."""
    parser = argparse.ArgumentParser(
        prog=prog,
        description="List what does not work on this machine, with the reason and a remedy.",
        epilog="Exit status: 1 if a named op does not work, 2 for an unknown op, otherwise 0.",
    )
    parser.add_argument(
        "ops", nargs="*", metavar="OP", help="check these ops: cpu_adam, CPUAdamBuilder or package.module:Builder"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(arguments)
    # Imported here so that --help is quick.
    from op_builder.errors import UnknownOpError
    from op_builder.report.collect import diagnosis

    try:
        found = diagnosis(options.ops)
    except UnknownOpError as error:
        print(error, file=sys.stderr)
        return 2
    if options.json:
        print(json.dumps(found, indent=2))
    else:
        working, failing = found["working"], found["problems"]
        print(f"Working: {', '.join(working) or 'no op'}.")
        for problem in failing:
            print(f"\n{problem['name']}: {problem['reason']}")
            if problem["remedy"]:
                print(f"  Remedy: {problem['remedy']}")
        if not failing:
            print("No problems found.")
    return 1 if options.ops and found["problems"] else 0


if __name__ == "__main__":
    run_main(main)
