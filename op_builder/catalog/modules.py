"""The builder classes in the modules of a package."""

from __future__ import annotations

import importlib
import inspect
import logging
import pkgutil
from dataclasses import dataclass
from types import ModuleType

from op_builder.builder.base import OpBuilder, is_builder

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class DevicePackage:
    """A device's package of builders.

    Attributes:
        classes: the ``*Builder`` classes, by name.
        broken: the modules that cannot be imported, with the error; their builders are missing.
    """

    classes: dict[str, type[OpBuilder]]
    broken: dict[str, str]

    @property
    def reason(self) -> str:
        """Why builders are missing, a sentence for each broken module; empty without any."""
        return " ".join(f"{module} cannot be imported: {error}." for module, error in self.broken.items())


def vendor_package(package: str) -> DevicePackage:
    """The builders in a vendor's package; classes that it defines precede those that it imports."""
    modules, broken = import_modules(package)
    for name, error in broken.items():
        logger.warning("The op builders of %s are missing: %s", name, error)
    found = [item for module in modules for item in builders_of(module)]
    found.sort(key=lambda item: item[1].__module__.startswith(package))
    return DevicePackage(dict(found), broken)


def import_modules(name: str) -> tuple[list[ModuleType], dict[str, str]]:
    """Import a module and, if it is a package, the modules in it.

    Returns:
        the modules, and the error of each submodule that cannot be imported, by its name.

    Raises:
        Exception: any error of importing ``name`` itself.
    """
    root = importlib.import_module(name)
    modules, broken = [root], {}
    for item in pkgutil.iter_modules(vars(root).get("__path__", [])):
        if item.name == "__main__":
            continue
        try:
            modules.append(importlib.import_module(f"{name}.{item.name}"))
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # it may need a driver that is not installed; the other modules may not
            broken[f"{name}.{item.name}"] = f"{type(error).__name__}: {error}"
    return modules, broken


def builders_of(module: ModuleType) -> list[tuple[str, type[OpBuilder]]]:
    """The concrete ``*Builder`` classes that a module defines or imports, by their names in it."""
    return [
        (name, value)
        for name, value in vars(module).items()
        if name.endswith("Builder") and is_builder(value) and value.NAME and not inspect.isabstract(value)
    ]
