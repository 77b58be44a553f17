"""The library that notes the starts of programs (``csrc/ledger/recorder.c``), and the ledger's directory."""

from __future__ import annotations

import logging
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from op_builder.compiles.compilers import BEFORE_ARGUMENT, COMPILERS, NOT_COMPILING, QUESTIONS, SUBCOMMANDS
from op_builder.compiles.starts import RECORDER
from op_builder.engine import Binding, Recipe, build_library
from op_builder.errors import AccelError
from op_builder.paths import native_root
from op_builder.system.ledger import MOST_BYTES, MOST_LAST_WORDS

logger = logging.getLogger(__name__)


@contextmanager
def ledger_file() -> Iterator[Path]:
    """The file of a new, empty ledger, in a directory of its own with the recorder, if there is one.

    It is removed at the end, but not by a forked child.
    """
    directory, process = Path(tempfile.mkdtemp(prefix="accel-compiles-")), os.getpid()
    file = directory / "ledger"
    try:
        file.touch(mode=0o600)
        try:
            _provide(_library(), directory / RECORDER)
        except (AccelError, OSError) as error:
            logger.warning("Only compilers that Python starts directly are seen, without their times: %s", error)
        yield file
    finally:
        if os.getpid() == process:
            shutil.rmtree(directory, ignore_errors=True)


def _provide(library: str, place: Path) -> None:
    if not _cannot_preload(library):
        place.symlink_to(library)  # in the cache it stays for a daemon, whose children load it, too
    elif not _cannot_preload(os.path.realpath(place)):
        shutil.copyfile(library, place)
    else:
        raise AccelError(
            f"LD_PRELOAD cannot name {library}.",
            "Set ACCEL_CACHE_DIR or TMPDIR to a directory without spaces and colons in its path.",
        )


def _cannot_preload(path: str) -> bool:
    return bool(set(path) & set(" :"))


def _library() -> str:
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
    return os.path.realpath(build_library(recipe).path)
