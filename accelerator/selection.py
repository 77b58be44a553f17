"""From the environment and the installed packages to one choice."""

from __future__ import annotations

import importlib
from functools import partial
from typing import Any

from accelerator.detection import Candidate, Selection, select
from accelerator.errors import AcceleratorSelectionError
from accelerator.vendors import import_vendor
from op_builder import env as environment

SUPPORTED_ACCELERATOR_LIST = ["cuda", "cpu", "xpu", "xpu.external", "npu", "mps", "hpu", "mlu", "sdaa", "supa"]
"""The names of the built-in accelerators, as the override takes them."""

_EXTERNAL = "intel_extension_for_deepspeed"


def built_in_candidates() -> list[Candidate]:
    """The built-in accelerators in the order of detection. Each is imported only when it is tried."""
    return [
        Candidate(
            name="xpu.external",
            label="xpu.external",
            priority=1000,
            load=lambda: import_vendor(_EXTERNAL).XPU_Accelerator,
            probe="",
            requirement=f"XPU_Accelerator external requires {_EXTERNAL}",
        ),
        _built_in("xpu", 900, "xpu (IPEX)", probe="probe_ipex"),
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
    for candidate in _candidates(name):
        if candidate.name.lower() == name:
            try:
                declared = getattr(candidate.load(), "builder_package", None)
            except (Exception, SystemExit):  # choose() has the reason
                break
            if isinstance(declared, str):
                return candidate.name, declared
            break
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
    from accelerator.plugins import plugin_candidates  # not at the top: searching for plug-ins takes time

    return [*built_in_candidates(), *plugin_candidates(SUPPORTED_ACCELERATOR_LIST, name)]
