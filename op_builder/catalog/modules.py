"""The builder classes that modules hold."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from types import ModuleType

from op_builder.builder.base import OpBuilder


def import_modules(name: str) -> tuple[list[ModuleType], dict[str, str]]:
    """A module and, of a package, the modules in it; and why one of those cannot be imported, by its name.

    Raises:
        Exception: whatever importing ``name`` itself raises.
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
        except BaseException as error:  # it may need a driver that is not installed; the others need not
            broken[f"{name}.{item.name}"] = f"{type(error).__name__}: {error}"
    return modules, broken


def builders_of(module: ModuleType) -> list[tuple[str, type[OpBuilder]]]:
    """The concrete ``*Builder`` classes in a module, defined there or imported, by the names they have in it."""
    return [
        (name, value)
        for name, value in vars(module).items()
        if name.endswith("Builder")
        and isinstance(value, type)
        and issubclass(value, OpBuilder)
        and value.NAME
        and not inspect.isabstract(value)
    ]
