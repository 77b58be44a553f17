"""``python -m op_builder.build``: compile ops into the cache, before they are loaded."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from op_builder import env
from op_builder.builder.inline import recipe_spec
from op_builder.cache.store import Cache
from op_builder.catalog.named import find_op
from op_builder.catalog.registry import all_specs
from op_builder.command_line import reports_errors, run_main
from op_builder.device import requested_package
from op_builder.engine import precompiled
from op_builder.errors import AccelError
from op_builder.load.lookup import Lookup
from op_builder.load.resolve import BUILD, resolve
from op_builder.paths import PREBUILT_DIRECTORY
from op_builder.plan import Binding
from op_builder.prebuild.batch import Batch, OpProgress, OpResult
from op_builder.prebuild.request import HOST_PACKAGE, variable_of
from op_builder.recipe import Recipe
from op_builder.spec import OpSpec
from op_builder.system.interpreter import isolated_command, python
from op_builder.system.target import Target, requested_target

_PIP = "import runpy\nrunpy.run_module('pip', run_name='__main__', alter_sys=True)"
_STYLES = {"built": "green", "cached": "green", "skipped": "yellow", "cancelled": "yellow", "failed": "red"}


@reports_errors
def main(arguments: Sequence[str] | None = None, prog: str = "python -m op_builder.build") -> int:
    """The command line; returns the exit status: 0, 1 if an op failed, 2 for any other error."""
    parser = argparse.ArgumentParser(
        prog=prog,
        description="Compile ops into the cache, before they are loaded.",
        epilog=f"Examples: '{prog} cpu_adam', '{prog} --all'.",
    )
    parser.add_argument(
        "ops",
        nargs="*",
        metavar="OP",
        help="op to build: cpu_adam, CPUAdamBuilder or package.module:Builder",
    )
    parser.add_argument("--all", action="store_true", help="build every op that is compatible with this machine")
    parser.add_argument("--force", action="store_true", help="compile ops that are in the cache, too")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "--namespace",
        metavar="NAME",
        help="build a library that registers the ops in torch.ops.NAME when it is opened, for programs without Python; "
        "the summary names the file",
    )
    parser.add_argument(
        "--precompile",
        action="store_true",
        help="build no op, but precompile torch/extension.h (with GCC; 600 to 800 MB in the cache) with flags of the "
        "named ops or without flags; ops that include it first then compile faster",
    )
    parser.add_argument(
        "--wheel",
        metavar="DIR",
        help="build the wheel of the project in the current directory, with the ops in it, and put it into DIR",
    )
    parser.add_argument(
        "--target",
        metavar="PLATFORM",
        help="the platform of the wheel: linux_x86_64, linux_aarch64 or macosx_arm64; compiled by the package ziglang "
        f"(default: {env.ACCEL_BUILD_TARGET.name}, or this machine)",
    )
    options = parser.parse_args(arguments)
    if options.target is not None and options.wheel is None:
        parser.error("--target needs --wheel; ops for another platform cannot be loaded here")
    if options.wheel is not None and (options.namespace or options.precompile or options.force or options.json):
        parser.error("--wheel cannot be combined with other options than --all and --target")
    if not options.precompile and bool(options.ops) == options.all:
        parser.error("name the ops to build, or use --all")
    if options.namespace is not None and (len(options.ops) != 1 or options.precompile):
        parser.error("--namespace needs one op; libraries cannot share a namespace")
    # An accelerator that the environment names need not be present.
    target = requested_target(options.target) if options.wheel is not None else None
    package = requested_package()[1] if target is None else HOST_PACKAGE
    specs = all_specs(package) if options.all else [find_op(name, package) for name in options.ops]
    if options.wheel is not None:
        return _build_wheel(options.wheel, target, [] if options.all else specs)
    if options.precompile:
        return _precompile(specs, is_all=options.all)
    names = [spec.name for spec in specs]
    with _display(names) as report:
        required = [] if options.all else names
        batch = Batch(Cache(), required, options.force, report, with_kernels=True, namespace=options.namespace)
        results = batch.build_all(specs)
    failed = any(result.status == "failed" for result in results)
    if options.json:
        print(json.dumps({"ok": not failed, "ops": [asdict(result) for result in results]}, indent=2))
    else:
        _print_summary(results)
    return int(failed)


def _build_wheel(directory: str, target: Target | None, specs: Sequence[OpSpec]) -> int:
    """Have pip build the project's wheel with these ops, or with all; returns the exit status."""
    if not Path("pyproject.toml").is_file():
        raise AccelError(f"No pyproject.toml in {Path.cwd()}.", "Run this in the directory of the ops' project.")
    if importlib.util.find_spec("pip") is None:
        raise AccelError(f"pip is not installed in {sys.prefix}.", f"Install it: `{python()} -m ensurepip`.")
    switches = {variable_of(spec): "1" for spec in specs}
    switches[env.ACCEL_BUILD_OPS.name] = "0" if specs else "1"
    environment = env.child_environment(
        **{**switches, env.ACCEL_BUILD_TARGET.name: target.name if target is not None else None}
    )
    with tempfile.TemporaryDirectory(prefix="accel-ops-wheel-") as made:
        command = isolated_command(_PIP, "wheel", "--no-deps", "--wheel-dir", made, ".")
        status = subprocess.run(command, env=environment, check=False).returncode
        for wheel in Path(made).glob("*.whl"):
            if not any(f"/{PREBUILT_DIRECTORY}/" in name for name in zipfile.ZipFile(wheel).namelist()):
                raise AccelError(
                    f"The project's build backend put no op into {wheel.name}, so the wheel was removed.",
                    "Use the backend accel_ops_build, as the pyproject.toml of `accel-ops new` does.",
                )
            os.makedirs(directory, exist_ok=True)
            shutil.move(wheel, os.path.join(directory, wheel.name))
            print(f"Built {os.path.join(directory, wheel.name)}")
    return status


