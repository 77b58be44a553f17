"""Running the launcher, and finding processes that it leaves behind."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from op_builder import env
from tests.support.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_S = 120  # only a guard against hangs
MARK = "ACCEL_TEST_MARK"
TWO = ["--num_accelerators", "2"]
CPUS = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0

# Writes a rank's variables, its CPUs, the memory policies of its pages and the command lines of all processes.
SHOW = """
import json, os, re, sys
status = open("/proc/self/status").read()
names = ("RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE LOCAL_SIZE MASTER_ADDR MASTER_PORT CUDA_VISIBLE_DEVICES "
         "OMP_NUM_THREADS TORCH_NCCL_ASYNC_ERROR_HANDLING ACCEL_LAUNCH_ID FROM_FILE OF_FIRST_HOST PATH "
         "PYTHONHASHSEED CROSS_RANK CROSS_SIZE ACTIVATED").split()
found = {name: os.environ.get(name) for name in names}
found["cpus"] = re.search(r"Cpus_allowed_list:\\s*(\\S+)", status)[1]
found["arguments"] = sys.argv[1:]
found["name"] = __name__
found["host"] = os.uname().nodename
try:
    found["policies"] = sorted({line.split()[1] for line in open("/proc/self/numa_maps")})
except OSError:
    found["policies"] = None
found["command_lines"] = ""
for number in filter(str.isdecimal, os.listdir("/proc")):
    try:
        with open(f"/proc/{number}/cmdline", errors="replace") as file:
            found["command_lines"] += file.read()
    except OSError:
        pass  # the process has ended
with open(f"rank{found['RANK']}.json", "w") as file:
    json.dump(found, file)
print("rank", found["RANK"])
"""

# Starts a child in a session of its own, reports that it runs, and waits; some ranks end differently.
WAIT = """
import os, signal, subprocess, sys, time
how, rank = sys.argv[1], int(os.environ["RANK"])
if how == "stubborn" or (how == "one_fails" and rank == 0):
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
if how == "polite":
    def note(number, _frame):
        with open(f"got{rank}", "a") as file:
            file.write(signal.Signals(number).name)
        sys.exit(0)
    signal.signal(signal.SIGTERM, note)
    signal.signal(signal.SIGINT, note)
if how == "slow":
    def clean_up(number, _frame):
        time.sleep(1.5)
        with open(f"cleaned{rank}", "w") as file:
            file.write("up")
        sys.exit(0)
    signal.signal(signal.SIGTERM, clean_up)
subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"], start_new_session=True)
open(f"up{rank}", "w").close()
while len([name for name in os.listdir() if name.startswith("up")]) < int(os.environ["WORLD_SIZE"]):
    time.sleep(0.05)
if rank == 1 and how in ("killed", "exits", "one_fails"):
    print("last words of the rank", file=sys.stderr, flush=True)
    if how == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    sys.exit(7)
time.sleep(600)
"""


def write_scripts(directory: Path) -> None:
    (directory / "show.py").write_text(SHOW)
    (directory / "wait.py").write_text(WAIT)


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
    """Run the launcher; no process may be left."""
    mark = uuid.uuid4().hex
    done = subprocess.run(
        [*prefix, *command(*arguments)],
        cwd=directory,
        env=environment(**{**variables, MARK: mark}),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert left_of(mark) == [], done.stderr
    return done


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


class Started:
    """A running launch."""

    def __init__(self, arguments: Sequence[str], directory: Path, prefix: Sequence[str] = ()) -> None:
        self.mark = uuid.uuid4().hex
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
                env=environment(**{MARK: self.mark}),
                stdout=subprocess.DEVNULL,
                stderr=errors,
                start_new_session=True,
                preexec_fn=reset_signals,
            )

    def __enter__(self) -> Started:
        return self

    def __exit__(self, *_: object) -> None:
        for process_id in left_of(self.mark, 0):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process_id, signal.SIGKILL)
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


def left_of(mark: str, patience_s: float = 30.0) -> list[int]:
    """Ids of processes that inherited the mark; waits for them to end."""

    def has_mark(entry: Path) -> bool:
        return f"{MARK}={mark}".encode() in (entry / "environ").read_bytes().split(b"\0")

    return [int(entry.name) for entry in _left(has_mark, patience_s)]


def left_in(directory: Path, patience_s: float = 60.0) -> list[str]:
    """Command lines of processes in that working directory; waits for them to end. Marks do not pass through ssh."""
    entries = _left(lambda entry: (entry / "cwd").readlink() == directory, patience_s)
    return [(entry / "cmdline").read_text().replace("\0", " ") for entry in entries]


def _left(belongs: Callable[[Path], bool], patience_s: float) -> list[Path]:
    deadline = time.monotonic() + patience_s
    while True:
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if belongs(entry):
                    found.append(entry)
        if not found or time.monotonic() > deadline:
            return found
        time.sleep(0.05)
