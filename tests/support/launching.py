"""Running the launcher, and finding processes that it leaves behind."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil

from op_builder import env
from tests.support.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_S = 600  # only a guard against hangs
TWO = ["--num_accelerators", "2"]
# Below those that Linux gives to sockets; another range for each worker of pytest-xdist.
_FIRST_PORT = 20_000 + 3000 * (int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % 3)
_COUNT = itertools.count()
CPUS = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0

PROGRAMS = ROOT / "tests" / "support" / "launch_programs"
SHOW, WAIT = str(PROGRAMS / "show.py"), str(PROGRAMS / "wait.py")


def shown(directory: Path, rank: int) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((directory / f"rank{rank}.json").read_text())
    return found


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "accelerator.launch", *arguments]


def environment(**variables: str | None) -> dict[str, str]:
    unset = dict.fromkeys(("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_SIZE", "OMP_NUM_THREADS", "MKL_NUM_THREADS"))
    settings = {"PYTHONPATH": str(ROOT), "ACCEL_ACCELERATOR": "cpu", "OMPI_ALLOW_RUN_AS_ROOT": "1"}
    return env.child_environment(**{**unset, **settings, "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", **variables})


def launch(
    arguments: Sequence[str], directory: Path, prefix: Sequence[str] = (), **variables: str | None
) -> subprocess.CompletedProcess[str]:
    """Run the launcher in a directory; no process may be left."""
    done = subprocess.run(
        [*prefix, *command(*arguments)],
        cwd=directory,
        env=environment(**variables),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert left_in(directory) == [], done.stderr
    return done


def free_port() -> int:
    """A free port outside the range that Linux uses for sockets bound to port 0."""
    while True:
        port = _FIRST_PORT + (os.getpid() + next(_COUNT)) % 3000  # other runs of the suite begin elsewhere
        with socket.socket() as free, contextlib.suppress(OSError):
            free.bind(("", port))
            return port


class Started:
    """A running launch."""

    def __init__(self, arguments: Sequence[str], directory: Path, prefix: Sequence[str] = ()) -> None:
        self.directory = directory
        self._errors = directory / "errors"

        def reset_signals() -> None:
            """Tests in a shell's background may have inherited ignored signals."""
            for number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
                signal.signal(number, signal.SIG_DFL)

        with self._errors.open("w") as errors:
            self.process = subprocess.Popen(
                [*prefix, *command(*arguments)],
                cwd=directory,
                env=environment(),
                stdout=subprocess.DEVNULL,
                stderr=errors,
                start_new_session=True,
                preexec_fn=reset_signals,
            )

    def __enter__(self) -> Started:
        return self

    def __exit__(self, *_: object) -> None:
        for process in _running_in(self.directory):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self.process.wait()

    @property
    def errors(self) -> str:
        return self._errors.read_text()

    def wait_for(self, *names: str) -> None:
        def exist() -> bool:
            assert self.process.poll() is None, self.errors
            return all((self.directory / name).exists() for name in names)

        wait_until(exist, lambda: self.errors)

    def end(self) -> int:
        return self.process.wait(timeout=TIMEOUT_S)


def left_in(directory: Path) -> list[str]:
    """Command lines of processes in that working directory; waits for them to end."""
    deadline = time.monotonic() + 60
    while (left := _running_in(directory)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return [str(process.info["cmdline"]) for process in left]


def _running_in(directory: Path) -> list[psutil.Process]:
    everything = psutil.process_iter(["cwd", "cmdline"])
    return [process for process in everything if process.info["cwd"] == str(directory)]
