"""A place for one contender and one case: sources, a cache, a PATH with counted compilers; and what was observed."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

from benchmarks.torture.contenders import Contender, clean_environment
from op_builder.messages import counted

T = TypeVar("T")

HERE = Path(__file__).parent
# A load takes seconds; one that takes this long waits for something that will not happen.
HANG_S = 180.0

# What runs a program on another CPU.
EMULATOR = "qemu-x86_64"
# The owner of files that are not the user's.
OTHER_UID = 12345
# A user reads the end of an output.
LAST_LINES = 10

RIGHT = "right"
REBUILT = "rebuilt needlessly"
CROWDED = "more compilers than cores"
CLEAR = "clear error"
UNCLEAR = "unclear error"
HANG = "HANG"
STALE = "STALE"
TORN = "TORN"
CRASH = "CRASH"
UNSAFE = "UNSAFE"
NONE = "-"
# Words of a clear error about a damaged binary.
DAMAGED = ("damaged", "file too short", "truncated", "corrupt", "checksum")
BAD = (HANG, STALE, TORN, CRASH, UNSAFE)


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What was observed, one of the words above, and what it was seen by."""

    word: str
    detail: str = ""


class NotApplicable(Exception):
    """The case cannot happen to this contender, or cannot be made here; the message says why."""


@dataclasses.dataclass(frozen=True)
class Run:
    """A finished program.

    Attributes:
        values: what the op returned, for each load.
        status: the exit status, negative for a signal; None if it was killed after :data:`HANG_S`.
        output: standard output and error.
        cpu_s: processor time of the program and its children, if it came to its end.
        compilers: command lines of compilers and linkers that it started.
        builds: how often it compiled inside the process, without a compiler, as its builder reports.
    """

    values: tuple[int, ...]
    status: int | None
    output: str
    compilers: tuple[str, ...]
    seconds: float
    cpu_s: float = 0.0
    builds: int = 0

    @property
    def has_built(self) -> bool:
        """Whether anything was compiled."""
        return bool(self.compilers or self.builds)


