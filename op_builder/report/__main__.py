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
    """The command line; returns the exit status: 0, or 2 for an unknown op or on Windows."""
    parser = argparse.ArgumentParser(
        prog=prog,
        description="Show which ops are installed and compatible, with reasons and remedies, and this machine's tools.",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object; sizes are bytes")
    parser.add_argument(
        "--op",
        metavar="NAME",
        help="show one op's plan, commands and checks (cpu_adam, CPUAdamBuilder or package.module:Builder)",
    )
    options = parser.parse_args(arguments)
    from rich.console import Console

    from op_builder.report.collect import explain, find_op, report
    from op_builder.report.render import print_explanation, print_report

    require_supported(sys.platform)
    console = Console(soft_wrap=False)
    if options.op is not None:
        explanation = explain(find_op(options.op))
        if options.json:
            print(json.dumps(explanation, indent=2))
        else:
            print_explanation(explanation, console)
        return 0
    if options.json:
        print(json.dumps(report(), indent=2))
        return 0
    # The first report of a machine compiles small programs, which takes a few seconds.
    with Console(stderr=True).status("Checking...") as status:
        data = report(lambda name: status.update(f"Checking {name}..."))
    print_report(data, console)
    return 0


if __name__ == "__main__":
    run_main(main)
