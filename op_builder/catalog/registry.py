"""From a builder's name to its class, on a given device.

Each device has a package of builders. ``op_builder.cpu``, ``cuda``, ``xpu`` and ``host`` (every other device) are views
of the index; a vendor's package contains modules with ``*Builder`` classes. A declared op that the device lacks
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
from op_builder.catalog.builders import DeclaredBuilder, DeclaredCPUBuilder, declared_builder, unavailable_builder
from op_builder.catalog.index import BUILDERS, DEEPSPEED_ONLY_OPS, NAMES, families, family_of
from op_builder.errors import UnknownOpError
from op_builder.load.lookup import without_compiling
from op_builder.messages import did_you_mean
from op_builder.spec import OUR_PACKAGES, OpFamily, OpSpec
from op_builder.system.outcomes import Rejection

if TYPE_CHECKING:
    from op_builder.catalog.modules import DevicePackage
    from op_builder.catalog.registered_ops import RegisteredPackage

logger = logging.getLogger(__name__)

# Names in op_builder that end in Builder and are not ops.
_BASES = ("CPUOpBuilder", "CUDAOpBuilder", "OpBuilder", "SYCLOpBuilder", "TorchCPUOpBuilder")


def find_builder(class_name: str, package: str) -> type[OpBuilder]:
    """The builder class of that name: the device's in ``package``, a declared op's, or another package's.

    Raises:
        UnknownOpError: no op has that builder; suggests near matches and explains which builders are missing.
    """
    family = family_of(class_name)
    if family is not None and package in OUR_PACKAGES:
        return _builder_of(family, package)
    device = device_package(package)
    if class_name in device.classes:
        return device.classes[class_name]
    if family is not None:
        return _builder_of(family, package, device.reason)
    registered = registered_packages(package)
    for other in registered:
        if class_name in other.classes:
            return other.classes[class_name]
    if class_name in DEEPSPEED_ONLY_OPS:
        return _unavailable_deepspeed_op(class_name, package)
    raise _unknown(class_name, device, registered)


def _builder_of(family: OpFamily, package: str, note: str = "") -> type[OpBuilder]:
    """The class of a declared op for the device of ``package``.

    Args:
        note: a sentence for the reason, if the device lacks the op.
    """
    kernels = family.kernels_for(_device(package)) if package in OUR_PACKAGES else ""
    if kernels:
        return _declared(family.builder, kernels)
    return unavailable_builder(family.builder, family.name, family.summary, package, family.rejection(note))


@cache
def _declared(builder: str, kernels: str) -> type[OpBuilder]:
    """The class of an op with the kernels ``kernels``, which all devices that use them share."""
    family = family_of(builder)
    assert family is not None
    if kernels in ("cuda", "xpu"):
        from op_builder.catalog import gpu_builders

        base = gpu_builders.DeclaredCUDABuilder if kernels == "cuda" else gpu_builders.DeclaredSYCLBuilder
        return declared_builder(family, kernels, base)
    return declared_builder(family, kernels, DeclaredCPUBuilder if kernels == "cpu" else DeclaredBuilder)


# DeepSpeed walks a device's package for builders, and finds the one module that is here.
_WALKED_BY_DEEPSPEED = os.path.join(os.path.dirname(os.path.abspath(__file__)), "walked_by_deepspeed")


def device_view(
    package: str,
) -> tuple[Callable[[str], type[OpBuilder] | list[str]], Callable[[], list[str]], list[str], str]:
    """``__getattr__``, ``__dir__``, ``__path__`` and ``__file__`` of ``package``, of :data:`OUR_PACKAGES`.

    All packages share one directory, because the module in it knows its device by its own name.
    """

    def names() -> list[str]:
        return sorted(family.builder for family in families() if family.kernels_for(_device(package)))

    def get(name: str) -> type[OpBuilder] | list[str]:
        if name == "__all__":
            return names()
        # An op that the device lacks has a builder, too, which gives the reason.
        if name.endswith("Builder"):
            return find_builder(name, package)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return get, names, [_WALKED_BY_DEEPSPEED], os.path.join(_WALKED_BY_DEEPSPEED, "__init__.py")


def builders_in(package: str) -> dict[str, type[OpBuilder]]:
    """The builders of all ops for the device of ``package``, by name; none if ``package`` is not a device's."""
    return {name: find_builder(name, package) for name in BUILDERS} if package in OUR_PACKAGES else {}


