"""``python -m op_builder.report``: which ops are installed and compatible, the reasons and the remedies."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

from op_builder.command_line import reports_errors, run_main
from op_builder.system.target import require_supported


@reports_errors
def main(arguments: Sequence[str] | None = None, prog: str = "python -m op_builder.report") -> int:
    """The command line; returns the exit status: 0, or 2 for an unknown op or accelerator, and on Windows."""
    parser = argparse.ArgumentParser(
        prog=prog,
        description="Show which ops are installed and compatible, with reasons and remedies, and this machine's tools.",
        epilog=f"Example: '{prog} cpu_adam'. Exit status: 0, or 2 if an op is unknown or no accelerator can be used, "
        "such as for an unknown ACCEL_ACCELERATOR.",
    )
    parser.add_argument(
        "ops",
        nargs="*",
        metavar="OP",
        help="show the plan, commands and checks of this op: cpu_adam, CPUAdamBuilder or package.module:Builder",
    )
    parser.add_argument("--json", action="store_true", help="print JSON: one object, or one per OP; sizes are bytes")
    options = parser.parse_args(arguments)
    from rich.console import Console

    from op_builder.catalog.named import find_op
    from op_builder.report.collect import accelerator_error, explain, report
    from op_builder.report.render import print_explanation, print_report

    require_supported(sys.platform)
    console = Console(soft_wrap=False)
    specs = [find_op(name) for name in options.ops]
    # The first report of a machine compiles small programs, which takes a few seconds.
    with Console(stderr=True).status("Checking...") as status:

        def progress(name: str) -> None:
            status.update(f"Checking {name}...")

        found = list(map(explain, specs)) or [report(progress)]
    show = print_explanation if specs else print_report
    for data in found:
        if options.json:
            print(json.dumps(data, indent=2))
        else:
            show(data, console)
    error = accelerator_error()
    if error is not None:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    run_main(main)
