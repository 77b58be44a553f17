"""The directory of the project's native sources, and the resolution of a builder's source names.

``csrc/`` and ``kernels_sycl/`` are next to the packages in a checkout or an editable install, and in
``op_builder/_native`` in an installed wheel.
"""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from op_builder.errors import SourceNotFoundError

NATIVE_DIRECTORIES = ("csrc", "kernels_sycl")
# In a package: the directory with the ops in its wheel.
PREBUILT_DIRECTORY = "_prebuilt"


@cache
def native_root() -> Path:
    """The directory that contains ``csrc/`` and ``kernels_sycl/``.

    Raises:
        SourceNotFoundError: they are in neither place.
    """
    package = Path(__file__).resolve().parent
    for root in (package / "_native", package.parent):
        if (root / "csrc").is_dir():
            return root
    raise SourceNotFoundError(
        f"The native sources (csrc/) are neither in {package / '_native'} nor in {package.parent}.",
        "Install accel-ops again, from a checkout or a complete wheel.",
    )


def resolve(name: str | Path, owner: type | None = None) -> Path:
    """The absolute path of a source file that a builder names: the first of :func:`places` that exists.

    The search starts in the directory of the owner's module and continues in its parent packages, up to the directory
    that contains the outermost one. The base classes of the owner follow, so that a builder finds the files of another
    package's builder that it extends. The root of this project comes last, because ``csrc`` is a common name.

    Args:
        name: absolute, or relative to one of these directories.
        owner: the class that names it.

    Raises:
        SourceNotFoundError: no such path exists; the message lists those that were tried.
    """
    candidates = places(name, owner)
    found = next(filter(os.path.exists, candidates), None)
    if found is not None:
        return Path(found)
    listed = "\n".join(f"    {candidate}" for candidate in candidates)
    named_by = owner.__qualname__ if owner is not None else "the plan"
    raise SourceNotFoundError(
        f"The source {str(name)!r} named by {named_by} does not exist. Looked for:\n{listed}",
        archive_remedy(candidates)
        or "Correct sources() or include_paths(); names are relative to the package of the builder's class.",
    )


def archive_remedy(candidates: Iterable[str]) -> str:
    """What to do about sources that are imported from a zip file, which compilers cannot read; else empty."""
    archives = (str(parent) for path in candidates for parent in Path(path).parents if parent.is_file())
    archive = next(archives, "")
    return f"Install the package unpacked: compilers cannot read sources in the file {archive}." if archive else ""


def places(name: str | Path, owner: type | None = None) -> list[str]:
    """The absolute paths that a name may mean, in order."""
    # os.path.join() returns an absolute name unchanged.
    return list(dict.fromkeys(os.path.join(base, name) for base in _bases(owner)))


def label(path: Path, owner: type | None = None) -> str:
    """A name for ``path`` that is the same on every machine: relative to the directory in which it was found."""
    text = str(path)
    # This project first, because another package may be installed in the same directory.
    for base in map(str, [native_root()] if is_native(path) else _bases(owner)):
        if text.startswith(base + os.sep):
            return text[len(base) + 1 :].replace(os.sep, "/")
    return path.name


def is_native(path: Path) -> bool:
    """Whether ``path`` is in this project's ``csrc/`` or ``kernels_sycl/``."""
    # Compared as text, because pathlib's comparisons would add a third of a millisecond to each load.
    root, text = f"{native_root()}{os.sep}", str(path)
    return text.startswith(root) and text[len(root) :].partition(os.sep)[0] in NATIVE_DIRECTORIES


def outermost_bases(owner: type | None) -> list[Path]:
    """The directory that contains the outermost package of ``owner``, then those of its foreign base classes."""
    return list(dict.fromkeys(_bases_of(cls)[-1] for cls in _foreign_classes(owner))) if owner is not None else []


def _bases(owner: type | None) -> list[Path]:
    if owner is None:
        return [native_root()]
    return [*dict.fromkeys(base for cls in _foreign_classes(owner) for base in _bases_of(cls)), native_root()]


def _foreign_classes(owner: type) -> list[type]:
    return [cls for cls in owner.__mro__ if cls.__module__.partition(".")[0] not in ("builtins", "abc", "op_builder")]


def _bases_of(cls: type) -> list[Path]:
    try:
        directory = Path(inspect.getfile(cls)).resolve().parent
    except (TypeError, OSError):  # defined in a notebook or a prompt
        directory = Path.cwd()
    bases = [directory]
    while (directory / "__init__.py").exists() and directory.parent != directory:
        directory = directory.parent
        bases.append(directory)
    return bases


def outermost_package(cls: type) -> Path | None:
    """The directory of the outermost package that contains ``cls``; None if its module is in no package."""
    names = cls.__module__.split(".")
    for depth in range(1, len(names) + 1):
        package = sys.modules.get(".".join(names[:depth]))
        file = getattr(package, "__file__", None)  # a namespace package has none
        if file is not None:
            return _directory_of(file) if hasattr(package, "__path__") else None
    return None


def prebuilt_roots(cls: type) -> list[Path]:
    """The directories that may contain a builder's binary: in the package of the class, then of its base classes."""
    packages = map(outermost_package, cls.__mro__)
    return [package / PREBUILT_DIRECTORY for package in dict.fromkeys(packages) if package is not None]


@cache
def _directory_of(file: str) -> Path:
    return Path(os.path.realpath(os.path.dirname(file)))
