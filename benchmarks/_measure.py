"""What the benchmarks share: the machine, peers in separate processes, tables, the page of measurements."""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import importlib.util
import json
import os
import platform
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

DOCS = Path(__file__).parents[1] / "docs"
RESULTS = DOCS / "internals" / "measurements.md"
DEEPSPEED = ("deepspeed==0.19.8", "deepspeed")
TVM_FFI = ("apache-tvm-ffi==0.1.15.post2", "tvm_ffi")

console = Console(width=None if sys.stdout.isatty() else 120)
"""Where results go, wide enough for the tables in a file or a pipe."""
progress_console = Console(stderr=True)
"""Where progress is shown."""


@dataclasses.dataclass(frozen=True)
class Machine:
    """What a reader must know to compare figures."""

    date: str
    cpu: str
    cores: int
    memory_gib: int
    isa: str
    python: str
    torch: str
    threads: int
    load: float
    """Processes that wanted a core in the minute before: much above 0 means a noisy run."""

    def __str__(self) -> str:
        return (
            f"{self.date}, {self.cpu}, {self.cores} cores, {self.memory_gib} GiB, {self.isa}, "
            f"Python {self.python}, torch {self.torch}, {self.threads} threads, "
            f"load before the run {self.load:.1f}"
        )


def describe_machine() -> Machine:
    """The machine this runs on, now."""
    import psutil
    import torch

    from op_builder.system.cpu_isa import chosen_isa, cpu_model

    return Machine(
        date=datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        cpu=cpu_model(),
        cores=psutil.cpu_count(logical=False) or psutil.cpu_count() or 1,
        memory_gib=round(psutil.virtual_memory().total / 2**30),
        isa=chosen_isa(),
        python=platform.python_version(),
        torch=torch.__version__,
        threads=torch.get_num_threads(),
        load=os.getloadavg()[0],
    )


def interleave(
    contenders: Mapping[str, Callable[[], float]], rounds: int, advance: Callable[[], None]
) -> dict[str, list[float]]:
    """Let the contenders take turns, so that noise hits all alike.

    Args:
        contenders: by name, a function that does the work once and returns its seconds.
        rounds: turns of each, after one that is not counted.
        advance: called after every turn, to show progress.

    Returns:
        By name, the seconds of each counted turn.
    """
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(rounds + 1):
        for name, run in contenders.items():
            taken = run()
            if turn > 0:
                seconds[name].append(taken)
            advance()
    return seconds


def make_progress() -> Progress:
    """A progress bar with a description, on standard error."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=progress_console)


class PeerProcess:
    """A program in another process that answers one JSON line with one JSON line.

    Its standard error goes to ours only when it dies, cut to the last lines.
    """

    def __init__(self, command: Sequence[str | Path], environment: Mapping[str, str] | None = None) -> None:
        # A pipe that nobody reads would stop a program that tells much. close() closes it.
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self._process = subprocess.Popen(
            [str(word) for word in command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env={**os.environ, **(environment or {})},
        )

    def ask(self, **request: Any) -> dict[str, Any]:
        """Send a request, wait for its answer.

        Raises:
            RuntimeError: the peer died; the message ends with what it wrote last.
        """
        self.send(**request)
        return self.receive()

    def send(self, **request: Any) -> None:
        """Send a request whose answer :meth:`receive` waits for."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # reported where the answer is read, with the reason

    def receive(self) -> dict[str, Any]:
        """The answer to the oldest request; raises as :meth:`ask`."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._process.wait()
            self._errors.seek(0)
            raise RuntimeError("The peer process ended:\n" + "\n".join(self._errors.read().splitlines()[-15:]))
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self, timeout_s: float = 30.0) -> None:
        """End the peer by closing its input, and by force if that does not."""
        try:
            self._process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()
        self._errors.close()


def peer_python(requirement: str, module: str, given: str | None = None) -> Path:
    """An interpreter with a peer: the given one, this one, or one made for the purpose.

    The last is a virtual environment in the user's cache directory that sees this environment's
    torch, with the peer from the registry; it is made once.

    Args:
        requirement: what pip installs, ``name==version``.
        module: what it is imported as.
    """
    if given is not None:
        return Path(given)
    if importlib.util.find_spec(module) is not None:
        return Path(sys.executable)
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    directory = home / "accel-ops-benchmarks" / f"{requirement.replace('==', '-')}-py{version}"
    python = directory / "bin" / "python"
    if not (directory / "ready").exists():
        progress_console.print(f"Installing {requirement} into {directory}")
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(directory)], check=True)
        packages = directory / "lib" / f"python{version}" / "site-packages"
        (packages / "outer.pth").write_text(sysconfig.get_path("purelib") + "\n")
        install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", requirement]
        subprocess.run(install, check=True)
        (directory / "ready").touch()
    return python


def parse_with_peers(parser: argparse.ArgumentParser, known: Sequence[str]) -> argparse.Namespace:
    """The command line's arguments, ``peers`` among them: a list of names, of those that are ``known``."""
    parser.add_argument("--peers", default=",".join(known), help=f"of {', '.join(known)}; empty for none")
    arguments = parser.parse_args()
    arguments.peers = [name for name in arguments.peers.split(",") if name]
    for name in arguments.peers:
        if name not in known:
            parser.error(f"unknown peer {name!r}; choose from {', '.join(known)}")
    return arguments


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """A table for the console; all columns but the first two hold figures."""
    result = Table(title=title, title_justify="left")
    for index, column in enumerate(columns):
        result.add_column(column, justify="left" if index < 2 else "right")
    for row in rows:
        result.add_row(*row)
    return result


def markdown(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The same table as Markdown."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def write_results(section: str, text: str) -> None:
    """Replace the text between the markers of ``section`` in ``docs/internals/measurements.md``."""
    begin, end = f"<!-- {section}: begin -->\n", f"<!-- {section}: end -->\n"
    old = RESULTS.read_text()
    block = begin + text.rstrip() + "\n" + end
    if begin in old and end in old:
        before, _, rest = old.partition(begin)
        new = before + block + rest.partition(end)[2]
    else:
        new = old.rstrip() + "\n\n" + block
    RESULTS.write_text(new)
