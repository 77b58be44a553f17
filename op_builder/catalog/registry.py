"""From a builder's name to its class, on a given device.

A device's builders are those of its package: of ``op_builder.cpu``, ``cuda``, ``xpu`` and ``host`` (every other
device), which are views of the table; or the ``*Builder`` classes in the modules of a vendor's package. An op of the
table that the device lacks gives a real builder that is never compatible and says why. After these come the ops that
other packages register (:mod:`op_builder.catalog.registered_ops`), for every device. A name that nobody has is an error
with near matches. Never None.
"""

import logging
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from op_builder._version import __version__
from op_builder.builder.base import OpBuilder
from op_builder.catalog import native
from op_builder.catalog.table import OPS, Op, op_of
from op_builder.errors import UnknownOpError

if TYPE_CHECKING:
    from op_builder.catalog.registered_ops import RegisteredPackage

# What only an op of another package or an error needs is imported in the functions that need it: a load of one of this
# project's ops takes a few milliseconds.

logger = logging.getLogger(__name__)

OUR_PACKAGES = ("op_builder.cpu", "op_builder.cuda", "op_builder.xpu", "op_builder.host")
# Names of op_builder that end in Builder and are no op.
_BASES = ("CPUOpBuilder", "CUDAOpBuilder", "OpBuilder", "SYCLOpBuilder", "TorchCPUOpBuilder")


class DevicePackage(NamedTuple):
    """What a device's package holds.

    Attributes:
        classes: the ``*Builder`` classes, by name.
        broken: why a module cannot be imported, by its name; its builders are missing.
    """

    classes: dict[str, type[OpBuilder]]
    broken: dict[str, str]

    @property
    def complaint(self) -> str:
        """The broken modules in words, empty when there are none."""
        return " ".join(f"{module} cannot be imported: {error}." for module, error in self.broken.items())


def find_builder(class_name: str, package: str) -> type[OpBuilder]:
    """The builder class of that name: the device's in ``package``, a known op's, or one that another package registers.

    Raises:
        UnknownOpError: no op has that builder; suggests near matches, and says what is missing of other packages.
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


@cache
def device_package(package: str) -> DevicePackage:
    """The builders of ``package``; of a vendor's, those that its modules define before those they only import."""
    if package in OUR_PACKAGES:
        served = {op: op.kernels_for(_device(package)) for op in OPS}
        return DevicePackage({op.builder: _row_class(op, kernels) for op, kernels in served.items() if kernels}, {})
    from op_builder.catalog.modules import builders_of, import_modules

    modules, broken = import_modules(package)
    for name, error in broken.items():
        logger.warning("The op builders of %s are missing: %s", name, error)
    found = [item for module in modules for item in builders_of(module)]
    found.sort(key=lambda item: item[1].__module__.startswith(package))
    return DevicePackage(dict(found), broken)


def registered_packages(package: str) -> "list[RegisteredPackage]":
    """What other packages register, without what the device's ``package`` or this project has under the same name."""
    from op_builder.catalog import registered_ops

    taken: dict[str, type[OpBuilder] | None] = dict.fromkeys(_BASES)
    taken.update((name, None) for op in OPS for name in (op.name, op.builder))
    for having in (*OUR_PACKAGES, package):
        for class_name, cls in device_package(having).classes.items():
            taken.update({class_name: cls, cls.NAME: cls})
    return registered_ops.registered_packages(taken)


def all_builders(package: str) -> dict[str, OpBuilder]:
    """{op name: builder instance} of every op: the table's, the device's own, registered; in a fixed order."""
    classes = {op.name: find_builder(op.builder, package) for op in OPS}
    for cls in device_package(package).classes.values():
        classes.setdefault(cls.NAME, cls)
    for other in registered_packages(package):
        for cls in other.classes.values():
            classes.setdefault(cls.NAME, cls)
    return {name: _make(cls, package) for name, cls in classes.items()}


def _device(package: str) -> str:
    return package.rpartition(".")[2]


@cache
def _row_class(op: Op, kernels: str) -> type[OpBuilder]:
    """The class of an op with these kernels, the same on every device that uses them."""
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
    from op_builder.catalog.unavailable import unavailable

    devices = ", ".join(op.devices)
    reason = f"accel-ops {__version__} has no '{op.name}' for this device, only for {devices}. {complaint}".strip()
    if op.devices == ["xpu"]:
        remedy = f"Use the SYCL kernels, which work on CPU tensors too: from op_builder.xpu import {op.builder}."
    else:
        remedy = f"Use a device that has it: {devices}. For CPU tensors: from op_builder.cpu import {op.builder}."
    return unavailable(op.builder, op.name, op.summary, package, reason, remedy)


def _unknown(class_name: str, device: DevicePackage, registered: "list[RegisteredPackage]") -> UnknownOpError:
    import difflib

    by_op = {cls.NAME: name for name, cls in device.classes.items()} | {op.name: op.builder for op in OPS}
    names = {*device.classes, *(op.builder for op in OPS)}.union(*(other.classes for other in registered))
    close = difflib.get_close_matches(class_name, sorted(names), n=3, cutoff=0.5)
    near = [by_op[class_name]] if class_name in by_op else close
    complaints = [device.complaint, *(other.complaint for other in registered)]
    return UnknownOpError(
        " ".join(filter(None, [f"There is no op builder {class_name!r}.", *complaints])),
        f"Did you mean {' or '.join(near)}?" if near else f"Known builders: {', '.join(sorted(names))}.",
    )


def _make(cls: type[OpBuilder], package: str) -> OpBuilder:
    try:
        builder = cls()
        if not builder.name:  # or there is no such attribute, where its __init__() does not call OpBuilder's
            raise ValueError("it has no name")
        return builder
    except Exception as error:  # another package's builder may raise anything; the report must survive it
        from op_builder.catalog.unavailable import unavailable

        reason = f"Its builder cannot be made: {type(error).__name__}: {error}"
        remedy = f"Report this to the author of {cls.__module__}."
        return unavailable(cls.__name__, cls.NAME, cls.SUMMARY, package, reason, remedy, cls)()
