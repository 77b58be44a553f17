"""Packages of other distributions that have the names of ours, such as ``accelerator`` of ExAx."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import os
import sys
from collections.abc import Sequence
from importlib import metadata
from importlib.machinery import PathFinder
from pathlib import Path
from typing import NamedTuple

_NAMES = ("accelerator", "op_builder")
_OURS = "accel-ops"
_ROOT = Path(__file__).resolve().parents[2]


class ForeignPackage(NamedTuple):
    """A package that is in the way of ours: its name, which file is whose, and what to do."""

    name: str
    reason: str
    remedy: str


def foreign_packages(root: Path = _ROOT, search: Sequence[str] | None = None) -> list[ForeignPackage]:
    """The packages that Python finds in place of ours, or that were installed over ours.

    Args:
        root: the directory with our packages.
        search: where Python searches; by default as ``python -m`` does, the current directory first.
    """
    if search is None:
        search = sys.path
        with contextlib.suppress(OSError):  # the current directory was removed
            search = [os.getcwd(), *sys.path]
    return [found for name in _NAMES if (found := _hiding(name, root, search) or _written_over(name, root))]


def _hiding(name: str, root: Path, search: Sequence[str]) -> ForeignPackage | None:
    spec = PathFinder.find_spec(name, search)
    if spec is None:  # an editable installation, which has a finder of its own
        return None
    file = Path(spec.origin or next(iter(spec.submodule_search_locations or [name])))
    place = file.parents[1] if spec.submodule_search_locations and spec.origin else file.parent
    if place.resolve() == root or (place / "op_builder" / "_version.py").exists():  # another copy of accel-ops
        return None
    owners = [_label(dist) for dist in metadata.distributions(path=[str(place)]) if _recorded_hash(dist, file, place)]
    reason = f"Python started in this directory imports {file}, not {root / name} of accel-ops."
    if not owners:
        return ForeignPackage(name, reason, f"Rename {file}, or start Python in another directory.")
    reason = f"{file} belongs to {owners[0]}, and Python imports it instead of {root / name} of accel-ops."
    return ForeignPackage(name, reason, f"Remove it: `pip uninstall {owners[0].split()[0]}`.")


def _written_over(name: str, root: Path) -> ForeignPackage | None:
    file = root / name / "__init__.py"
    records = {
        _label(dist): recorded
        for dist in metadata.distributions(path=[str(root)])
        if (recorded := _recorded_hash(dist, file, root))
    }
    others = [label for label in records if label.split()[0] != _OURS]
    if not others:
        return None
    digest = base64.urlsafe_b64encode(hashlib.sha256(file.read_bytes()).digest()).rstrip(b"=").decode()
    writers = [label for label, recorded in records.items() if recorded == f"sha256={digest}"]
    reason = (
        f"{file} belongs to both accel-ops and {others[0]}; its content is that of {''.join(writers[:1]) or 'neither'}."
    )
    other = others[0].split()[0]
    remedy = (
        f"Run `pip uninstall {other}`, then `pip install --force-reinstall --no-deps .` in the checkout of accel-ops. "
        f"Use {other} in an environment of its own."
    )
    return ForeignPackage(name, reason, remedy)


def _label(dist: metadata.Distribution) -> str:
    return f"{dist.metadata['Name']} {dist.version}"


def _recorded_hash(dist: metadata.Distribution, file: Path, root: Path) -> str:
    """The hash that a distribution's record has of a file; empty if it has none."""
    rows = ([*line.split(","), ""] for line in (dist.read_text("RECORD") or "").splitlines())
    return next((row[1] for row in rows if row[0] == file.relative_to(root).as_posix()), "")
