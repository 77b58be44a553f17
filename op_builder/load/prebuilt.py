"""Ops that were built into an installed wheel, of this project or of another package.

They are in ``_prebuilt`` in the package whose class declares the op, laid out as in the cache: a binary with its
manifest. A binary that does not fit is ignored, with a reason.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from op_builder import paths
from op_builder._version import __version__
from op_builder.cache.key import Roots, plan_parts
from op_builder.cache.store import Cache, Entry
from op_builder.command_line import printable
from op_builder.errors import AccelError
from op_builder.load.resolve import PREBUILT, Candidate
from op_builder.paths import NATIVE_DIRECTORIES, native_root
from op_builder.plan import BuildPlan
from op_builder.spec import OpSpec
from op_builder.system.outcomes import Rejection
from op_builder.system.records import (
    RecordError,
    Schema,
    are_texts,
    decode,
    is_count,
    is_identifier,
    is_sha256,
    is_text,
    is_version,
    mapping_of,
    objects_of,
    read_text,
)

DIRECTORY = paths.PREBUILT_DIRECTORY
INDEX = "wheel.json"
"""In that directory: what the wheel contains, what was left out and why. ``load()`` reads only the manifests."""
INDEX_FORMAT = 2

_BUILT: Schema = {
    "op": is_identifier,
    "binary": is_text,
    "platform": is_text,
    "torch": is_text,
    "python": is_text,
    "sha256": is_sha256,
    "size_bytes": is_count,
    "cuda_archs": are_texts,
    "compilers": are_texts,
    "needs": mapping_of(is_version),
    "check": is_text,
    "built_at": is_text,
}
_INDEX: Schema = {
    **dict.fromkeys(("distribution", "built_by", "accelerator", "tag"), is_text),
    "ops": objects_of(_BUILT),
    "left_out": objects_of({"op": is_text, "reason": is_text}),
}
_OUR_PACKAGE = Path(__file__).resolve().parents[1]
_FLAGS = ("c++ flags", "nvcc flags")
_REINSTALL = "Reinstall the package."


def find_prebuilt(spec: OpSpec, plan_for: Callable[[tuple[str, ...]], BuildPlan]) -> Iterator[Candidate]:
    """The prebuilt binaries of an op, those of its current plan first: a wheel may also contain it for other devices.

    Args:
        plan_for: makes the op's plan for the CUDA architectures of a binary, on which its flags may depend.
    """

    @cache
    def planned(archs: tuple[str, ...]) -> tuple[Roots, dict[str, str]] | None:
        try:
            plan = plan_for(archs)
            return Roots.of(plan), plan_parts(plan)
        except AccelError:  # a wheel may contain binaries without their sources
            return None

    for root in spec.prebuilt_roots:
        in_wheel = Cache(root, in_package=True)
        others = []
        for entry in in_wheel.entries(spec.name):
            current = planned(tuple(entry.manifest.cuda_archs))
            if changes := printable(_changes(entry, root.parent, *current)) if current is not None else "":
                rejection = Rejection(f"It was built from other files or flags: {changes}.")
                others.append(Candidate(PREBUILT, entry.directory, entry, rejection))
            else:
                rejected = in_wheel.rejection_of(entry)
                yield Candidate(PREBUILT, entry.directory, entry, rejected and rejected._replace(remedy=_REINSTALL))
        yield from others
        for directory, rejection in in_wheel.damaged.items():
            yield Candidate(PREBUILT, directory, None, rejection._replace(remedy=_REINSTALL))


def read_index(root: Path) -> dict[str, Any] | None:
    """The content of ``wheel.json`` in ``root``; None if it does not exist.

    Raises:
        RecordError: the file cannot be read, is damaged, or has another format.
    """
    try:
        return decode(read_text(root / INDEX), _INDEX, INDEX_FORMAT)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise RecordError(error.strerror) from error


def _changes(entry: Entry, package: Path, roots: Roots, parts: dict[str, str]) -> str:
    """How ``entry`` differs from the op's current plan: it is for another device, or a file was edited."""
    built = entry.manifest.key_parts
    flags = [name for name in _FLAGS if _cpu_flags(built.get(name, "[]")) != _cpu_flags(parts[name])]
    names = {name for name in (*built, *parts) if name.startswith(("source ", "linked ", "named "))}
    if entry.manifest.accel_ops == __version__:
        names.update(parts)
    other = [name for name in sorted(names) if built.get(name) != parts.get(name)]
    # Another version may use other flags for all ops, but flags that select a CPU always count.
    other += [name for name in flags if name not in names]
    other += _changed_headers(entry, package, roots)
    return ", ".join(other)


def _cpu_flags(flags: str) -> list[str]:
    return [flag for flag in json.loads(flags) if flag.startswith("-m")]


def _changed_headers(entry: Entry, package: Path, roots: Roots) -> list[str]:
    """The changed headers and libraries of the op's own package; a wheel may omit what only the build needs.

    Headers of other packages change with their versions.
    """
    native = [native_root() / name for name in NATIVE_DIRECTORIES] if package == _OUR_PACKAGE else []
    places = tuple(f"{place}{os.sep}" for place in (package, *native))
    located = ((header, roots.locate(header.root, header.path)) for header in entry.manifest.headers)
    own = (header for header, path in located if path.startswith(places) and os.path.exists(path))
    return [f"header {header.path}" for header in own if not header.is_unchanged(roots)]
