"""An op as one value: the function that makes its plan, its checks, and what ``load()`` returns.

This project's ops declare theirs beside their front ends in :mod:`op_builder.ops`. A builder class, of this project or
of another author, gives one by :meth:`op_builder.builder.base.OpBuilder.spec`. Loading and building know ops only by
this value.
"""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from op_builder._version import __version__
from op_builder.plan import Binding, BuildPlan, ForeignLibrary, PlanFacts
from op_builder.recipe import Recipe
from op_builder.system.outcomes import CheckOutcome, Failed, Rejection, unavailable

if TYPE_CHECKING:
    from op_builder.cache.store import Cache

OUR_DEVICES = ("cpu", "cuda", "xpu")
"""The devices that ops have kernels for."""

OUR_PACKAGES = tuple(f"op_builder.{device}" for device in (*OUR_DEVICES, "host"))
"""The packages of builders, one for each of these devices and one for all others."""


def opened_library(opened: Any) -> Any:
    """The front end of an op that has none: the opened library."""
    return opened


class OpSpec(NamedTuple):
    """One op, for one kind of device.

    Attributes:
        name: as in ``OpBuilder.NAME``.
        plan: makes the plan, a pure function: it compiles and writes nothing. Raises an AccelError.
        front_end: makes what ``load()`` returns from the opened library; see :func:`op_builder.load.open.open_entry`.
        build_checks: everything that compiling the op needs; takes a function that returns the plan.
        load_checks: everything that loading a built op needs.
        open_libraries: opens libraries that the binary needs and that torch does not load; raises a LoadError.
        own_rejection: why its author's own ``is_compatible()`` rejects building on this machine.
        owner: the class of another author that gives it; specs of one class have the same front end.
        prebuilt_roots: directories of installed packages that may hold the binary.
        recipe: the data that ``plan`` works on, where they are the same on all machines.
        libraries: finds the third-party libraries that ``plan`` adds to the recipe.
        python: makes what ``load()`` returns, for an op without a binary; of the rest only the checks are used then.
        unavailable: why the op cannot be built or loaded on this device at all.
        builder: the name of its builder's class.
        summary: one line for the report.
        build_variable: the variable that requests it in a prebuild; empty if it is the usual one.
        binding: how the binary registers with Python.
        device: ``cuda`` or ``xpu`` for an op that only this device's wheel contains; else empty.
    """

    name: str
    plan: Callable[[PlanFacts], BuildPlan]
    front_end: Callable[[Any], Any] = opened_library
    build_checks: "Callable[[Cache, Callable[[], BuildPlan]], list[CheckOutcome]]" = lambda *_: []
    load_checks: "Callable[[Cache], list[CheckOutcome]]" = lambda _: []
    open_libraries: "Callable[[Cache], None] | None" = None
    own_rejection: Callable[[], Rejection | None] = lambda: None
    owner: type | None = None
    prebuilt_roots: tuple[Path, ...] = ()
    recipe: Recipe | None = None
    libraries: Callable[[], tuple[ForeignLibrary, ...]] = tuple
    python: Callable[[], Any] | None = None
    unavailable: Rejection | None = None
    builder: str = ""
    summary: str = ""
    build_variable: str = ""
    binding: Binding = Binding.STABLE
    device: str = ""


def unavailable_spec(name: str, rejection: Rejection, owner: type | None = None) -> OpSpec:
    """The spec of an op that a device lacks: it has no plan, and ``load()`` raises."""

    def plan(_: PlanFacts) -> NoReturn:
        raise unavailable(name, rejection)

    failed: list[CheckOutcome] = [Failed("implementation", rejection)]
    return OpSpec(name, plan, build_checks=lambda *_: failed, owner=owner, unavailable=rejection)


class OpFamily(NamedTuple):
    """One op of this project on all devices.

    Attributes:
        name: as in ``OpBuilder.NAME``.
        builder: the name of its builder; devices with the same kernels share the class.
        summary: one line for the report and the documentation.
        host: its tensors are in host memory, so that every device has it.
        cpu, cuda, xpu: its kernels for tensors on that device.
        elsewhere: Python code on torch, for devices without kernels.
        not_on: the systems (``linux``, ``darwin``) that a build for another platform omits it for, with the reasons.
    """

    name: str
    builder: str
    summary: str
    host: OpSpec | None = None
    cpu: OpSpec | None = None
    cuda: OpSpec | None = None
    xpu: OpSpec | None = None
    elsewhere: OpSpec | None = None
    not_on: tuple[tuple[str, str], ...] = ()

    @property
    def is_native(self) -> bool:
        """Whether a device has kernels for it, which are compiled."""
        return any((self.host, self.cpu, self.cuda, self.xpu))

    def kernels_for(self, device: str) -> str:
        """What ``device`` uses: the kernels for ``cpu``, ``cuda`` or ``xpu``, or ``host`` for Python code; else empty.

        Kernels for host memory are those for the CPU on every device.
        """
        if self.host is not None:
            return "cpu"
        if device in OUR_DEVICES and getattr(self, device) is not None:
            return device
        return "host" if self.elsewhere is not None else ""

    @property
    def devices(self) -> list[str]:
        """The devices that have this op."""
        return [device for device in OUR_DEVICES if self.kernels_for(device)]

    def spec_for(self, device: str) -> OpSpec:
        """The op on ``device``; a spec that is unavailable, with the reason, if the device lacks it."""
        kernels = self.kernels_for(device)
        if self.host is not None:
            return self.host
        found = self.elsewhere if kernels == "host" else getattr(self, kernels) if kernels else None
        if isinstance(found, OpSpec):
            return found
        return unavailable_spec(self.name, self.rejection())

    def rejection(self, note: str = "") -> Rejection:
        """Why a device that lacks the op cannot use it; ``note`` is a sentence to add."""
        devices = ", ".join(self.devices)
        reason = f"accel-ops {__version__} has no '{self.name}' for this device, only for {devices}. {note}".strip()
        if self.devices == ["xpu"]:
            use = f"Use the SYCL kernels, which also work on CPU tensors: from op_builder.xpu import {self.builder}."
        else:
            use = (
                f"Set ACCEL_ACCELERATOR to one of these, or for CPU tensors: from op_builder.cpu import {self.builder}."
            )
        return Rejection(reason, use)
