"""What the records of a ledger mean: which compilers ran, for whom, and how long."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import pairwise, takewhile
from pathlib import Path
from typing import NamedTuple

from op_builder.compiles.compilers import compiles, is_compiler
from op_builder.compiles.starts import NO_CACHE
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
        self.started, self.number, self.parent_number = _seconds(time), int(number), int(parent)
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

    def end(self, ended: float, cpu_seconds: float) -> None:
        """Set the times of all programs that this process has run, one by exec() after the other."""
        for program in takewhile(lambda each: each.number == self.number, self.ancestors()):
            program.ended, program.cpu_seconds = ended, cpu_seconds

    @property
    def asks(self) -> list[_Ask]:
        """Those of the Python processes above, the nearest first."""
        return [process.ask for process in self.ancestors() if process.ask is not None]


class _Ask:
    """That a Python process was about to start a program, or has compiled a kernel."""

    def __init__(self, fields: list[str]) -> None:
        kind, time, number, self.cache, self.library, self.program, self.stack, self.verdict, self.file, *words = fields
        self.time, self.number, self.words = _seconds(time), int(number), tuple(words)
        self.seconds = _seconds(words[1]) if kind == "kernel" else 0.0

    def contains(self, other: _Ask) -> bool:
        """Whether another program (ptxas) was started while this kernel was compiled, as a part of it."""
        return self.number == other.number and self.time - self.seconds <= other.time <= self.time

    def is_of(self, process: _Process) -> bool:
        """Whether it started this program: with equal words after the first; a script's follow its interpreter's."""
        # system() of glibc 2.38 starts `sh -c -- COMMAND`.
        words, started = ([word for word in each if word != "--"] for each in (self.words, process.words))
        tail = started[-len(words) :]
        if len(tail) > 1:
            return tail[1:] == words[1:]
        return [*map(os.path.basename, tail)] == [*map(os.path.basename, words)]


def _seconds(microseconds: str) -> float:
    return int(microseconds) / 1e6


class Reader:
    """Reads a ledger as it grows, and keeps what rows may need: compilers, and what may still start one.

    Args:
        file: the ledger's file.
    """

    def __init__(self, file: Path) -> None:
        self.file, self._offset = file, 0
        self._compilers: list[_Process] = []  # those that no other compiler started
        self._running: dict[int, _Process] = {}  # by number
        self._asks: dict[int, list[_Ask]] = defaultdict(list)  # without those whose program is known
        self._kernels: list[_Ask] = []
        self._missed: dict[int, list[tuple[float, str]]] = defaultdict(list)

    def read(self) -> bool:
        """Read what was appended since the last call; whether anything was."""
        found, self._offset = records(self.file, self._offset)
        for fields in found:
            with suppress(ValueError, IndexError):  # cut off by a full disk
                self._add(fields)
        return bool(found)

    def _add(self, fields: list[str]) -> None:
        kind, time, number = fields[0], _seconds(fields[1]), int(fields[2])
        if kind in ("start", "refused"):
            process = _Process(fields)
            self._place(process)
            if _is_outermost(process):
                self._compilers.append(process)
            self._running[number] = process
        elif kind == "end" and number in self._running:
            self._running[number].end(time, _seconds(fields[3]))
        elif kind == "ask":
            self._asks[number].append(_Ask(fields))
        elif kind == "kernel":
            self._kernels.append(_Ask(fields))
        elif kind == "missed":
            self._missed[number].append((time, f"{fields[3]}: {fields[4]}"))

    def _place(self, process: _Process) -> None:
        """Set what started a program: the same process by exec(), or its parent."""
        before = self._running.get(process.number)
        if before is not None and (before.ended is not None or before.parent_number != process.parent_number):
            before = None  # the system gave the number to another process
        process.parent = before or self._running.get(process.parent_number)
        for number in (process.number, process.parent_number):
            asks = self._asks.get(number, [])
            for at in reversed(range(len(asks))):
                if asks[at].is_of(process):
                    process.ask = asks.pop(at)
                    return

    def starts(self) -> list[Start]:
        """All compilers so far that no other compiler started, by time."""
        kernels, running, missed = self._kernels, self._running, self._missed

        def is_part(ask: _Ask) -> bool:
            return any(kernel.contains(ask) for kernel in kernels)

        found = [_of_process(each, missed) for each in self._compilers if not any(map(is_part, each.asks[:1]))]
        lost = [ask for of_one in self._asks.values() for ask in of_one if ask.verdict]
        found += [_of_ask(ask, running.get(ask.number), missed) for ask in lost if not is_part(ask)]
        found += [_of_kernel(ask, running.get(ask.number)) for ask in kernels]
        return sorted(found, key=lambda start: start.started)

    def unwatched(self, since: float) -> list[str]:
        """Files of programs that Python started since then, and that did not note their start; without compilers."""
        lost = [ask for of_one in self._asks.values() for ask in of_one if not ask.verdict and ask.time >= since]
        return [ask.file for ask in sorted(lost, key=lambda ask: ask.time)]


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
    name, seconds = ask.words[0], ask.seconds
    row = _row([ask, *(asker.asks if asker is not None else ())], (), ask.time - seconds, {})
    return row._replace(what=name, is_refused=ask.verdict == "refused", seconds=seconds)


def _row(
    asks: Sequence[_Ask], words: tuple[str, ...], started: float, missed: dict[int, list[tuple[float, str]]]
) -> Start:
    cache = asks[0].cache if asks else NO_CACHE
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
    is_link = bool(outputs) and "-c" not in words
    return f"link {os.path.basename(outputs[0])}" if is_link else " ".join(words[1:])[:_MOST_CHARACTERS]
