"""Real ranks: one process each, which runs a function of a module and writes what it returns."""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from op_builder import env

ROOT = Path(__file__).resolve().parents[2]
GUARD_S = 240  # against hangs; nothing is measured by it


@dataclass(frozen=True)
class RankResult:
    """How one rank ended: what its function returned, None where it did not; its exit status; what it wrote."""

    value: Any
    status: int
    output: str


def run_ranks(
    program: str,
    function: str,
    size: int,
    directory: Path,
    *,
    arguments: Sequence[Any] = (),
    environments: Sequence[Mapping[str, str]] = (),
    prefixes: Sequence[Sequence[str]] = (),
) -> list[RankResult]:
    """Run ``function(rank, size, directory, *arguments)`` of a module in ``size`` processes.

    Args:
        program: the module, in tests.support.
        directory: empty; the ranks meet in a file in it.
        environments: for each rank, additional variables.
        prefixes: for each rank, the beginning of its command line: what starts Python.
    """
    directory.mkdir(parents=True, exist_ok=True)
    processes = []
    for rank in range(size):
        own = dict(environments[rank]) if environments else {}
        environment = env.child_environment(PYTHONPATH=str(ROOT), OMP_NUM_THREADS="1", **own)
        asked = json.dumps([f"tests.support.{program}", function, rank, size, str(directory), list(arguments)])
        command = [*(prefixes[rank] if prefixes else ()), sys.executable, "-m", __name__, asked]
        file = (directory / f"output{rank}").open("w")
        processes.append(subprocess.Popen(command, env=environment, stdout=file, stderr=file, start_new_session=True))
        file.close()
    try:
        for process in processes:
            process.wait(timeout=GUARD_S)
    finally:
        for process in processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    return [_result(directory, rank, process.returncode) for rank, process in enumerate(processes)]


def values(results: Sequence[RankResult]) -> list[Any]:
    """What the ranks returned; fails with what they wrote where one did not."""
    for rank, result in enumerate(results):
        assert result.status == 0, f"rank {rank} ended with {result.status}:\n{result.output[-6000:]}"
    return [result.value for result in results]


def _result(directory: Path, rank: int, status: int) -> RankResult:
    value = directory / f"value{rank}"
    output = (directory / f"output{rank}").read_text(errors="replace")
    return RankResult(json.loads(value.read_text()) if value.exists() else None, status, output)


def _main(asked: str) -> None:
    program, function, rank, size, directory, arguments = json.loads(asked)
    module = importlib.import_module(program)
    value = getattr(module, function)(rank, size, directory, *arguments)
    Path(directory, f"value{rank}").write_text(json.dumps(value))


if __name__ == "__main__":
    _main(sys.argv[1])
