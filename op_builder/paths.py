"""Where the project's native sources lie, and how a builder's source names are resolved.

A checkout and an editable install keep ``csrc/`` and ``kernels_sycl/`` beside the packages; a
wheel carries them as package data below ``op_builder/_native``. :func:`native_root` is the one
place that knows.
"""

from __future__ import annotations

import inspect
import os
import sys
from functools import cache
from pathlib import Path

from op_builder.errors import SourceNotFoundError

NATIVE_DIRECTORIES = ("csrc", "kernels_sycl")
# In a package: the ops that were built into its wheel.
PREBUILT_DIRECTORY = "_prebuilt"


@cache
def native_root() -> Path:
    """The directory that contains ``csrc/`` and ``kernels_sycl/``.

    Raises:
        SourceNotFoundError: neither the wheel's nor the checkout's place holds them.
    """
    package = Path(__file__).resolve().parent
    for root in (package / "_native", package.parent):
        if (root / "csrc").is_dir():
            return root
    raise SourceNotFoundError(
        f"The native sources (csrc/) are neither in {package / '_native'} nor in {package.parent}.",
        "Reinstall accel-ops: pip install --force-reinstall accel-ops.",
    )


def resolve(name: str | Path, owner: type | None = None) -> Path:
    """The absolute path of a source file that a builder names: the first of :func:`resolve_all`."""
    return resolve_all(name, owner)[0]


def resolve_all(name: str | Path, owner: type | None = None) -> list[Path]:
    """Every place where a source file or include directory that a builder names exists.

    Args:
        name: absolute, relative to the package of ``owner``, or relative to the project's root.
        owner: the class that names it; each class it inherits from is looked at too, so a
            builder that extends another package's builder finds both packages' files. The
            packages around it count as well, out to the directory that holds the outermost: the
            usual builder names files from its project's root. All these come before this
            project's root, because ``csrc`` is a common name.

    Raises:
        SourceNotFoundError: it exists in none of those places; the message lists them.
    """
    # Joining an absolute name gives that name.
    candidates = list(dict.fromkeys(os.path.join(base, name) for base in _bases(owner)))
    found = [Path(candidate) for candidate in candidates if os.path.exists(candidate)]
    if found:
        return found
    places = "\n".join(f"    {candidate}" for candidate in candidates)
    raise SourceNotFoundError(
        f"The source {str(name)!r} named by {_class_name(owner)} does not exist. Looked for:\n{places}",
        "Correct sources() or include_paths(); relative names start at the package of the builder's class.",
    )


def label(path: Path, owner: type | None = None) -> str:
    """A name for ``path`` that is the same on every machine: relative to where it was found."""
    text = str(path)
    # First: what is installed beside this package would name its files from the directory of both.
    for base in map(str, [native_root()] if is_native(path) else _bases(owner)):
        if text.startswith(base + os.sep):
            return text[len(base) + 1 :].replace(os.sep, "/")
    return path.name


def is_native(path: Path) -> bool:
    """Whether ``path`` lies in this project's ``csrc/`` or ``kernels_sycl/``."""
    # By its text: pathlib's own comparisons would take a third of a millisecond of each load.
    root, text = f"{native_root()}{os.sep}", str(path)
    return text.startswith(root) and text[len(root) :].partition(os.sep)[0] in NATIVE_DIRECTORIES


def outermost_bases(owner: type) -> list[Path]:
    """The directory that holds the outermost package of ``owner``, then of each class of others it inherits from."""
    return list(dict.fromkeys(_bases_of(cls)[-1] for cls in _classes_of_others(owner)))


def _bases(owner: type | None) -> list[Path]:
    return [*dict.fromkeys(base for cls in _classes_of_others(owner) for base in _bases_of(cls)), native_root()]


def _classes_of_others(owner: type | None) -> list[type]:
    classes = owner.__mro__ if owner is not None else ()
    return [cls for cls in classes if cls.__module__.partition(".")[0] not in ("builtins", "abc", "op_builder")]


def _bases_of(cls: type) -> list[Path]:
    try:
        directory = Path(inspect.getfile(cls)).resolve().parent
    except (TypeError, OSError):  # defined in a notebook or at a prompt
        directory = Path.cwd()
    bases = [directory]
    while (directory / "__init__.py").exists() and directory.parent != directory:
        directory = directory.parent
        bases.append(directory)
    return bases


def outermost_package(cls: type) -> Path | None:
    """The directory of the outermost package around the module that defines ``cls``; None for a module alone."""
    names = cls.__module__.split(".")
    for depth in range(1, len(names) + 1):
        package = sys.modules.get(".".join(names[:depth]))
        file = getattr(package, "__file__", None)  # a namespace that several distributions share has none
        if file is not None:
            return _directory_of(file) if hasattr(package, "__path__") else None
    return None


def prebuilt_roots(cls: type) -> list[Path]:
    """Where the binary of a builder class may be: in the package of the class, then of those it extends."""
    packages = map(outermost_package, cls.__mro__)
    return [package / PREBUILT_DIRECTORY for package in dict.fromkeys(packages) if package is not None]


@cache
def _directory_of(file: str) -> Path:
    return Path(os.path.realpath(os.path.dirname(file)))


def _class_name(owner: type | None) -> str:
    return owner.__qualname__ if owner is not None else "the plan"
