"""Real ranks: one process each, which runs a function of a module and writes what it returns."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import gc
import importlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from op_builder import env

ROOT = Path(__file__).resolve().parents[2]
GUARD_S = 1200  # against hangs; ranks may compile on a busy machine


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
    namespaces: Sequence[str] = (),
    by_gloo: bool = False,
) -> list[RankResult]:
    """Run ``function(rank, size, directory, *arguments)`` of a module in ``size`` processes.

    Args:
        program: the module, in tests.support.
        directory: empty; the ranks meet in a file in it.
        environments: for each rank, additional variables.
        namespaces: for each rank, the name of its network namespace; by default that of this process.
        by_gloo: the function uses torch's backend "gloo" and destroys its group: a rank that succeeds ends at once.
    """
    directory.mkdir(parents=True, exist_ok=True)
    orders = []
    for rank in range(size):
        own = dict(environments[rank]) if environments else {}
        variables = env.child_environment(PYTHONPATH=_search_path(), OMP_NUM_THREADS="1", **own)
        call = [f"tests.support.{program}", function, rank, size, str(directory), list(arguments), by_gloo]
        order = {"call": call, "variables": variables, "output": str(directory / f"output{rank}")}
        orders.append({**order, "namespace": namespaces[rank] if namespaces else ""})
    return [_result(directory, rank, status) for rank, status in enumerate(_forking_process().run(orders))]


def _search_path() -> str:
    # On another platform, the packages are not next to the tests.
    return os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))


class _ForkingProcess:
    """A process that has imported torch and forks the ranks: importing it takes each rank two seconds."""

    def __init__(self) -> None:
        variables = env.child_environment(PYTHONPATH=_search_path(), OMP_NUM_THREADS="1")
        command = [sys.executable, "-m", __name__]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, env=variables, stdin=pipe, stdout=pipe, text=True)
        atexit.register(self._process.communicate)

    def run(self, orders: Sequence[Mapping[str, Any]]) -> list[int]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(orders) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, "the process that forks the ranks has ended"
        statuses: list[int] = json.loads(answer)
        return statuses


@functools.cache
def _forking_process() -> _ForkingProcess:
    return _ForkingProcess()


def _fork_ranks() -> list[Any] | None:
    """Serve the requests on standard input; in a rank, return its call."""
    for line in sys.stdin:
        orders = json.loads(line)
        # But no op: whether a rank can load one is its own affair. The first DTensor or optimizer imports dynamo.
        for module in (orders[0]["call"][0], "torch._dynamo"):
            importlib.import_module(module)
        gc.freeze()  # or each rank would look through, and so copy, all of torch to collect its garbage
        ranks = []
        for order in orders:
            rank = os.fork()
            if rank == 0:
                _become_rank(order)
                call: list[Any] = order["call"]
                return call
            ranks.append(rank)
        guard = threading.Timer(GUARD_S, _kill, [ranks])
        guard.start()
        statuses = [os.waitstatus_to_exitcode(os.waitpid(rank, 0)[1]) for rank in ranks]
        guard.cancel()
        guard.join()
        print(json.dumps(statuses), flush=True)
    return None


def _kill(ranks: Sequence[int]) -> None:
    for rank in ranks:
        with contextlib.suppress(ProcessLookupError):  # it has ended already
            os.killpg(rank, signal.SIGKILL)


def _become_rank(order: Mapping[str, Any]) -> None:
    os.setsid()
    os.environ.clear()
    os.environ.update(order["variables"])
    if order["namespace"]:
        namespace = os.open(f"/run/netns/{order['namespace']}", os.O_RDONLY)
        assert ctypes.CDLL(None).setns(namespace, 0) == 0
        os.close(namespace)
    output = os.open(order["output"], os.O_WRONLY | os.O_CREAT)
    for descriptor, place in ((os.open(os.devnull, os.O_RDONLY), 0), (output, 1), (output, 2)):
        os.dup2(descriptor, place)


def values(results: Sequence[RankResult]) -> list[Any]:
    """What the ranks returned; fails with what they wrote where one did not."""
    for rank, result in enumerate(results):
        assert result.status == 0, f"rank {rank} ended with {result.status}:\n{result.output[-6000:]}"
    return [result.value for result in results]


def _result(directory: Path, rank: int, status: int) -> RankResult:
    value = directory / f"value{rank}"
    output = (directory / f"output{rank}").read_text(errors="replace")
    return RankResult(json.loads(value.read_text()) if value.exists() else None, status, output)


def _run_call(
    program: str, function: str, rank: int, size: int, directory: str, arguments: list[Any], by_gloo: bool
) -> None:
    module = importlib.import_module(program)
    value = getattr(module, function)(rank, size, directory, *arguments)
    Path(directory, f"value{rank}").write_text(json.dumps(value))
    if by_gloo:
        # As the interpreter ends, a thread of gloo that then drops a tensor aborts the process (docs/distributed.md).
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


if __name__ == "__main__":
    if (call := _fork_ranks()) is not None:
        _run_call(*call)
