"""The library that notes the starts of programs (``csrc/ledger/recorder.c``), and the ledger's directory."""

from __future__ import annotations

import logging
import os
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from op_builder.cache.staging import ALIVE, process_lock
from op_builder.compiles.compilers import BEFORE_ARGUMENT, COMPILERS, NOT_COMPILING, QUESTIONS, SUBCOMMANDS
from op_builder.compiles.starts import RECORDER
from op_builder.engine import Binding, Recipe, build_library
from op_builder.errors import AccelError
from op_builder.paths import native_root
from op_builder.system.file_lock import try_lock
from op_builder.system.ledger import MOST_BYTES, MOST_LAST_WORDS

logger = logging.getLogger(__name__)

_PREFIX = "accel-compiles-"
_YOUNG_S = 60.0  # a new directory may lack its lock for less


@contextmanager
def ledger_file() -> Iterator[Path]:
    """The file of a new, empty ledger, in a directory of its own with the recorder, if there is one.

    It is removed at the end, but not by a forked child. The recorder stays while a process has it, such as a daemon,
    whose children load it, too. What then remains, or remains of a killed program, is removed by the next ledger.
    """
    _remove_abandoned()
    directory, process = Path(tempfile.mkdtemp(prefix=_PREFIX)), os.getpid()
    with process_lock(directory):
        file = directory / "ledger"
        file.touch(mode=0o600)
        try:
            _add_recorder(directory)
        except (AccelError, OSError) as error:
            logger.warning("Only compilers that Python starts directly are seen, without their times: %s", error)
        try:
            yield file
        finally:
            if os.getpid() == process:
                file.unlink(missing_ok=True)
                if not _is_mapped(directory / RECORDER):
                    shutil.rmtree(directory, ignore_errors=True)


def _remove_abandoned() -> None:
    """Remove this user's ledgers whose programs have ended, and whose recorders no process has."""
    for directory in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with suppress(OSError):
            status = directory.lstat()
            is_own = stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()
            is_new = time.time() - status.st_mtime < _YOUNG_S
            if is_own and not is_new and not _is_locked(directory / ALIVE) and not _is_mapped(directory / RECORDER):
                shutil.rmtree(directory)


def _is_locked(file: Path) -> bool:
    try:
        with file.open() as opened:
            return not try_lock(opened)
    except FileNotFoundError:  # it was killed before it had the lock
        return False


def _is_mapped(library: Path) -> bool:
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with suppress(OSError):  # another user's process, or one that has ended
            if os.fsencode(os.path.realpath(library)) in maps.read_bytes():
                return True
    return False


def _add_recorder(directory: Path) -> None:
    """Copy it, because the cache may remove its entry meanwhile; a link, where the system runs no code."""
    library = _library()
    place = directory / RECORDER
    if os.statvfs(directory).f_flag & os.ST_NOEXEC:
        place.symlink_to(library)
    else:
        shutil.copyfile(library, place)
    path = os.path.realpath(place)
    if set(path) & set(" :"):
        place.unlink()
        raise AccelError(
            f"LD_PRELOAD cannot name {path}.",
            "Set TMPDIR to a directory without spaces and colons in its path, for example TMPDIR=/tmp.",
        )


def _library() -> Path:
    if sys.platform != "linux":
        raise AccelError(f"The recorder is for Linux, and this system is {sys.platform}.")

    def words(names: tuple[str, ...]) -> str:
        return f'"{"".join(f":{name}" for name in names)}:"'

    recipe = Recipe(
        "compiles_recorder",
        Binding.C,
        (str(native_root() / "csrc" / "ledger" / "recorder.c"),),
        cxx_flags=(
            f"-DCOMPILERS={words(COMPILERS)}",
            f"-DNOT_COMPILING={words(NOT_COMPILING)}",
            f"-DQUESTIONS={words(QUESTIONS)}",
            f"-DBEFORE_ARGUMENT={words(BEFORE_ARGUMENT)}",
            f"-DSUBCOMMANDS={words(SUBCOMMANDS)}",
            f"-DMOST_LAST_WORDS={MOST_LAST_WORDS}",
            f"-DMOST_BYTES={MOST_BYTES}",
        ),
        link_flags=("-Wl,--as-needed",),  # each process that starts would load libstdc++
    )
    return build_library(recipe).path
