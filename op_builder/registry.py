"""From a builder's name to its class, on a given device.

A device's builders are the ``*Builder`` classes of the modules in one package
(``op_builder.cpu``, or a vendor's own). An op that is known but that the device lacks gives a
real builder that is never compatible and says why; an unknown name is an error with near
matches. Never None.
"""

from __future__ import annotations

import difflib
import importlib
import pkgutil
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import NoReturn

from op_builder._version import __version__
from op_builder.base import OpBuilder
from op_builder.checks import CheckOutcome, Failed, require
from op_builder.errors import UnknownOpError


@dataclass(frozen=True)
class KnownOp:
    """An op whose name and builder are part of the interface, whether or not a device has it."""

    name: str
    builder: str
    summary: str


KNOWN_OPS = (
    KnownOp("cpu_adam", "CPUAdamBuilder", "Adam and AdamW with parameters and state in host memory"),
    KnownOp("cpu_adagrad", "CPUAdagradBuilder", "Adagrad with state in host memory"),
    KnownOp("cpu_lion", "CPULionBuilder", "Lion with state in host memory"),
    KnownOp("fused_adam", "FusedAdamBuilder", "Adam over many tensors in one kernel on the device"),
    KnownOp("async_io", "AsyncIOBuilder", "tensors to and from storage, asynchronously"),
    KnownOp("pin_memory", "PinMemoryBuilder", "page-locked host memory"),
    KnownOp("shm_comm", "ShareMemCommBuilder", "collectives between CPU ranks of one host"),
    KnownOp("ccl_comm", "CCLCommBuilder", "collectives between CPU ranks through oneCCL"),
)


class UnavailableOpBuilder(OpBuilder):
    """The builder of a known op that a device does not have."""

    PACKAGE = ""

    def sources(self) -> list[str]:
        return []

    def build_checks(self) -> list[CheckOutcome]:
        return [
            Failed(
                "implementation",
                f"Not in accel-ops {__version__} for this device.",
                "Use another device, or a later accel-ops.",
            )
        ]

    def load(self, verbose: bool = True) -> NoReturn:  # noqa: ARG002
        """Raise, with the reason and the remedy."""
        require(self.name, self.check())
        raise AssertionError("an unavailable op has a failed check")

    def jit_load(self, verbose: bool = True) -> NoReturn:
        """Raise, with the reason and the remedy."""
        self.load(verbose)


def find_builder(class_name: str, package: str) -> type[OpBuilder]:
    """The builder class of that name among the device's builders in ``package``.

    Raises:
        UnknownOpError: no op has that builder; suggests near matches.
    """
    found = builder_classes(package).get(class_name)
    if found is not None:
        return found
    for op in KNOWN_OPS:
        if op.builder == class_name:
            return _unavailable(op, package)
    names = sorted({*builder_classes(package), *(op.builder for op in KNOWN_OPS)})
    near = difflib.get_close_matches(class_name, names, n=3, cutoff=0.5)
    raise UnknownOpError(
        f"There is no op builder {class_name!r}.",
        f"Did you mean {' or '.join(near)}?" if near else f"Known builders: {', '.join(names)}.",
    )


@cache
def builder_classes(package: str) -> dict[str, type[OpBuilder]]:
    """The ``*Builder`` classes that the modules of ``package`` define or import, by name."""
    root = importlib.import_module(package)
    modules = [root]
    for item in pkgutil.iter_modules(vars(root).get("__path__", [])):
        modules.append(importlib.import_module(f"{package}.{item.name}"))
    return {name: cls for module in modules for name, cls in _builders_of(module).items()}


def all_builders(package: str) -> dict[str, OpBuilder]:
    """{op name: builder instance} of every op that the device has or is known, in a fixed order."""
    classes = {op.name: find_builder(op.builder, package) for op in KNOWN_OPS}
    for cls in builder_classes(package).values():
        classes.setdefault(cls.NAME, cls)
    return {name: cls() for name, cls in classes.items()}


def _builders_of(module: ModuleType) -> dict[str, type[OpBuilder]]:
    return {
        name: value
        for name, value in vars(module).items()
        if name.endswith("Builder") and isinstance(value, type) and vars(value).get("NAME")
    }


@cache
def _unavailable(op: KnownOp, package: str) -> type[OpBuilder]:
    attributes = {
        "NAME": op.name,
        "BUILD_VAR": f"ACCEL_BUILD_{op.name.upper()}",
        "SUMMARY": op.summary,
        "PACKAGE": package,
        "__module__": package,
    }
    return type(op.builder, (UnavailableOpBuilder,), attributes)