class Running:
    """A program that runs in a session of its own, with all that it starts."""

    def __init__(
        self, command: list[str], environment: dict[str, str], log: Path, cwd: Path, group: Path | None
    ) -> None:
        self._output = log.with_name(f"output-{time.monotonic_ns()}")
        self._log, self._log_start = log, log.stat().st_size
        self._started = time.monotonic()
        with self._output.open("wb") as file:
            self._process = subprocess.Popen(
                command,
                env=environment,
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=None if group is None else lambda: enter(group),
            )

    @property
    def pid(self) -> int:
        """The program's process."""
        return self._process.pid

    def compilers(self) -> tuple[str, ...]:
        """Command lines of the compilers started so far by anything with this bench's PATH."""
        with self._log.open() as log:
            log.seek(self._log_start)
            return tuple(log.read().splitlines())

    def is_running(self) -> bool:
        """Whether the program has not ended."""
        return self._process.poll() is None

    def signal(self, number: int) -> None:
        """Send a signal to the program and all that it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def wait(self, timeout_s: float | None = None) -> Run:
        """Wait for its end; kill it after ``timeout_s``, which is :data:`HANG_S` if not given."""
        status: int | None
        timeout_s = HANG_S if timeout_s is None else timeout_s
        try:
            status = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            status = None
            self.signal(signal.SIGKILL)
            self._process.wait()
        output = self._output.read_text(errors="replace")
        values = tuple(int(line.split()[1]) for line in output.splitlines() if line.startswith("value "))
        cpu_s = sum(float(line.split()[1]) for line in output.splitlines() if line.startswith("cpu_s "))
        builds = output.splitlines().count("compiled")
        return Run(values, status, output, self.compilers(), time.monotonic() - self._started, cpu_s, builds)


class Bench:
    """Sources, cache and PATH of one contender in one case.

    Attributes:
        root: the directory with everything below.
        sources: the op: ``op.cpp`` with ``value.h``, or the Python function with ``values.py``.
        cache: the contender's cache directory.
        path: the first directory of PATH, with compilers that count.
        environment: of the programs.
        python: the interpreter, where a case needs one of its own.
        prefix: what starts each program, such as an emulator.
        is_shortened: the case did less than in a complete run.
    """

    def __init__(self, contender: Contender, root: Path, is_quick: bool) -> None:
        self.contender, self.root, self._is_quick = contender, root, is_quick
        self.is_shortened = False
        self.python: Path | None = None
        self.prefix: tuple[str, ...] = ()
        self._seen: set[int] = set()
        self.sources, self.cache, self.path = root / "sources", root / "cache", root / "bin"
        root.mkdir()
        shutil.copytree(HERE / "sources", self.sources)
        (self.sources / "first").mkdir()
        self.cache.mkdir()
        (root / "home").mkdir()
        self._log = root / "compilers.log"
        self._log.touch()
        make_counted_compilers(self.path, self._log)
        stand_ins = root / "stand_ins"
        stand_ins.mkdir()
        for name in ("cudart", "cuda"):
            subprocess.run(["gcc", "-shared", "-x", "c", "/dev/null", "-o", stand_ins / f"lib{name}.so"], check=True)
        self.write(1)
        self.environment = {
            **clean_environment(),
            "PATH": f"{self.path}:{os.environ['PATH']}",
            "HOME": str(root / "home"),
            "PYTHONDONTWRITEBYTECODE": "1",  # .pyc files, which go by time and size, are not what is tried
            contender.cache_variable: str(self.cache),
            **{name: text.format(root=root) for name, text in contender.settings},
        }
        if contender.is_ours:
            self.environment["PYTHONPATH"] = str(HERE.parents[1])

    def full_or_quick(self, full: T, quick: T) -> T:
        """How much a case does: ``quick`` shortens it."""
        self.is_shortened = self._is_quick
        return quick if self._is_quick else full

    def require_native(self) -> None:
        """Raise :class:`NotApplicable` for contenders that compile no C++ source of the user."""
        if not self.contender.is_native:
            raise NotApplicable("no C++ source")

    def require_compiler(self) -> None:
        """Raise :class:`NotApplicable` for contenders that start no C++ compiler."""
        if not self.contender.starts_compiler:
            raise NotApplicable("no C++ compiler")

    def write(self, value: int, extra: str = "") -> None:
        """Make the op return ``value``: edit the header, as a user would, with a later time."""
        (self.sources / "value.h").write_text(f"#define VALUE {value}\n{extra}")
        for_triton = f"try:\n    import triton\n\n    @triton.jit\n    def constant():\n        return {value}\n"
        text = f"VALUE = {value}\n\n{for_triton}except ImportError:\n    pass\n"
        (self.sources / "values.py").write_text(text)

    @property
    def header(self) -> Path:
        """The file that holds the value."""
        return self.sources / ("value.h" if self.contender.is_native else "values.py")

    def start(self, *flags: str, cwd: Path | None = None, group: Path | None = None, **variables: str) -> Running:
        """Start the contender's program, perhaps in a control group."""
        has_own = self.python is not None or self.prefix
        command = [
            *self.prefix,
            *([str(self.python or self.contender.python())] if has_own else self.contender.command()),
            str(HERE / "programs" / self.contender.program),
            str(self.sources),
            *flags,
        ]
        return Running(command, {**self.environment, **variables}, self._log, cwd or self.root, group)

    def load(self, *flags: str, cwd: Path | None = None, group: Path | None = None, **variables: str) -> Run:
        """Run the contender's program to its end."""
        return self.start(*flags, cwd=cwd, group=group, **variables).wait()

    def use_cache(self, directory: Path) -> None:
        """Let the next programs use another directory, such as a mount of the cache."""
        self.environment[self.contender.cache_variable] = str(directory)

    def clear_cache(self) -> None:
        """Empty the cache, as a user would by rm."""
        for path in self.cache.iterdir():
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()

    def replace_compilers(self, flag: str) -> None:
        """Put other compilers into the places of the present ones: they add a flag to every compilation."""
        shutil.rmtree(self.path)
        make_counted_compilers(self.path, self._log, flag)

    def prepare(self, *flags: str, expected: int = 1, **variables: str) -> Run:
        """A load that has to work before the trouble begins.

        Raises:
            NotApplicable: it did not; with the last line of its output.
        """
        return self.require(self.load(*flags, **variables), expected)

    def require(self, run: Run, expected: int = 1) -> Run:
        """The same for a run that has ended."""
        if run.values[:1] != (expected,) or run.status != 0:
            lines = run.output.strip().splitlines() or ["no output"]
            raise NotApplicable(f"the first load failed: {lines[-1]}")
        self._seen.add(expected)
        return run

    def start_until_compiling(self, *flags: str, **variables: str) -> Running:
        """Start the program and return once it has started a compiler, or has written into its cache.

        Raises:
            NotApplicable: it ended before.
        """
        running = self.start(*flags, **variables)
        while not running.compilers() and (self.contender.starts_compiler or not any(self.cache.rglob("*"))):
            if not running.is_running():
                raise NotApplicable("it ended before a compiler was seen")
            time.sleep(0.002)
        return running

    def slow_compilers(self, seconds: float) -> None:
        """Let each compilation take longer from now on, so that it can be interrupted."""
        self.environment["TORTURE_COMPILER_SLEEP"] = str(seconds)

    def judge(self, run: Run, expected: int, clear: tuple[str, ...] = (), compiles: bool | None = None) -> Outcome:
        """What a run showed.

        Args:
            run: the finished program.
            expected: the right value of its last load.
            clear: words in lower case, of which the last lines of a clear error have one; empty where no error is
                expected.
            compiles: False where nothing had changed, so that compiling is needless.
        """
        if run.status is None:
            return Outcome(HANG, f"no end within {HANG_S:.0f} s")
        if run.status < 0 or run.status >= 128:
            return Outcome(CRASH, f"signal {-run.status if run.status < 0 else run.status - 128}")
        if run.status != 0 or not run.values:
            lines = [line for line in run.output.strip().splitlines() if line.strip()] or ["no output"]
            named = next((each for each in lines[-LAST_LINES:] if any(word in each.lower() for word in clear)), None)
            return Outcome(UNCLEAR if named is None else CLEAR, (named or lines[-1]).strip())
        value = run.values[-1]
        if value != expected:
            is_old = value in self._seen or value in run.values[:-1]
            return Outcome(STALE if is_old else TORN, f"{value} instead of {expected}")
        if compiles is False and run.has_built:
            return Outcome(REBUILT, counted(len(run.compilers), "compiler command") if run.compilers else "")
        return Outcome(RIGHT)

    def load_untrusted(self, planted: list[Path], clear: tuple[str, ...], detail: str) -> Outcome:
        """Load, and judge whether the files ``planted`` were used, which must not be: ``detail`` then says so.

        Raises:
            NotApplicable: this file system keeps no times of reads.
        """
        probe = self.root / "read"
        probe.write_text("probe")
        for path in (probe, *planted):
            os.utime(path, ns=(0, path.stat().st_mtime_ns))
        probe.read_text()
        if probe.stat().st_atime_ns == 0:
            raise NotApplicable("the file system keeps no times of reads")
        run = self.load()
        outcome = self.judge(run, 1, clear)
        if outcome.word == RIGHT and not run.has_built and any(path.stat().st_atime_ns for path in planted):
            return Outcome(UNSAFE, detail)
        return outcome

    def binaries(self) -> list[Path]:
        """What the contender would load from its cache: libraries, and the compiled objects of Numba and Triton."""
        suffixes = (".so", ".nbc", ".cubin", ".ptx")
        found = [path for path in self.cache.rglob("*") if path.suffix in suffixes and path.is_file()]
        if not found:
            raise NotApplicable("no binary in the cache")
        return found