def _precompile(specs: Sequence[OpSpec], *, is_all: bool) -> int:
    """Precompile ``torch/extension.h`` for the flags of each op, or for no flags; returns the exit status."""
    cache = Cache()
    lookups = (Lookup(spec, cache, to_load=False) for spec in specs if spec.binding.uses_torch_cxx)
    chosen = {lookup.spec.name: lookup for lookup in lookups if not next(resolve(lookup, (BUILD,))).rejection}
    skipped = ", ".join(spec.name for spec in specs if spec.name not in chosen)
    if skipped and not is_all:
        raise AccelError(
            f"Nothing to precompile for {skipped}: it does not include torch/extension.h or cannot be built here.",
            "Run `accel-ops build --precompile` without ops, or pass ops whose BINDING is Binding.TORCH.",
        )
    plain = {"plain": Lookup(recipe_spec(Recipe("plain", Binding.TORCH, (), {"plain.cpp": ""})), cache)}
    for name, lookup in (chosen or plain).items():
        plan, _, toolset = lookup.to_build()
        entry = precompiled.precompile(plan, toolset, cache)
        print(f"Precompiled torch/extension.h for {name}: {entry.directory}")
    return 0


@contextmanager
def _display(ops: list[str]) -> Iterator[OpProgress]:
    """A progress bar per op on a terminal; one line per step elsewhere."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    if not console.is_terminal:

        def print_step(op: str, done: int, total: int, step: str) -> None:
            count = f"[{done}/{total}] " if total else ""
            console.print(f"{op}: {count}{step}", markup=False, highlight=False)

        yield print_step
        return
    columns = (TextColumn("{task.description}"), BarColumn(24), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, TextColumn("{task.fields[step]}", style="dim"), console=console) as progress:
        tasks: dict[str, Any] = {}

        def report(op: str, done: int, total: int, step: str) -> None:
            if op not in tasks:
                tasks[op] = progress.add_task(op.ljust(max(map(len, ops))), total=None, step="")
            if total:
                progress.update(tasks[op], completed=done, total=total)
            progress.update(tasks[op], step=step)
            if step in _STYLES:  # the last step
                progress.stop_task(tasks[op])
                if progress.tasks[tasks[op]].total is None:
                    progress.update(tasks[op], total=0)  # stops the pulsing bar

        yield report


def _print_summary(results: list[OpResult]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for heading in ("op", "result", "seconds", ""):
        table.add_column(heading)
    for result in results:
        note = Text("see below" if result.status == "failed" else result.message)
        table.add_row(result.op, Text(result.status, _STYLES[result.status]), f"{result.seconds:.1f}", note)
    Console().print(table)
    for result in results:  # below the table, which would fold a path and a message of many lines
        if result.path:
            print(f"{result.op}: {result.path}")
        if result.status == "failed":
            print(f"{result.op}: {result.message}\n")


if __name__ == "__main__":
    run_main(main, "The compilers were stopped and incomplete builds removed.")
