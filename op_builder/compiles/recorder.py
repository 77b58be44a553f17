"""The library that notes the starts of programs (``csrc/ledger/recorder.c``), and the ledger's directory."""

from __future__ import annotations

import logging
import os
import sys
import tempfile
from pathlib import Path

from op_builder.compiles.compilers import BEFORE_ARGUMENT, COMPILERS, NOT_COMPILING, QUESTIONS, SUBCOMMANDS
from op_builder.compiles.starts import RECORDER
from op_builder.engine import Binding, Recipe, build_library
from op_builder.errors import AccelError
from op_builder.paths import native_root
from op_builder.system.ledger import MOST_BYTES, MOST_LAST_WORDS

logger = logging.getLogger(__name__)


def new_ledger() -> Path:
    """The file of a new, empty ledger, in a directory of its own with a link to the recorder, if there is one."""
    directory = Path(tempfile.mkdtemp(prefix="accel-compiles-"))
    try:
        os.symlink(_library(), directory / RECORDER)
    except AccelError as error:
        logger.warning("Only compilers that Python starts directly are seen, without their times: %s", error)
    file = directory / "ledger"
    file.touch(mode=0o600)
    return file


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
    path = build_library(recipe).path
    if set(str(path)) & set(" :"):
        raise AccelError(f"LD_PRELOAD cannot name {path}.", "Use an ACCEL_CACHE_DIR without spaces and colons.")
    return path
