"""Taking a wheel apart, and packing it again with binaries in it."""

from __future__ import annotations

import logging
import re
import shutil
import zipfile
from pathlib import Path

from op_builder.errors import AccelError
from op_builder.load.prebuilt import DIRECTORY


def unpack(wheel: Path, tree: Path) -> None:
    """Unpack ``wheel`` into ``tree``, without binaries that an earlier build left in its packages."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tree)
    for left in list(tree.rglob(DIRECTORY)):
        shutil.rmtree(left)


def distribution_of(tree: Path) -> str:
    """The name of an unpacked wheel's distribution, as wheels spell it: ``my_ops``."""
    (information,) = tree.glob("*.dist-info")
    return information.name.partition("-")[0]


def refuse_binaries(wheel: Path) -> None:
    """Remove a plain ``wheel`` and raise an AccelError if a project's package data put prebuilt ops into it."""
    with zipfile.ZipFile(wheel) as archive:
        found = [name for name in archive.namelist() if f"/{DIRECTORY}/" in name]
    if found:
        wheel.unlink()
        raise AccelError(
            f"The project's package data takes in what an editable install left: {found[0]}.",
            f"Exclude {DIRECTORY} from the package data, or remove it.",
        )


def pack(tree: Path, directory: Path, tag: str) -> str:
    """Make the wheel of an unpacked ``tree`` in ``directory``, for the platform of ``tag``; returns its file name.

    Raises:
        AccelError: the package ``wheel`` is missing.
    """
    try:
        from wheel.wheelfile import WheelFile  # type: ignore[import-untyped]
    except ImportError as error:
        raise AccelError(f"The wheel cannot be packed: {error}.", "Install it: pip install wheel.") from error
    logging.getLogger("wheel").setLevel(logging.WARNING)  # or it tells each file, which setuptools has just done
    (information,) = tree.glob("*.dist-info")
    facts = information / "WHEEL"
    text = re.sub(r"^Tag: .*\n", "", facts.read_text(encoding="utf-8"), flags=re.MULTILINE).strip()
    text = text.replace("Root-Is-Purelib: true", "Root-Is-Purelib: false")
    facts.write_text(f"{text}\nTag: {tag}\n", encoding="utf-8")
    name = f"{information.name.removesuffix('.dist-info')}-{tag}.whl"
    (information / "RECORD").unlink(missing_ok=True)  # written anew
    directory.mkdir(parents=True, exist_ok=True)
    with WheelFile(directory / name, "w") as packed:
        packed.write_files(tree)
    return name
