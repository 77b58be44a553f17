"""Running the launcher for real, as a user does, and looking for what it leaves behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Sequence
from pathlib import Path

from op_builder import env

ROOT = Path(__file__).resolve().parents[3]
TIMEOUT_S = 120  # a guard against hangs alone
MARK = "ACCEL_TEST_MARK"

# Tells what a rank got: variables, CPUs as the kernel has them, the memory policy of its own pages.
TELL = """
import json, os, re, sys
status = open("/proc/self/status").read()
names = ("RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE LOCAL_SIZE MASTER_ADDR MASTER_PORT CUDA_VISIBLE_DEVICES "
         "OMP_NUM_THREADS TORCH_NCCL_ASYNC_ERROR_HANDLING ACCEL_LAUNCH_ID FROM_FILE OF_FIRST_HOST PATH "
         "PYTHONHASHSEED").split()
told = {name: os.environ.get(name) for name in names}
told["cpus"] = re.search(r"Cpus_allowed_list:\\s*(\\S+)", status)[1]
told["arguments"] = sys.argv[1:]
told["name"] = __name__
told["host"] = os.uname().nodename
try:
    told["policies"] = sorted({line.split()[1] for line in open("/proc/self/numa_maps")})
except OSError:
    told["policies"] = None
with open(f"rank{told['RANK']}.json", "w") as file:
    json.dump(told, file)
print("rank", told["RANK"])
"""

# Starts a child that leaves its session, says that it is there, and waits; some ranks end in a way of their own.
WAIT = """
import os, signal, subprocess, sys, time
how, rank = sys.argv[1], int(os.environ["RANK"])
if how == "stubborn" or (how == "one_fails" and rank == 0):
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
if how == "polite":
    def note(number, _frame):
        open(f"got{rank}", "w").write(signal.Signals(number).name)
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
if rank == 1 and how == "one_fails":
    open("failing", "w").close()
    sys.exit(3)
if rank == 1 and how in ("killed", "exits"):
    print("last words of the rank", file=sys.stderr, flush=True)
    if how == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    sys.exit(7)
time.sleep(600)
"""


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "accelerator.launch", *arguments]


def environment(**variables: str | None) -> dict[str, str]:
    unset = dict.fromkeys(("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_SIZE", "OMP_NUM_THREADS", "MKL_NUM_THREADS"))
    settings = {"PYTHONPATH": str(ROOT), "ACCEL_ACCELERATOR": "cpu", "OMPI_ALLOW_RUN_AS_ROOT": "1"}
    return env.child_environment(**{**unset, **settings, "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", **variables})


def launch(
    arguments: Sequence[str], directory: Path, prefix: Sequence[str] = (), **variables: str | None
) -> subprocess.CompletedProcess[str]:
    """Run to the end; nothing of it may be left."""
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


class Watch:
    """Looks at the command lines of all processes again and again, as anybody can, for a text."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._stop = threading.Event()
        self.seen: set[str] = set()
        self.looked_at: set[str] = set()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(0.002):
            for entry in Path("/proc").glob("[0-9]*/cmdline"):
                with contextlib.suppress(OSError):
                    line = entry.read_text(errors="replace").replace("\0", " ")
                    self.looked_at.add(line)
                    if self._text in line:
                        self.seen.add(line)


class Started:
    """A launch that is going on."""

    def __init__(self, arguments: Sequence[str], directory: Path, prefix: Sequence[str] = ()) -> None:
        self.mark = uuid.uuid4().hex
        self.directory = directory
        self._errors = directory / "errors"

        def heed_all() -> None:
            """Whoever runs the tests in the background may have them ignore signals."""
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
                preexec_fn=heed_all,
            )

    def __enter__(self) -> Started:
        return self

    def __exit__(self, *_: object) -> None:
        for process_id in left_of(self.mark):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process_id, signal.SIGKILL)
        self.process.wait()

    @property
    def errors(self) -> str:
        return self._errors.read_text()

    def wait_for(self, *names: str) -> None:
        deadline = time.monotonic() + TIMEOUT_S
        while not all((self.directory / name).exists() for name in names):
            assert self.process.poll() is None, self.errors
            assert time.monotonic() < deadline, self.errors
            time.sleep(0.05)

    def end(self) -> int:
        return self.process.wait(timeout=TIMEOUT_S)


def left_of(mark: str, patience_s: float = 5.0) -> list[int]:
    """Processes that inherited the mark: whoever is killed takes a moment to go."""
    deadline = time.monotonic() + patience_s
    while True:
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if f"{MARK}={mark}".encode() in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
        if not found or time.monotonic() > deadline:
            return found
        time.sleep(0.05)
