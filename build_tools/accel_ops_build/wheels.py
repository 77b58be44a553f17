"""Unpacks a wheel and packs it again with binaries."""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import logging
import re
import shutil
import zipfile
from pathlib import Path

from accel_ops_build.target import fail

DIRECTORY = "_prebuilt"
"""The directory in a package in which load() finds its ops."""


def ops_in(directory: Path) -> list[Path]:
    """The directories of prebuilt ops anywhere in ``directory``."""
    return list(directory.rglob(DIRECTORY))


def unpack(wheel: Path, tree: Path) -> None:
    """Unpack ``wheel`` into ``tree`` and remove ops of an earlier build."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tree)
    for left in ops_in(tree):
        shutil.rmtree(left)


def reject_ops(wheel: Path) -> None:
    """Exit with an error if a plain ``wheel`` contains prebuilt ops as package data."""
    with zipfile.ZipFile(wheel) as archive:
        found = [name for name in archive.namelist() if f"/{DIRECTORY}/" in name]
    if found:
        fail(
            f"The project's package data include an op of an editable install: {found[0]}.",
            f"Exclude {DIRECTORY} from the package data, or remove it.",
        )


def add_file(wheel: Path, file: Path) -> None:
    """Add ``file`` to the top level of ``wheel``, from where it is installed into site-packages."""
    content = file.read_bytes()
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    staged = wheel.with_suffix(".staged")
    with zipfile.ZipFile(wheel) as before, zipfile.ZipFile(staged, "w", zipfile.ZIP_DEFLATED) as after:
        for member in before.infolist():
            data = before.read(member)
            if member.filename.endswith(".dist-info/RECORD"):
                data += f"{file.name},sha256={digest},{len(content)}\n".encode()
            after.writestr(member, data)
        after.writestr(zipfile.ZipInfo(file.name, after.infolist()[-1].date_time), content)
    staged.replace(wheel)


def require_packer() -> None:
    """Exit with an error if the package ``wheel`` is missing, as it may be without build isolation."""
    if importlib.util.find_spec("wheel") is None:
        fail("The package 'wheel', which packs a wheel with ops, is missing.", "Install it: `pip install wheel`.")


def pack(tree: Path, directory: Path, tag: str) -> str:
    """Pack ``tree`` as a wheel with ``tag`` in ``directory``; returns its file name."""
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
