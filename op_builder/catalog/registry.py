"""From a builder's name to its class, on a given device.

Each device has a package of builders. ``op_builder.cpu``, ``cuda``, ``xpu`` and ``host`` (every other device) are views
of the table; a vendor's package contains modules with ``*Builder`` classes. An op of the table that the device lacks
has a builder that is never compatible and gives the reason. Ops that other packages register
(:mod:`op_builder.catalog.registered_ops`) are available on every device and come last. An unknown name is an error with
near matches, never None.
"""

import logging
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING

from op_builder.builder.base import OpBuilder
from op_builder.catalog import native
from op_builder.catalog.table import OPS, Op, op_of
from op_builder.errors import UnknownOpError

if TYPE_CHECKING:
    from op_builder.catalog.modules import DevicePackage
    from op_builder.catalog.registered_ops import RegisteredPackage

# Modules that only another package's op or an error needs are imported in functions: a warm load takes milliseconds.

logger = logging.getLogger(__name__)

OUR_PACKAGES = ("op_builder.cpu", "op_builder.cuda", "op_builder.xpu", "op_builder.host")
# Names in op_builder that end in Builder and are not ops.
_BASES = ("CPUOpBuilder", "CUDAOpBuilder", "OpBuilder", "SYCLOpBuilder", "TorchCPUOpBuilder")


def find_builder(class_name: str, package: str) -> type[OpBuilder]:
    """The builder class of that name: the device's in ``package``, an op of the table, or another package's.

    Raises:
        UnknownOpError: no op has that builder; suggests near matches and lists the problems of other packages.
    """
    op = op_of(class_name)
    if op is not None and package in OUR_PACKAGES:
        kernels = op.kernels_for(_device(package))
        return _row_class(op, kernels) if kernels is not None else _lacking(op, package, "")
    device = device_package(package)
    if class_name in device.classes:
        return device.classes[class_name]
    if op is not None:
        return _lacking(op, package, device.complaint)
    registered = registered_packages(package)
    for other in registered:
        if class_name in other.classes:
            return other.classes[class_name]
    raise _unknown(class_name, device, registered)


def device_view(package: str) -> tuple[list[str], Callable[[str], type[OpBuilder]], Callable[[], list[str]]]:
    """``__all__``, ``__getattr__`` and ``__dir__`` of the module ``package``, one of :data:`OUR_PACKAGES`."""
    names = sorted(op.builder for op in OPS if op.kernels_for(_device(package)))

    def get(name: str) -> type[OpBuilder]:
        # An op that the device lacks has a builder, too, which gives the reason.
        if name.endswith("Builder"):
            return find_builder(name, package)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return names, get, lambda: names


@cache
def device_package(package: str) -> "DevicePackage":
    """The builders of ``package``."""
    from op_builder.catalog.modules import DevicePackage, vendor_package

    if package not in OUR_PACKAGES:
        return vendor_package(package)
    kernels_of = {op: op.kernels_for(_device(package)) for op in OPS}
    return DevicePackage({op.builder: _row_class(op, kernels) for op, kernels in kernels_of.items() if kernels}, {})


def registered_packages(package: str) -> "list[RegisteredPackage]":
    """The ops that other packages register, except names that the device's ``package`` or this project uses."""
    from op_builder.catalog import registered_ops

    taken: dict[str, type[OpBuilder] | None] = dict.fromkeys(_BASES)
    taken.update((name, None) for op in OPS for name in (op.name, op.builder))
    for owner in (*OUR_PACKAGES, package):
        for class_name, cls in device_package(owner).classes.items():
            taken.update({class_name: cls, cls.NAME: cls})
    return registered_ops.registered_packages(taken)


def all_builders(package: str) -> dict[str, OpBuilder]:
    """{op name: builder instance} of every op in a fixed order: the table's, the device's, the registered ones."""
    classes = {op.name: find_builder(op.builder, package) for op in OPS}
    packages: list[DevicePackage | RegisteredPackage] = [device_package(package), *registered_packages(package)]
    for found in packages:
        for cls in found.classes.values():
            classes.setdefault(cls.NAME, cls)
    return {name: _make(cls, package) for name, cls in classes.items()}


def _device(package: str) -> str:
    return package.rpartition(".")[2]


@cache
def _row_class(op: Op, kernels: str) -> type[OpBuilder]:
    """The class of an op with these kernels, which all devices that use them share."""
    if kernels == "cpu":
        base: type[OpBuilder] = getattr(native, op.base)
    else:
        from op_builder.catalog import gpu

        base = gpu.CudaRowBuilder if kernels == "cuda" else gpu.SyclRowBuilder
    attributes = {
        "OP": op,
        "NAME": op.name,
        "BUILD_VAR": op.build_variable,
        "SUMMARY": op.summary,
        "__module__": f"op_builder.{kernels}",
        "__doc__": f"Builds ``{op.name}``; ``load()`` returns a :class:`op_builder.ops.{op.module}`.",
    }
    return type(op.builder, (base,), attributes)


def _lacking(op: Op, package: str, complaint: str) -> type[OpBuilder]:
    """The builder of an op that the device of ``package`` lacks."""
    from op_builder._version import __version__
    from op_builder.catalog.unavailable import unavailable

    devices = ", ".join(op.devices)
    reason = f"accel-ops {__version__} has no '{op.name}' for this device, only for {devices}. {complaint}".strip()
    if op.devices == ["xpu"]:
        remedy = f"Use the SYCL kernels, which also work on CPU tensors: from op_builder.xpu import {op.builder}."
    else:
        remedy = f"Use one of these devices: {devices}. For CPU tensors: from op_builder.cpu import {op.builder}."
    return unavailable(op.builder, op.name, op.summary, package, reason, remedy)


def _unknown(class_name: str, device: "DevicePackage", registered: "list[RegisteredPackage]") -> UnknownOpError:
    import difflib

    by_op = {cls.NAME: name for name, cls in device.classes.items()} | {op.name: op.builder for op in OPS}
    names = {*device.classes, *(op.builder for op in OPS)}.union(*(other.classes for other in registered))
    close = difflib.get_close_matches(class_name, sorted(names), n=3, cutoff=0.5)
    near = [by_op[class_name]] if class_name in by_op else close
    complaints = [device.complaint, *(other.complaint for other in registered)]
    return UnknownOpError(
        " ".join(filter(None, [f"Unknown op builder {class_name!r}.", *complaints])),
        f"Did you mean {' or '.join(near)}?" if near else f"Known builders: {', '.join(sorted(names))}.",
    )


def _make(cls: type[OpBuilder], package: str) -> OpBuilder:
    try:
        builder = cls()
        if not builder.name:  # an AttributeError if its __init__() does not call OpBuilder's
            raise ValueError("it has no name")
        return builder
    except Exception as error:  # another package's builder may raise anything, and the report must survive it
        from op_builder.catalog.unavailable import unavailable

        reason = f"Its builder cannot be created: {type(error).__name__}: {error}"
        remedy = f"Report this to the author of {cls.__module__}."
        return unavailable(cls.__name__, cls.NAME, cls.SUMMARY, package, reason, remedy, cls)()
