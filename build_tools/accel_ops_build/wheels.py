"""Unpacking a wheel, and packing it again with binaries in it."""

from __future__ import annotations

import importlib.util
import logging
import re
import shutil
import zipfile
from pathlib import Path

from accel_ops_build.target import fail

DIRECTORY = "_prebuilt"
"""Where the worker puts the ops of a package, and load() finds them."""


def ops_in(directory: Path) -> list[Path]:
    """The directories of prebuilt ops in and below ``directory``."""
    return list(directory.rglob(DIRECTORY))


def unpack(wheel: Path, tree: Path) -> None:
    """Unpack ``wheel`` into ``tree``, without ops that an earlier build left in its packages."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tree)
    for left in ops_in(tree):
        shutil.rmtree(left)


def reject_ops(wheel: Path) -> None:
    """End with an error if the project's package data put prebuilt ops into a plain ``wheel``."""
    with zipfile.ZipFile(wheel) as archive:
        found = [name for name in archive.namelist() if f"/{DIRECTORY}/" in name]
    if found:
        fail(
            f"The project's package data include what an editable install left: {found[0]}.",
            f"Exclude {DIRECTORY} from the package data, or remove it.",
        )


def require_packer() -> None:
    """End with an error if the package that packs wheels is missing, as it may be without build isolation."""
    if importlib.util.find_spec("wheel") is None:
        fail("The package 'wheel', which packs a wheel with ops, is missing.", "Install it: pip install wheel.")


def pack(tree: Path, directory: Path, tag: str) -> str:
    """Make the wheel of an unpacked ``tree`` in ``directory``, for the platform of ``tag``; returns its file name."""
    from wheel.wheelfile import WheelFile  # type: ignore[import-untyped]  # a requirement only where ops are requested

    logging.getLogger("wheel").setLevel(logging.WARNING)  # it logs every file
    (information,) = tree.glob("*.dist-info")
    facts = information / "WHEEL"
    text = re.sub(r"^Tag: .*\n", "", facts.read_text(encoding="utf-8"), flags=re.MULTILINE).strip()
    text = text.replace("Root-Is-Purelib: true", "Root-Is-Purelib: false")
    facts.write_text(f"{text}\nTag: {tag}\n", encoding="utf-8")
    (information / "RECORD").unlink(missing_ok=True)  # WheelFile writes it
    name = f"{information.name.removesuffix('.dist-info')}-{tag}.whl"
    with WheelFile(directory / name, "w") as packed:
        packed.write_files(tree)
    return name
