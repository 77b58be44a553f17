"""What the records of a ledger mean: which compilers ran, for whom, and how long."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from op_builder.compiles.compilers import compiles, is_compiler
from op_builder.compiles.starts import OTHER
from op_builder.system.ledger import records

_SOURCES = (
    ".c",
    ".cc",
    ".cpp",
    ".cxx",
    ".C",
    ".cu",
    ".hip",
    ".S",
    ".s",
    ".f",
    ".f90",
    ".rs",
    ".ispc",
    ".sycl",
    ".ptx",
    ".mlu",
)
_MOST_CHARACTERS = 80
_HEADERS = (".h", ".hpp", ".hh")


class Start(NamedTuple):
    """A compiler that was started, or a kernel that was compiled inside a process.

    Attributes:
        cache: the cache or package that asked: Inductor, Triton, cpp_extension, tvm-ffi, accel-ops, ...
        what: the sources, or the file that was linked, or the kernel.
        command: the compiler's arguments, from its name on.
        started: seconds on the clock of ``time.monotonic()``.
        program: the nearest frame of the program; empty if Python did not start it.
        library: the nearest frame of the cache; or the command that started it, if that is not Python.
        stack: all frames, outermost first.
        reason: why the cache had missed; empty if that cache cannot say.
        compiler: the program's file, with links resolved.
        is_query: whether it only preprocessed, or answered a question such as its version.
        is_refused: whether it was stopped before it compiled.
        process: its number; 0 if it is not known.
        seconds, cpu_seconds: with all its children; None if it runs still, was killed, or is linked statically.
    """

    cache: str
    what: str
    command: tuple[str, ...]
    started: float
    program: str
    library: str
    stack: str
    reason: str
    compiler: str = ""
    is_query: bool = False
    is_refused: bool = False
    process: int = 0
    seconds: float | None = None
    cpu_seconds: float | None = None


class _Process:
    """A program that a process ran; a process that calls exec() runs several."""

    def __init__(self, fields: list[str]) -> None:
        kind, time, number, parent, self.file, *words = fields
        self.is_refused = kind == "refused"
        self.started, self.number, self.parent_number = float(time), int(number), int(parent)
        self.words = tuple(words)
        self.parent: _Process | None = None
        self.ask: _Ask | None = None
        self.ended: float | None = None
        self.cpu_seconds: float | None = None

    def ancestors(self) -> Iterator[_Process]:
        """This program, then what started it, and so on."""
        process: _Process | None = self
        while process is not None:
            yield process
            process = process.parent

    @property
    def asks(self) -> list[_Ask]:
        """Those of the Python processes above, the nearest first."""
        return [process.ask for process in self.ancestors() if process.ask is not None]


class _Ask:
    """That a Python process was about to start a program, or has compiled a kernel."""

    def __init__(self, fields: list[str]) -> None:
        _, time, number, self.cache, self.library, self.program, self.stack, self.verdict, self.file, *words = fields
        self.time, self.number, self.words = float(time), int(number), tuple(words)
        self.is_taken = False

    def contains(self, other: _Ask) -> bool:
        """Whether another program (ptxas) was started while this kernel was compiled, as a part of it."""
        return self.number == other.number and self.time - float(self.words[1]) <= other.time <= self.time

    def is_of(self, process: _Process) -> bool:
        """Whether it started this program: with equal words; those of a script follow its interpreter's."""
        count = len(self.words)
        return process.words[-count:] == self.words or (count > 1 and process.words[1 - count :] == self.words[1:])


