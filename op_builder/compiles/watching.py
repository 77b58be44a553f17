"""Watching a part of this process, or all of it from here on, with the children that it starts."""

from __future__ import annotations

import atexit
import json
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from op_builder import env
from op_builder.compiles import hooks, recorder, render
from op_builder.compiles.ledger_rows import Reader, Start
from op_builder.compiles.starts import RECORDER
from op_builder.errors import ArgumentError, CompilerRefused
from op_builder.system.ledger import REFUSED_REMEDY, mode_and_file

logger = logging.getLogger(__name__)

MODES = ("report", "warn", "raise")
_POLL_S = 0.2
_LATEST_S = 1.0


class Ledger:
    """What was noted since it was made.

    Args:
        file: the ledger's file.
        since: on the clock of ``time.monotonic()``.
        outer_mode: of the program or block that watches this process already; empty if the ledger is a new one.
    """

    def __init__(self, file: Path, since: float, outer_mode: str = "") -> None:
        self.file, self.since, self.outer_mode = file, since, outer_mode
        self._last: tuple[list[Start], list[str]] | None = None

    def close(self) -> None:
        """Note nothing more; what was noted can still be read."""
        self._last = self._read()

    def _read(self) -> tuple[list[Start], list[str]]:
        if self._last is not None:
            return self._last
        reader = Reader(self.file)
        reader.read()
        has_recorder = os.path.lexists(self.file.with_name(RECORDER))  # also if the cache has lost it
        starts = [start for start in reader.starts() if start.started >= self.since]
        return starts, reader.unwatched(self.since) if has_recorder else []

    def starts(self) -> list[Start]:
        """All compilers by time, those included that only preprocessed or answered a question."""
        return self._read()[0]

    def unwatched(self) -> list[str]:
        """Programs that Python started, and that did not load the recorder: what they started is not known."""
        return self._read()[1]

    def compiled(self) -> list[Start]:
        """Those that compiled or linked, or were about to."""
        return [start for start in self.starts() if not start.is_query]

    def table(self) -> str:
        """For people."""
        return render.table(self.starts(), self.since, self.unwatched())

    def as_dict(self) -> dict[str, Any]:
        """For programs; docs/what_compiles.md explains it."""
        return render.as_dict(self.starts(), self.since, self.unwatched())

    def write_json(self, file: str | os.PathLike[str], **facts: object) -> None:
        """Write :meth:`as_dict` and ``facts`` to a file."""
        Path(file).write_text(json.dumps({**facts, **self.as_dict()}, indent=1) + "\n", encoding="utf-8")

    def follow(self, ended: threading.Event, note: Callable[[str], None]) -> None:
        """Call ``note`` with one line for each compiler that compiles, soon after its start, until ``ended`` is set."""
        reader, noted = Reader(self.file), set()
        is_last = is_early = False
        while not is_last:
            is_last = ended.wait(_POLL_S)
            if not (reader.read() or is_early or is_last):
                continue
            is_early = False
            for start in reader.starts():
                if start.is_query or start.started < self.since:
                    continue
                if start.process == 0 and not is_last and time.monotonic() - start.started < _LATEST_S:
                    is_early = True  # the compiler itself may not have noted its start yet
                elif (start.process, start.started) not in noted:
                    noted.add((start.process, start.started))
                    note(render.line(start))


@contextmanager
def new_ledger() -> Iterator[Ledger]:
    """What is noted from here on: in the ledger that this process has already, or in one that is removed at the end."""
    kept = mode_and_file()
    if kept is not None and os.path.exists(kept[1]):
        yield Ledger(Path(kept[1]), time.monotonic(), outer_mode=kept[0])
    else:
        with recorder.ledger_file() as file:
            yield Ledger(file, time.monotonic())


def watch(mode: str = "warn") -> Ledger:
    """Watch this process from here to its end, and the children that it starts.

    Args:
        mode: ``warn`` logs each compiler when it starts; ``raise`` forbids them; ``report`` only keeps the ledger.

    At the end of the process, ``raise`` logs an error if a compiler was refused. The exit status remains the program's;
    only ``accel-ops run`` changes it.

    Raises:
        ArgumentError: the mode is unknown.
    """
    with ExitStack() as stack:
        ledger = stack.enter_context(watched(mode))
        atexit.register(_end, stack.pop_all())
    return ledger


def _end(stack: ExitStack) -> None:
    try:
        stack.close()
    except CompilerRefused as error:
        logger.error("%s", error)


@contextmanager
def watched(mode: str = "report") -> Iterator[Ledger]:
    """Watch this process and the children that it starts inside a ``with`` block.

    An inner block has its own mode, and its ledger only what was noted in it; for threads, the latest block counts.

    Args:
        mode: as for :func:`watch`.

    Raises:
        ArgumentError: the mode is unknown.
        CompilerRefused: with ``raise``, a compiler was about to start; at that place, or at the end of the block if the
            program has caught the error, or if another program, such as ninja, was to start the compiler.
    """
    if mode not in MODES:
        raise ArgumentError(f"The mode is {mode!r}.", f"Use one of {', '.join(MODES)}.")
    outer, preloaded = env.ACCEL_COMPILES.raw(), env.LD_PRELOAD.raw()
    process = os.getpid()
    ended = threading.Event()
    with new_ledger() as ledger:
        follower = threading.Thread(target=ledger.follow, args=(ended, logger.warning), daemon=True)
        try:
            env.set_for_libraries({env.ACCEL_COMPILES.name: f"{mode}:{ledger.file}"})
            hooks.note()
            if mode == "warn":
                follower.start()
            try:
                yield ledger
            except CompilerRefused:
                raise
            except Exception as error:  # perhaps of a build whose compiler was refused
                _require_none_refused(ledger, mode, error)
                raise
            _require_none_refused(ledger, mode, None)
        finally:
            env.set_for_libraries({env.ACCEL_COMPILES.name: outer, env.LD_PRELOAD.name: preloaded})
            if os.getpid() == process:  # not a child that was forked in the block
                ended.set()
                if follower.is_alive():
                    follower.join()
                ledger.close()


def _require_none_refused(ledger: Ledger, mode: str, cause: Exception | None) -> None:
    refused = [start for start in ledger.starts() if start.is_refused] if mode == "raise" else []
    if refused:
        message = f"Compilers that were refused: {len(refused)}. The first: {render.line(refused[0])}."
        raise CompilerRefused(message, REFUSED_REMEDY) from cause
