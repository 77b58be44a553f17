"""Other packages' ops, from the entry-point group ``op_builder.ops``.

An author registers ops in ``pyproject.toml``::

    [project.entry-points."op_builder.ops"]
    my-ops = "my_ops.builders"

The entry point's name is a label, usually the project's name. Its value is a module or a package. Each concrete
``*Builder`` class in it (for a package, also in its modules) is an op on every device; the builder's checks decide
whether it works. The class must be defined in the author's own package; a class that is only imported does not count.

An op and its builder need unique names. A name that this project or a package earlier in the order of labels and
modules uses is not replaced: the later op is left out. That, a module that cannot be imported and a module without an
op are problems of that package alone: each is logged once, shown by the error about an unknown name, and listed by the
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
from importlib.metadata import EntryPoint, entry_points
from types import ModuleType

from op_builder.builder.base import OpBuilder
from op_builder.catalog.modules import builders_of, import_modules

logger = logging.getLogger(__name__)

ENTRY_POINT_GROUP = "op_builder.ops"


@dataclass(frozen=True)
class RegisteredPackage:
    """The ops of one entry point.

    Attributes:
        label: the entry point's name.
        module: the entry point's value.
        classes: the builder classes that it adds, by name.
        problems: why it does not add others.
    """

    label: str
    module: str
    classes: dict[str, type[OpBuilder]]
    problems: tuple[str, ...]

    @property
    def complaint(self) -> str:
        """One sentence with all problems; empty without any."""
        listed = "; ".join(self.problems)
        return f"Problems of the ops that {self.label} ({self.module}) registers: {listed}." if listed else ""


def registered_packages(taken: Mapping[str, type[OpBuilder] | None]) -> list[RegisteredPackage]:
    """The ops of each entry point, sorted by label.

    Args:
        taken: names of ops and builders that are in use, each with its class, or None for a name of this project.
    """
    owners = dict(taken)
    packages = []
    for found in _found_modules():
        package = _admitted(found, owners)
        for problem in package.problems:
            _warn_once(package.label, package.module, problem)
        packages.append(package)
    return packages


@dataclass(frozen=True)
class FoundModules:
    """The modules of one entry point.

    Attributes:
        label: the entry point's name.
        name: the entry point's value.
        own_package: the author's package; only classes defined in it count.
        modules: the modules that could be imported.
        problems: why others could not.
    """

    label: str
    name: str
    own_package: str
    modules: tuple[ModuleType, ...]
    problems: tuple[str, ...]

    def builders(self) -> list[tuple[str, type[OpBuilder]]]:
        """The builder classes that are ops, by their names in the modules; a class may occur twice."""
        found = [item for module in self.modules for item in builders_of(module)]
        return [(name, cls) for name, cls in found if self._is_own(cls) and _has_good_name(cls)]

    def rejected(self) -> list[str]:
        """The builder classes that look like ops and are not, each with the reason, in sentences."""
        ops = {cls for _, cls in self.builders()}
        values = [value for module in self.modules for value in vars(module).values()]
        classes = [value for value in values if isinstance(value, type) and issubclass(value, OpBuilder)]
        return [
            f"{cls.__module__}.{cls.__qualname__} is not an op: {_shortcoming(cls)}"
            for cls in dict.fromkeys(classes)
            # A class with subclasses, or an abstract class without a name, is meant as a base class.
            if self._is_own(cls) and cls not in ops and not cls.__subclasses__()
            if cls.NAME or not inspect.isabstract(cls)
        ]

    def _is_own(self, cls: type) -> bool:
        return cls.__module__ == self.own_package or cls.__module__.startswith(f"{self.own_package}.")


def find_modules(label: str, name: str) -> FoundModules:
    """Import the modules of an entry point; a module that cannot be imported is a problem, not an error."""
    if ":" in name:
        module = name.partition(":")[0]
        return _nothing(label, name, f"the entry point names an object in a module; it must name the module: {module}")
    try:
        modules, broken = import_modules(name)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # another package's import may raise anything
        return _nothing(label, name, f"{name} cannot be imported: {type(error).__name__}: {error}")
    problems = tuple(f"{module} cannot be imported: {error}" for module, error in broken.items())
    return FoundModules(label, name, _own_package(name), tuple(modules), problems)


def _nothing(label: str, name: str, problem: str) -> FoundModules:
    return FoundModules(label, name, name, (), (problem,))


def _admitted(found: FoundModules, owners: dict[str, type[OpBuilder] | None]) -> RegisteredPackage:
    """The ops of ``found`` whose names are free; adds them to ``owners``."""
    classes: dict[str, type[OpBuilder]] = {}
    problems = [*found.problems, *found.rejected()]
    for class_name, cls in found.builders():
        clashes = [name for name in (class_name, cls.NAME) if owners.get(name, cls) is not cls]
        if clashes:
            owner = owners[clashes[0]]
            whose = "accel-ops" if owner is None else f"{owner.__module__}.{owner.__qualname__}"
            problems.append(f"{cls.__module__}.{class_name} is left out: the name {clashes[0]!r} belongs to {whose}")
            continue
        owners[class_name] = owners[cls.NAME] = classes[class_name] = cls
    if not classes and not problems:
        problems.append(f"{found.name} has no op: no concrete class in it extends OpBuilder")
    return RegisteredPackage(found.label, found.name, classes, tuple(dict.fromkeys(problems)))


def _shortcoming(cls: type[OpBuilder]) -> str:
    """Why a builder class is not an op."""
    if inspect.isabstract(cls):
        return f"it does not define {', '.join(sorted(cls.__abstractmethods__))}()"
    if not _has_good_name(cls):
        return f"its NAME is {cls.NAME!r}, not a Python identifier"
    return "its class name does not end in Builder"


def _has_good_name(cls: type[OpBuilder]) -> bool:
    return isinstance(cls.NAME, str) and cls.NAME.isidentifier()


def _own_package(module: str) -> str:
    """The outermost package around an imported module; namespace packages do not count."""
    parts = module.split(".")
    outer = [".".join(parts[:count]) for count in range(1, len(parts))]
    return next((name for name in outer if getattr(sys.modules.get(name), "__file__", None)), module)


def _found_modules() -> Iterable[FoundModules]:
    # A module that is imported here may request another package's op. A lock instead could deadlock with Python's
    # import lock.
    if getattr(_state, "is_importing", False):
        logger.warning(
            "Other packages' ops cannot be found while these are being imported; import the class from its package."
        )
        return ()
    _state.is_importing = True
    try:
        return _modules_on(tuple(map(str, sys.path)))
    finally:
        _state.is_importing = False


_state = threading.local()


@lru_cache(maxsize=1)
def _modules_on(search_path: tuple[str, ...]) -> tuple[FoundModules, ...]:  # noqa: ARG001  (part of the cache key)
    try:
        entries = entry_points(group=ENTRY_POINT_GROUP)
    except Exception as error:  # one distribution's damaged metadata affects all
        problem = f"the entry points of the installed packages cannot be read: {type(error).__name__}: {error}"
        return (_nothing("unknown", ENTRY_POINT_GROUP, problem),)
    return tuple(find_modules(entry.name, entry.value) for entry in sorted(entries, key=_order))


def _order(entry: EntryPoint) -> tuple[str, str]:
    return entry.name, entry.value


_warned: set[tuple[str, str, str]] = set()


def _warn_once(label: str, module: str, problem: str) -> None:
    if (label, module, problem) not in _warned:
        _warned.add((label, module, problem))
        logger.warning("%s (%s) registers ops for op_builder: %s.", label, module, problem)