def read_starts(file: Path) -> list[Start]:
    """All compilers of a ledger that no other compiler started, by time."""
    processes: list[_Process] = []
    running: dict[int, _Process] = {}  # by number
    asks: dict[int, list[_Ask]] = defaultdict(list)
    kernels: list[_Ask] = []
    missed: dict[int, list[tuple[float, str]]] = defaultdict(list)
    for fields in records(file):
        kind, time, number = fields[0], float(fields[1]), int(fields[2])
        if kind in ("start", "refused"):
            process = _Process(fields)
            _place(process, running, asks)
            processes.append(process)
            running[number] = process
        elif kind == "end" and number in running:
            running[number].ended, running[number].cpu_seconds = time, float(fields[3])
        elif kind == "ask":
            asks[number].append(_Ask(fields))
        elif kind == "kernel":
            kernels.append(_Ask(fields))
        elif kind == "missed":
            missed[number].append((time, f"{fields[3]}: {fields[4]}"))

    def is_part(ask: _Ask) -> bool:
        return any(kernel.contains(ask) for kernel in kernels)

    outermost = [process for process in processes if _is_outermost(process)]
    found = [_of_process(each, missed) for each in outermost if not any(map(is_part, each.asks[:1]))]
    lost = [ask for of_one in asks.values() for ask in of_one if ask.verdict and not ask.is_taken]
    found += [_of_ask(ask, running.get(ask.number), missed) for ask in lost if not is_part(ask)]
    found += [_of_kernel(ask, running.get(ask.number)) for ask in kernels]
    return sorted(found, key=lambda start: start.started)


def _place(process: _Process, running: dict[int, _Process], asks: dict[int, list[_Ask]]) -> None:
    """Set what started a program: the same process by exec(), or its parent."""
    before = running.get(process.number)
    if before is not None and (before.ended is not None or before.parent_number != process.parent_number):
        before = None  # the system gave the number to another process
    process.parent = before or running.get(process.parent_number)
    for number in (process.number, process.parent_number):
        for ask in reversed(asks[number]):
            if not ask.is_taken and ask.is_of(process):
                ask.is_taken, process.ask = True, ask
                return


def _is_outermost(process: _Process) -> bool:
    if not is_compiler(process.file):
        return False
    above = list(process.ancestors())[1:]
    return not any(is_compiler(each.file) for each in above)


def _of_process(process: _Process, missed: dict[int, list[tuple[float, str]]]) -> Start:
    row = _row(process.asks, process.words, process.started, missed)
    if not process.asks and process.parent is not None:
        row = row._replace(library=" ".join(process.parent.words)[:_MOST_CHARACTERS])
    return row._replace(
        compiler=process.file,
        is_query=not compiles(process.words),
        is_refused=process.is_refused,
        process=process.number,
        seconds=process.ended - process.started if process.ended is not None else None,
        cpu_seconds=process.cpu_seconds,
    )


def _of_ask(ask: _Ask, asker: _Process | None, missed: dict[int, list[tuple[float, str]]]) -> Start:
    """A compiler that did not note its own start: it is linked statically, or got another environment."""
    row = _row([ask, *(asker.asks if asker is not None else ())], ask.words, ask.time, missed)
    return row._replace(compiler=ask.file, is_query=not compiles(ask.words), is_refused=ask.verdict == "refused")


def _of_kernel(ask: _Ask, asker: _Process | None) -> Start:
    name, seconds = ask.words[0], float(ask.words[1])
    row = _row([ask, *(asker.asks if asker is not None else ())], (), ask.time - seconds, {})
    return row._replace(what=name, is_refused=ask.verdict == "refused", seconds=seconds)


def _row(
    asks: Sequence[_Ask], words: tuple[str, ...], started: float, missed: dict[int, list[tuple[float, str]]]
) -> Start:
    cache = asks[0].cache if asks else OTHER
    reasons = [text for at, text in missed.get(asks[0].number, ()) if at <= started] if cache == "accel-ops" else []
    return Start(
        cache=cache,
        what=_what(words),
        command=words,
        started=started,
        program=next((ask.program for ask in asks if ask.program), ""),
        library=asks[0].library if asks else "",
        stack=asks[0].stack if asks else "",
        reason=reasons[-1] if reasons else "",
    )


def _what(words: Sequence[str]) -> str:
    """The sources of a command; without one, its headers, which are precompiled, or its output, which is linked."""
    names = [word for word in words[1:] if not word.startswith("-")]
    outputs = [after for word, after in pairwise(words) if word == "-o"]
    for suffixes in (_SOURCES, _HEADERS):
        sources = [os.path.basename(name) for name in names if name.endswith(suffixes) and name not in outputs]
        if sources:
            return ", ".join(sources)
    return f"link {os.path.basename(outputs[0])}" if outputs else " ".join(words[1:])[:_MOST_CHARACTERS]
