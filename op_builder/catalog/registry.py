"""From a builder's name to its class, on a given device.

A device's builders are the ``*Builder`` classes of the modules in one package
(``op_builder.cpu``, or a vendor's own). An op that is known but that the device lacks gives a
real builder that is never compatible and says why. After these come the ops that other packages
register (:mod:`op_builder.catalog.registered_ops`), for every device. A name that nobody has is an error
with near matches. Never None.
"""

from __future__ import annotations

import difflib
import logging
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, ClassVar, NoReturn

from op_builder._version import __version__
from op_builder.builder.base import OpBuilder
from op_builder.catalog.modules import builders_of, import_modules
from op_builder.errors import UnknownOpError
from op_builder.system.outcomes import CheckOutcome, Failed, require

if TYPE_CHECKING:
    from op_builder.catalog.registered_ops import RegisteredPackage

logger = logging.getLogger(__name__)


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
    KnownOp("pack_bits", "PackBitsBuilder", "bytes to bits and back"),
    KnownOp("block_quantize", "BlockQuantizeBuilder", "quantisation by blocks to eight or four bits, and back"),
    KnownOp("rms_norm", "RMSNormBuilder", "RMSNorm of rows, with a residual added before"),
    KnownOp("pin_memory", "PinMemoryBuilder", "page-locked host memory"),
    KnownOp("shm_comm", "ShareMemCommBuilder", "collectives between CPU ranks of one host"),
    KnownOp("ccl_comm", "CCLCommBuilder", "collectives between CPU ranks through oneCCL"),
)


# Names of op_builder that end in Builder and are no op.
_BASES = ("CPUOpBuilder", "CUDAOpBuilder", "OpBuilder", "SYCLOpBuilder", "TorchCPUOpBuilder")
_OWN_PACKAGES = ("op_builder.cpu", "op_builder.cuda", "op_builder.xpu")


class UnavailableOpBuilder(OpBuilder):
    """The builder of an op that a device does not have, or whose own builder cannot be made."""

    REASON: ClassVar[str] = ""
    REMEDY: ClassVar[str] = ""
    INSTEAD_OF: ClassVar[type[OpBuilder] | None] = None
    """The class that cannot be made; None of an op that the device does not have."""

    def sources(self) -> list[str]:
        return []

    def build_checks(self) -> list[CheckOutcome]:
        return [Failed("implementation", self.REASON, self.REMEDY)]

    def plan(self) -> NoReturn:
        """Raise, with the reason and the remedy."""
        self.load()

    def builder(self) -> NoReturn:
        """Raise, with the reason and the remedy."""
        self.load()

    def load(self, verbose: bool = True) -> NoReturn:  # noqa: ARG002
        """Raise, with the reason and the remedy."""
        require(self.name, self.check())
        raise AssertionError("an unavailable op has a failed check")

    def jit_load(self, verbose: bool = True) -> NoReturn:
        """Raise, with the reason and the remedy."""
        self.load(verbose)


@dataclass(frozen=True)
class DevicePackage:
    """What the modules of a device's package hold.

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
    device = device_package(package)
    found = device.classes.get(class_name)
    if found is not None:
        return found
    for op in KNOWN_OPS:
        if op.builder == class_name:
            reason = f"Not in accel-ops {__version__} for this device. {device.complaint}".strip()
            return _unavailable(op, package, reason, _where_else(class_name))
    registered = registered_packages(package)
    for other in registered:
        if class_name in other.classes:
            return other.classes[class_name]
    names = {*device.classes, *(op.builder for op in KNOWN_OPS)}.union(*(other.classes for other in registered))
    by_op = {cls.NAME: name for name, cls in device.classes.items()} | {op.name: op.builder for op in KNOWN_OPS}
    close = difflib.get_close_matches(class_name, sorted(names), n=3, cutoff=0.5)
    near = [by_op[class_name]] if class_name in by_op else close
    complaints = [device.complaint, *(other.complaint for other in registered)]
    raise UnknownOpError(
        " ".join(filter(None, [f"There is no op builder {class_name!r}.", *complaints])),
        f"Did you mean {' or '.join(near)}?" if near else f"Known builders: {', '.join(sorted(names))}.",
    )


def _where_else(class_name: str) -> str:
    having = [package for package in _OWN_PACKAGES if class_name in device_package(package).classes]
    devices = ", ".join(package.rpartition(".")[2] for package in having)
    if not having:
        return "No device has it yet; use a later accel-ops."
    if having == ["op_builder.xpu"]:
        return f"Use the one of SYCL, which works on CPU tensors too: from op_builder.xpu import {class_name}."
    return f"Use a device that has it: {devices}."


@cache
def device_package(package: str) -> DevicePackage:
    """The builders in the modules of ``package``: those it defines before those it only imports."""
    modules, broken = import_modules(package)
    for name, error in broken.items():
        logger.warning("The op builders of %s are missing: %s", name, error)
    found = [item for module in modules for item in builders_of(module)]
    found.sort(key=lambda item: item[1].__module__.startswith(package))
    return DevicePackage(dict(found), broken)


def registered_packages(package: str) -> list[RegisteredPackage]:
    """What other packages register, without what the device's ``package`` or this project has under the same name."""
    # A load of one of the device's own ops has no use for reading entry points.
    from op_builder.catalog import registered_ops

    taken: dict[str, type[OpBuilder] | None] = dict.fromkeys(_BASES)
    taken.update((name, None) for op in KNOWN_OPS for name in (op.name, op.builder))
    for having in (*_OWN_PACKAGES, package):
        for class_name, cls in device_package(having).classes.items():
            taken.update({class_name: cls, cls.NAME: cls})
    return registered_ops.registered_packages(taken)


def all_builders(package: str) -> dict[str, OpBuilder]:
    """{op name: builder instance} of every op: known, the device's own, registered; in a fixed order."""
    classes = {op.name: find_builder(op.builder, package) for op in KNOWN_OPS}
    for cls in device_package(package).classes.values():
        classes.setdefault(cls.NAME, cls)
    for other in registered_packages(package):
        for cls in other.classes.values():
            classes.setdefault(cls.NAME, cls)
    return {name: _make(cls, package) for name, cls in classes.items()}


def _make(cls: type[OpBuilder], package: str) -> OpBuilder:
    try:
        builder = cls()
        if not builder.name:  # or there is no such attribute, where it makes nothing of OpBuilder's __init__()
            raise ValueError("it has no name")
        return builder
    except Exception as error:  # another package's builder may raise anything; the report must survive it
        op = KnownOp(cls.NAME, cls.__name__, cls.SUMMARY)
        reason = f"Its builder cannot be made: {type(error).__name__}: {error}"
        return _unavailable(op, package, reason, f"Report this to the author of {cls.__module__}.", cls)()


@cache
def _unavailable(
    op: KnownOp, package: str, reason: str, remedy: str, instead_of: type[OpBuilder] | None = None
) -> type[OpBuilder]:
    attributes = {
        "NAME": op.name,
        "BUILD_VAR": f"ACCEL_BUILD_{op.name.upper()}",
        "SUMMARY": op.summary,
        "REASON": reason,
        "REMEDY": remedy,
        "INSTEAD_OF": instead_of,
        "__module__": package,
    }
    return type(op.builder, (UnavailableOpBuilder,), attributes)