def worst(outcomes: Iterator[Outcome] | list[Outcome]) -> Outcome:
    """The worst of several observations."""
    order = [*BAD, UNCLEAR, CLEAR, REBUILT, RIGHT]
    return min(outcomes, key=lambda outcome: order.index(outcome.word))


def enter(group: Path) -> None:
    """Enter a control group."""
    group.write_text("0")


def make_counted_compilers(directory: Path, log: Path, flag: str = "-DTORTURE") -> None:
    """Compilers that append their command line to ``log`` and become the real ones; they add ``flag``.

    They are small binaries, not scripts, because builders may read a script.
    """
    directory.mkdir()
    source = directory / "counted.c"
    source.write_text((HERE / "counted.c").read_text())
    for name in ("g++", "c++", "gcc", "cc", "nvcc"):
        real = shutil.which(name)
        if real is None:
            continue
        emulator = "" if name == "nvcc" else EMULATOR  # nvcc may be a script
        defines = [f'-DREAL="{real}"', f'-DLOG="{log}"', f'-DFLAG="{flag}"', f'-DEMULATOR="{emulator}"']
        subprocess.run(["gcc", "-O1", *defines, str(source), "-o", str(directory / name)], check=True)
    source.unlink()


def show_progress(text: str) -> None:
    """A line for the person who waits."""
    print(text, file=sys.stderr, flush=True)