@cache
def device_package(package: str) -> "DevicePackage":
    """The builders of ``package``."""
    from op_builder.catalog.modules import DevicePackage, vendor_package

    if package not in OUR_PACKAGES:
        return vendor_package(package)
    found = {family.builder: family.kernels_for(_device(package)) for family in families()}
    return DevicePackage({builder: _declared(builder, kernels) for builder, kernels in found.items() if kernels}, {})


def registered_packages(package: str) -> "list[RegisteredPackage]":
    """The ops that other packages register, except names that the device's ``package`` or this project uses."""
    from op_builder.catalog import registered_ops

    taken: dict[str, type[OpBuilder] | None] = dict.fromkeys(_BASES)
    taken.update((name, None) for pair in NAMES.items() for name in pair)
    for owner in (*OUR_PACKAGES, package):
        for class_name, cls in device_package(owner).classes.items():
            taken.update({class_name: cls, cls.NAME: cls})
    return registered_ops.registered_packages(taken)


def all_builders(package: str) -> dict[str, OpBuilder]:
    """{op name: builder instance} of every op in a fixed order: this project's, the device's, the registered ones."""
    return {name: _make(cls, package)[0] for name, cls in _all_classes(package).items()}


def all_specs(package: str) -> list[OpSpec]:
    """The specs of :func:`all_builders`."""
    return [_make(cls, package)[1] for cls in _all_classes(package).values()]


def _all_classes(package: str) -> dict[str, type[OpBuilder]]:
    classes = {name: find_builder(builder, package) for name, builder in NAMES.items()}
    with without_compiling():  # an installed package may load its op when it is imported
        packages: list[DevicePackage | RegisteredPackage] = [device_package(package), *registered_packages(package)]
    for found in packages:
        for cls in found.classes.values():
            classes.setdefault(cls.NAME, cls)
    return classes


def _device(package: str) -> str:
    return package.rpartition(".")[2]


def _unavailable_deepspeed_op(class_name: str, package: str) -> type[OpBuilder]:
    """The builder of an op of DeepSpeed that this project does not have."""
    name, description = DEEPSPEED_ONLY_OPS[class_name]
    if class_name == "NotImplementedBuilder":
        remedy = "Load the op that you need by its own builder, whose error gives the reason."
    elif description.startswith("CUDA"):
        remedy = "Use DeepSpeed's own class on accel-ops' engine: import op_builder.integrations.deepspeed."
    else:
        remedy = "Register an op with this builder in the entry-point group op_builder.ops."
    reason = f"accel-ops does not have {class_name} of DeepSpeed ({description})."
    return unavailable_builder(class_name, name, "an op of DeepSpeed", package, Rejection(reason, remedy))


def _unknown(class_name: str, device: "DevicePackage", registered: "list[RegisteredPackage]") -> UnknownOpError:
    by_op = {cls.NAME: name for name, cls in device.classes.items()} | NAMES
    names = {*device.classes, *BUILDERS}.union(*(other.classes for other in registered))
    near = did_you_mean(by_op.get(class_name, class_name), sorted(names), common="Builder")
    reasons = [device.reason, *(other.reason for other in registered)]
    return UnknownOpError(
        " ".join(filter(None, [f"Unknown op builder {class_name!r}.", *reasons])),
        near or f"Known builders: {', '.join(sorted(names))}.",
    )


def _make(cls: type[OpBuilder], package: str) -> tuple[OpBuilder, OpSpec]:
    try:
        builder = cls()
        spec = builder.spec()  # an AttributeError if its __init__() does not call OpBuilder's
        if not spec.name:
            raise ValueError("it has no name")
    except Exception as error:  # another package's builder may raise anything, and the report must survive it
        reason = f"Its builder cannot be created: {type(error).__name__}: {str(error).rstrip('.')}."
        rejection = Rejection(reason, f"Report this to the author of {cls.__module__}.")
        builder = unavailable_builder(cls.__name__, cls.NAME, cls.SUMMARY, package, rejection, cls)()
        spec = builder.spec()
    return builder, spec
