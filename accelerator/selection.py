"""From the environment and the installed packages to one choice.

Other distributions add accelerators through the entry-point group ``accelerator.backends``. An entry point's name is
the accelerator's name in the override; its object is a class, or another callable without parameters, that returns an
accelerator. ``docs/add_a_device.md`` lists the optional members of the class. A plug-in is rejected, with the reason in
the trace, if its name is taken, its class cannot be imported, or its probe raises. If the environment names a plug-in,
no other is imported; if it names a built-in accelerator, no plug-in is searched.
"""

from __future__ import annotations

import importlib
import os
import sys
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from accelerator.detection import Candidate, Selection, select
from accelerator.errors import AcceleratorSelectionError, describe
from accelerator.vendors import import_vendor
from op_builder import env as environment

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

SUPPORTED_ACCELERATOR_LIST = ["cuda", "cpu", "xpu", "xpu.external", "npu", "mps", "hpu", "mlu", "sdaa", "supa"]
"""The names of the built-in accelerators, as the override takes them."""

ENTRY_POINT_GROUP = "accelerator.backends"
DEFAULT_PRIORITY = 100
_EXTERNAL = "intel_extension_for_deepspeed"


def built_in_candidates() -> list[Candidate]:
    """The built-in accelerators in the order of detection. Each is imported only when it is tried."""
    return [
        Candidate(
            name="xpu.external",
            label="xpu.external",
            priority=1000,
            load=lambda: import_vendor(_EXTERNAL).XPU_Accelerator,
            requirement=f"XPU_Accelerator external requires {_EXTERNAL}",
        ),
        _built_in("xpu", 900, "xpu (IPEX)", vendor_package="intel_extension_for_pytorch"),
        _built_in("xpu", 800, "xpu (torch)", reason_to_skip=_reason_to_skip_xpu),
        _built_in("npu", 700, vendor_package="torch_npu"),
        _built_in("sdaa", 600, vendor_package="torch_sdaa"),
        _built_in("mps", 500),
        _built_in("hpu", 400, vendor_package="habana_frameworks.torch.hpu"),
        _built_in("mlu", 300, vendor_package="torch_mlu"),
        _built_in("supa", 250, vendor_package="torch_supa"),  # before cuda, which torch_supa makes available
        _built_in("cuda", 200, without_device=True),
        _built_in("cpu", 0, without_device=True),
    ]


def _built_in(name: str, priority: int, label: str | None = None, **options: Any) -> Candidate:
    return Candidate(name, label or name, priority, partial(_device_class, name), **options)


def _device_class(name: str) -> Any:
    return getattr(importlib.import_module(f"accelerator.{name}_accelerator"), f"{name.upper()}_Accelerator")


def _reason_to_skip_xpu() -> str | None:
    """CUDA has precedence over torch's own XPU support: on a machine with both, the Intel GPU is rarely meant."""
    try:
        return "a CUDA device is available" if _device_class("cuda").probe() is None else None
    except Exception:  # the candidate cuda reports the reason
        return None


def requested_name() -> str | None:
    """The accelerator that the environment names, in small letters, or None to detect one. Imports nothing.

    Raises:
        AcceleratorSelectionError: ACCEL_ACCELERATOR and DS_ACCELERATOR are both set and differ.
    """
    variables = (environment.ACCEL_ACCELERATOR, environment.DS_ACCELERATOR)
    name, older_name = (value and (value.strip().lower() or None) for value in (each.get() for each in variables))
    if name is not None and older_name is not None and name != older_name:
        raise AcceleratorSelectionError(
            f"ACCEL_ACCELERATOR={name!r} and DS_ACCELERATOR={older_name!r} name different accelerators.",
            "Unset one of them.",
        )
    return name or older_name


