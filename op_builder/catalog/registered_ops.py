"""Ops of other packages, through the entry-point group ``op_builder.ops``.

The protocol, in the author's ``pyproject.toml``::

    [project.entry-points."op_builder.ops"]
    my-ops = "my_ops.builders"

The entry point's name is a label, best the project's own name. Its object is a module or a package. Each
concrete ``*Builder`` class in it (of a package, in its modules too) is an op on every device; the builder's own
checks say what it can do here. Classes count that are defined anywhere in the author's own package; one that
is only imported, to extend it, does not.

An op and its builder need names that nobody else has. What this project has, or a package that comes earlier by
label and module, is not replaced: the later one is left out, with the reason. That, a module that cannot be imported
and one that holds no op are problems of that package alone: each is logged once, named by the error on an unknown
name, and listed by the report.

Reading the entry points takes some ten milliseconds, so it happens when a name is none of the device's own or all
ops are listed, never at import.
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
    """What one entry point brings.

    Attributes:
        label: the entry point's name.
        module: what it names.
        classes: the builder classes it adds, by name.
        problems: what it does not add, and why.
    """

    label: str
    module: str
    classes: dict[str, type[OpBuilder]]
    problems: tuple[str, ...]

    @property
    def complaint(self) -> str:
        """The problems in words, empty when there are none."""
        listed = "; ".join(self.problems)
        return f"Of the ops that {self.label} ({self.module}) registers: {listed}." if listed else ""


def registered_packages(taken: Mapping[str, type[OpBuilder] | None]) -> list[RegisteredPackage]:
    """What each entry point adds, in the order of their names.

    Args:
        taken: names of ops and of builders that are not to be had, with the class that has them.
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
    """The modules that a registration leads to.

    Attributes:
        label: of the registration.
        name: of the module or package that it names.
        own_package: the package whose classes count as the author's own.
        modules: those that could be imported.
        problems: why others could not.
    """

    label: str
    name: str
    own_package: str
    modules: tuple[ModuleType, ...]
    problems: tuple[str, ...]

    def builders(self) -> list[tuple[str, type[OpBuilder]]]:
        """The builder classes that are ops, by the names they have in the modules; one may come twice."""
        found = [item for module in self.modules for item in builders_of(module)]
        return [(name, cls) for name, cls in found if self._is_own(cls) and _has_good_name(cls)]

    def rejected(self) -> list[str]:
        """The builder classes that look like ops and are not, each with the reason."""
        ops = {cls for _, cls in self.builders()}
        values = [value for module in self.modules for value in vars(module).values()]
        classes = [value for value in values if isinstance(value, type) and issubclass(value, OpBuilder)]
        return [
            f"{cls.__module__}.{cls.__qualname__} is not an op: {_shortcoming(cls)}"
            for cls in dict.fromkeys(classes)
            # A class that others extend, and an abstract one without a name, is meant as a base.
            if self._is_own(cls) and cls not in ops and not cls.__subclasses__()
            if cls.NAME or not inspect.isabstract(cls)
        ]

    def _is_own(self, cls: type) -> bool:
        return cls.__module__ == self.own_package or cls.__module__.startswith(f"{self.own_package}.")


def find_modules(label: str, name: str) -> FoundModules:
    """Import what a registration names; what cannot be imported is a problem and no error."""
    if ":" in name:
        module = name.partition(":")[0]
        return _nothing(label, name, f"it names an object in a module, and must name the module: {module}")
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
    """What of ``found`` is new; enters it in ``owners``."""
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
        problems.append(f"{found.name} holds no op: no concrete class in it extends OpBuilder")
    return RegisteredPackage(found.label, found.name, classes, tuple(dict.fromkeys(problems)))


def _shortcoming(cls: type[OpBuilder]) -> str:
    """Why a builder class is no op."""
    if inspect.isabstract(cls):
        return f"it does not define {', '.join(sorted(cls.__abstractmethods__))}()"
    if not _has_good_name(cls):
        return f"its NAME is {cls.NAME!r}, which is no name of letters, digits and _"
    return "its own name does not end in Builder"


def _has_good_name(cls: type[OpBuilder]) -> bool:
    return isinstance(cls.NAME, str) and cls.NAME.isidentifier()


def _own_package(module: str) -> str:
    """The outermost package around an imported module; a namespace that projects share is nobody's own."""
    parts = module.split(".")
    outer = [".".join(parts[:count]) for count in range(1, len(parts))]
    return next((name for name in outer if getattr(sys.modules.get(name), "__file__", None)), module)


def _found_modules() -> Iterable[FoundModules]:
    # A module that is being imported here may itself ask for an op of another package. No lock: that
    # module may as well be waited for by the thread that holds it.
    if getattr(_state, "is_importing", False):
        logger.warning("Ops of other packages are being looked up just now: import a class from its own package.")
        return ()
    _state.is_importing = True
    try:
        return _modules_on(tuple(map(str, sys.path)))
    finally:
        _state.is_importing = False


_state = threading.local()


@lru_cache(maxsize=1)
def _modules_on(search_path: tuple[str, ...]) -> tuple[FoundModules, ...]:  # noqa: ARG001  (asked again when it changes)
    try:
        entries = entry_points(group=ENTRY_POINT_GROUP)
    except Exception as error:  # one distribution's damaged record hides those of all
        problem = f"the entry points of the installed packages cannot be read: {type(error).__name__}: {error}"
        return (_nothing("anybody", ENTRY_POINT_GROUP, problem),)
    return tuple(find_modules(entry.name, entry.value) for entry in sorted(entries, key=_order))


def _order(entry: EntryPoint) -> tuple[str, str]:
    return entry.name, entry.value


_warned: set[tuple[str, str, str]] = set()


def _warn_once(label: str, module: str, problem: str) -> None:
    if (label, module, problem) not in _warned:
        _warned.add((label, module, problem))
        logger.warning("%s (%s) registers ops for op_builder: %s.", label, module, problem)
