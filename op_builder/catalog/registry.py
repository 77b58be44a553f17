"""From a builder's name to its class, on a given device.

Each device has a package of builders. ``op_builder.cpu``, ``cuda``, ``xpu`` and ``host`` (every other device) are views
of the table; a vendor's package contains modules with ``*Builder`` classes. An op of the table that the device lacks
has a builder that is never compatible and gives the reason. Ops that other packages register
(:mod:`op_builder.catalog.registered_ops`) are available on every device and come last. An unknown name is an error with
near matches, never None.
"""

import logging
import os
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING

from op_builder.builder.base import OpBuilder
from op_builder.catalog import native
from op_builder.catalog.table import DEEPSPEED_ONLY_OPS, OPS, Op, op_of
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
        return _row_class(op, kernels) if kernels is not None else _unavailable_op(op, package, "")
    device = device_package(package)
    if class_name in device.classes:
        return device.classes[class_name]
    if op is not None:
        return _unavailable_op(op, package, device.complaint)
    registered = registered_packages(package)
    for other in registered:
        if class_name in other.classes:
            return other.classes[class_name]
    if class_name in DEEPSPEED_ONLY_OPS:
        return _unavailable_deepspeed_op(class_name, package)
    raise _unknown(class_name, device, registered)


# Programs that search a device's package for builders find its modules here, one for each op.
_MODULES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "modules_of_devices")


def device_view(
    package: str,
) -> tuple[list[str], Callable[[str], type[OpBuilder]], Callable[[], list[str]], list[str], str]:
    """``__all__``, ``__getattr__``, ``__dir__``, ``__path__`` and ``__file__`` of ``package``, of :data:`OUR_PACKAGES`.

    All packages share one directory, because the modules in it differ by their packages' names alone.
    """
    names = sorted(op.builder for op in OPS if op.kernels_for(_device(package)))

    def get(name: str) -> type[OpBuilder]:
        # An op that the device lacks has a builder, too, which gives the reason.
        if name.endswith("Builder"):
            return find_builder(name, package)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return names, get, lambda: names, [_MODULES], os.path.join(_MODULES, "__init__.py")


def op_view(module: str) -> dict[str, type[OpBuilder]]:
    """The content of the module ``<package>.<op>``: the builder of the op for the package's device."""
    package, _, name = module.rpartition(".")
    if package not in OUR_PACKAGES:
        return {}
    builder = next(op.builder for op in OPS if op.name == name)
    return {builder: find_builder(builder, package)}


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
    from op_builder.load.resolver import without_compiling

    with without_compiling():  # an installed package may load its op when it is imported
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
    elif kernels == "torch":
        from op_builder.catalog.on_torch import TorchRowBuilder

        base = TorchRowBuilder
    else:
        from op_builder.catalog import gpu

        base = gpu.CudaRowBuilder if kernels == "cuda" else gpu.SyclRowBuilder
    attributes = {
        "OP": op,
        "NAME": op.name,
        "BUILD_VAR": op.build_variable,
        "SUMMARY": op.summary,
        "__module__": f"op_builder.{'host' if kernels == 'torch' else kernels}",
        "__doc__": f"``load()`` returns a :class:`op_builder.ops.{op.on_torch if kernels == 'torch' else op.module}`.",
    }
    return type(op.builder, (base,), attributes)


def _unavailable_op(op: Op, package: str, complaint: str) -> type[OpBuilder]:
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


def _unavailable_deepspeed_op(class_name: str, package: str) -> type[OpBuilder]:
    """The builder of an op of DeepSpeed that this project does not have."""
    from op_builder.catalog.unavailable import unavailable

    name, kind = DEEPSPEED_ONLY_OPS[class_name]
    if class_name == "NotImplementedBuilder":
        remedy = "Load the op that you need by its own builder, whose error gives the reason."
    elif kind.startswith("CUDA"):
        remedy = "Use DeepSpeed's own class on accel-ops' engine: import op_builder.integrations.deepspeed."
    else:
        remedy = "Register an op with this builder in the entry-point group op_builder.ops."
    reason = f"accel-ops does not have {class_name} of DeepSpeed ({kind})."
    return unavailable(class_name, name, "an op of DeepSpeed", package, reason, remedy)


def _unknown(class_name: str, device: "DevicePackage", registered: "list[RegisteredPackage]") -> UnknownOpError:
    import difflib

    by_op = {cls.NAME: name for name, cls in device.classes.items()} | {op.name: op.builder for op in OPS}
    names = {*device.classes, *(op.builder for op in OPS)}.union(*(other.classes for other in registered))
    # The common suffix would make all names similar.
    short = {name.removesuffix("Builder"): name for name in sorted(names)}
    wanted = class_name.removesuffix("Builder")
    close = [wanted] if wanted in short else difflib.get_close_matches(wanted, short, n=3, cutoff=0.7)
    near = [by_op[class_name]] if class_name in by_op else [short[name] for name in close]
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