def builder_package() -> tuple[str, str]:
    """The accelerator that is named or detected, and the package of its op builders.

    For a prebuild, which needs no device: a named accelerator is not probed if its class declares the package.

    Raises:
        AcceleratorSelectionError: the name is unknown, or belongs to a package that cannot be used here.
    """
    name = requested_name()
    named = next((candidate for candidate in _candidates(name) if candidate.name.lower() == name), None)
    if named is not None:
        with suppress(Exception, SystemExit):  # choose() has the reason
            declared = getattr(named.load(), "builder_package", None)
            if isinstance(declared, str):
                return named.name, declared
    selection = choose()
    package = selection.require().op_builder_dir()
    return selection.name, package


def choose() -> Selection:
    """Run the whole selection; changes no state of this package."""
    try:
        name = requested_name()
    except AcceleratorSelectionError as error:
        return Selection(error=error)
    return select(_candidates(name), name)


def _candidates(name: str | None) -> list[Candidate]:
    if name in SUPPORTED_ACCELERATOR_LIST:  # no plug-in can have this name
        return built_in_candidates()
    return [*built_in_candidates(), *plugin_candidates(name)]


def plugin_candidates(named: str | None) -> list[Candidate]:
    """A candidate for each entry point of the installed distributions, by name.

    Args:
        named: the accelerator that the environment names; priorities are then unused. With None, every class is
            imported for its priority.
    """
    taken = set(SUPPORTED_ACCELERATOR_LIST)
    candidates = []
    for entry in _registered_entry_points():
        priority, rejection = DEFAULT_PRIORITY, None
        if entry.name.lower() in taken:
            owner = "a built-in accelerator" if entry.name.lower() in SUPPORTED_ACCELERATOR_LIST else "another plug-in"
            rejection = f"the name {entry.name!r} belongs to {owner}"
        elif named is None:
            priority, rejection = _priority(entry)
        taken.add(entry.name.lower())
        candidates.append(
            Candidate(
                entry.name,
                f"{entry.name} ({entry.value})",
                priority,
                partial(_load, entry),
                requirement=f"Accelerator {entry.name!r} of {entry.value} cannot be used",
                rejection=rejection,
            )
        )
    return candidates


def is_registered(accelerator_class: type) -> bool:
    """Whether an entry point names that class; imports no module."""
    for entry in _registered_entry_points():
        try:
            if entry.module in sys.modules and entry.load() is accelerator_class:
                return True
        except Exception:  # a broken entry point names no class
            continue
    return False


def _registered_entry_points() -> list[EntryPoint]:
    if not _is_group_mentioned():
        return []
    from importlib.metadata import entry_points

    return sorted(entry_points(group=ENTRY_POINT_GROUP), key=lambda entry: (entry.name, entry.value))


def _is_group_mentioned() -> bool:
    """Whether an installed distribution may have such entry points.

    Searching the files for the group's name takes a fifth of the time that importlib.metadata takes to parse them,
    and most machines have no plug-in.
    """
    group = ENTRY_POINT_GROUP.encode()
    for directory in sys.path:
        try:
            names = os.listdir(directory or ".")
        except NotADirectoryError:
            return True  # an archive: importlib.metadata reads it
        except OSError:
            continue
        for name in names:
            if name.endswith((".dist-info", ".egg-info")):
                try:
                    with open(os.path.join(directory, name, "entry_points.txt"), "rb", buffering=0) as file:
                        if group in file.read():
                            return True
                except OSError:
                    continue
    return False


def _load(entry: EntryPoint) -> Any:
    import_vendor(entry.module)
    return entry.load()


def _priority(entry: EntryPoint) -> tuple[int, str | None]:
    """The detection priority that the class declares, and why it cannot be used, if so."""
    try:
        priority = getattr(_load(entry), "detection_priority", DEFAULT_PRIORITY)
    except (Exception, SystemExit) as error:
        return DEFAULT_PRIORITY, describe(error)
    if type(priority) is not int:  # isinstance() would accept True
        return DEFAULT_PRIORITY, f"detection_priority must be an int, found {priority!r}"
    return priority, None
