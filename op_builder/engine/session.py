"""A program that ends, with all that it started, when this process ends: however that happens."""

from __future__ import annotations

import contextlib
import logging
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

logger = logging.getLogger(__name__)

_STOP_S = 10.0

# Reads the session's number, then waits for a word or the pipe's end: the kernel closes it with its last
# writer, even if SIGKILL ends that. Ninja gives each compiler its own process group, so the whole session is
# ended; daemons that a compiler launcher started have left the session and keep running. A process may start
# another just before it ends, so the search is repeated until none is left; not indefinitely, because a process
# that waits for a broken disk cannot be ended.
_WATCHER = """
session=
while read -r word; do
  case $word in
    ended) exit 0 ;;
    end) break ;;
    *) session=$word ;;
  esac
done
[ -n "$session" ] || exit 0
[ -r /proc/self/stat ] || kill -TERM "$session"
for turn in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30; do
  left=
  for stat in /proc/[0-9]*/stat; do
    read -r line 2>/dev/null <"$stat" || continue
    pid=${line%% *}
    set -- ${line##*) }
    if [ "$4" = "$session" ] && [ "$1" != Z ]; then
      kill -KILL "$pid" 2>/dev/null
      left=yes
    fi
  done
  [ -n "$left" ] || exit 0
  sleep 0.05
done
exit 1
"""

# Prints its number before it becomes the program, so that no moment is left unwatched.
_STARTER = 'echo $$ >&0; exec "$@" </dev/null'


@contextmanager
def watched(
    command: Sequence[str], *, cwd: Path, environment: Mapping[str, str], output: IO[str]
) -> Iterator[subprocess.Popen[bytes]]:
    """Start a program in a session of its own, which ends with the ``with`` block or with this process.

    Processes left by a program that succeeded are kept.
    """
    watcher = subprocess.Popen(
        ["/bin/sh", "-c", _WATCHER],
        stdin=subprocess.PIPE,
        bufsize=0,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # a Ctrl-C at the terminal is not meant for it
    )
    assert watcher.stdin is not None
    process: subprocess.Popen[bytes] | None = None
    try:
        with watcher.stdin as pipe:
            process = subprocess.Popen(
                ["/bin/sh", "-c", _STARTER, "sh", *command],
                cwd=cwd,
                env=environment,
                stdin=pipe,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                yield process
            finally:
                # In words: a process that was forked from this one meanwhile may hold the pipe open, too.
                word = "ended" if process.poll() == 0 else "end"
                with contextlib.suppress(BrokenPipeError):
                    pipe.write(f"{process.pid}\n{word}\n".encode())
    finally:
        for stopped in filter(None, (watcher, process)):
            try:
                stopped.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                logger.warning("Process %d could not be ended. End it with: kill -9 %d", stopped.pid, stopped.pid)
