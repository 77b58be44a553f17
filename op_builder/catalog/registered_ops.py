"""Other packages' ops, from the entry-point group ``op_builder.ops``.

An author registers ops in ``pyproject.toml``::

    [project.entry-points."op_builder.ops"]
    my-ops = "my_ops.builders"

The entry point's name is a label, usually the project's name. Its value is a module or a package. Each concrete
``*Builder`` class in it (for a package, also in its modules) is an op on every device; the builder's checks decide
whether it works. The class must be defined in the author's own package; a class that is only imported does not count.

An op and its builder need unique names. A name that this project or a package earlier in the order of labels and
modules uses is not replaced: the later op is left out. This, a module that cannot be imported and a module without an
op concern that package only: each is logged once, shown by the error about an unknown name, and listed by the
report.

Reading the entry points takes about ten milliseconds. It happens when a name is unknown to the device or when all ops
are listed, never at import.
"""

from __future__ import annotations

import inspect
import logging
import sys
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import entry_points

from op_builder.builder.base import OpBuilder, is_builder
from op_builder.catalog.modules import import_modules
from op_builder.load.lookup import is_listing
from op_builder.messages import warn_once

logger = logging.getLogger(__name__)

ENTRY_POINT_GROUP = "op_builder.ops"


@dataclass(frozen=True)
class RegisteredPackage:
    """The ops of one entry point.

    Attributes:
        label: the entry point's name.
        module: the entry point's value.
        classes: the builder classes that it adds, by name.
        reasons: why other classes are not added, a sentence each.
    """

    label: str
    module: str
    classes: dict[str, type[OpBuilder]]
    reasons: tuple[str, ...]

    @property
    def reason(self) -> str:
        """Why some of its ops are missing; empty if none is."""
        listed = " ".join(self.reasons)
        return f"Not all ops of {self.label} ({self.module}) are registered. {listed}" if listed else ""


def registered_packages(taken: Mapping[str, type[OpBuilder] | None]) -> list[RegisteredPackage]:
    """The ops of each entry point, sorted by label.

    Args:
        taken: names of ops and builders that are in use, each with its class, or None for a name of this project.
    """
    owners = dict(taken)
    packages = [_without_taken_names(found, owners) for found in _find_builders()]
    for package in packages:
        for reason in package.reasons:
            warn_once(logger, f"Not all ops of {package.label} ({package.module}) are registered. {reason}")
    return packages


@dataclass(frozen=True)
class _Found:
    """The builder classes of one entry point, by their names in its modules; a class may occur twice."""

    label: str
    module: str
    builders: tuple[tuple[str, type[OpBuilder]], ...]
    reasons: tuple[str, ...]


def _without_taken_names(found: _Found, owners: dict[str, type[OpBuilder] | None]) -> RegisteredPackage:
    """The ops of ``found`` whose names are free; adds them to ``owners``."""
    classes: dict[str, type[OpBuilder]] = {}
    reasons = [*found.reasons]
    for class_name, cls in found.builders:
        clashes = [name for name in (class_name, cls.NAME) if owners.get(name, cls) is not cls]
        if clashes:
            owner = owners[clashes[0]]
            whose = "accel-ops" if owner is None else f"{owner.__module__}.{owner.__qualname__}"
            reasons.append(f"{cls.__module__}.{class_name} is ignored: the name {clashes[0]!r} belongs to {whose}.")
            continue
        owners[class_name] = owners[cls.NAME] = classes[class_name] = cls
    if not classes and not reasons:
        reasons.append(f"{found.module} has no op: no concrete class in it extends OpBuilder.")
    return RegisteredPackage(found.label, found.module, classes, tuple(dict.fromkeys(reasons)))


def _find_builders() -> Iterable[_Found]:
    # A module that is imported here may request another package's op. A lock instead could deadlock with Python's
    # import lock.
    if getattr(_state, "is_importing", False):
        logger.warning("Other packages' ops cannot be found while these are being imported; import the class instead.")
        return ()
    _state.is_importing = True
    try:
        found = _builders_on(tuple(map(str, sys.path)), is_listing())
        if is_listing() and any(one.reasons for one in found):
            _builders_on.cache_clear()  # by the next time, a module's op may have been compiled
        return found
    finally:
        _state.is_importing = False


_state = threading.local()


@lru_cache(maxsize=2)
def _builders_on(search_path: tuple[str, ...], listing: bool) -> tuple[_Found, ...]:  # noqa: ARG001  (the cache's key)
    try:
        entries = entry_points(group=ENTRY_POINT_GROUP)
    except Exception as error:  # one distribution's damaged metadata affects all
        reason = f"The entry points of the installed packages cannot be read: {_text_of(error)}"
        return (_Found("unknown", ENTRY_POINT_GROUP, (), (reason,)),)
    return tuple(_read(entry.name, entry.value) for entry in sorted(entries, key=lambda one: (one.name, one.value)))


def _read(label: str, name: str) -> _Found:
    """Import the modules of an entry point; a module that cannot be imported is a reason, not an error."""
    if ":" in name:
        module = name.partition(":")[0]
        reason = f"The entry point names an object in a module; it must name the module: {module}."
        return _Found(label, name, (), (reason,))
    try:
        modules, broken = import_modules(name)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # another package's import may raise anything
        return _Found(label, name, (), (f"{name} cannot be imported: {_text_of(error)}",))
    own = _own_package(name)
    classes = [
        (class_name, cls)
        for module in modules
        for class_name, cls in vars(module).items()
        if is_builder(cls) and f"{cls.__module__}.".startswith(f"{own}.")
    ]
    builders = tuple((class_name, cls) for class_name, cls in classes if not _reason_against(cls, class_name))
    ops = {cls for _, cls in builders}
    reasons = [f"{module} cannot be imported: {error}." for module, error in broken.items()]
    reasons += [
        f"{cls.__module__}.{cls.__qualname__} is not an op: {_reason_against(cls)}."
        for cls in dict.fromkeys(cls for _, cls in classes)
        # A class with subclasses, or an abstract class without a name, is meant as a base class.
        if cls not in ops and not cls.__subclasses__() and (cls.NAME or not inspect.isabstract(cls))
    ]
    return _Found(label, name, builders, tuple(reasons))


def _reason_against(cls: type[OpBuilder], class_name: str = "") -> str:
    """Why a builder class is not an op under ``class_name``; empty if it is one."""
    if inspect.isabstract(cls):
        return f"it does not define {', '.join(sorted(cls.__abstractmethods__))}()"
    if not (isinstance(cls.NAME, str) and cls.NAME.isidentifier()):
        return f"its NAME is {cls.NAME!r}, not a Python identifier"
    return "" if class_name.endswith("Builder") else "its class name does not end in Builder"


def _text_of(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).rstrip('.')}."


def _own_package(module: str) -> str:
    """The outermost package around an imported module; namespace packages do not count."""
    parts = module.split(".")
    outer = [".".join(parts[:count]) for count in range(1, len(parts))]
    return next((name for name in outer if getattr(sys.modules.get(name), "__file__", None)), module)
