"""From the environment and the installed packages to one choice."""

from __future__ import annotations

from accelerator import catalog, plugins
from accelerator.catalog import SUPPORTED_ACCELERATOR_LIST, built_in_candidates
from accelerator.detection import Chosen, Refused, detect, select_named
from accelerator.errors import AcceleratorSelectionError
from accelerator.plugins import plugin_candidates, registered_entry_points
from op_builder import env as environment


def requested_name() -> str | None:
    """The accelerator that the environment names, or None to detect one. Imports nothing, asks no device.

    Raises:
        AcceleratorSelectionError: ACCEL_ACCELERATOR and DS_ACCELERATOR are both set and differ.
    """
    name, older_name = environment.ACCEL_ACCELERATOR.get(), environment.DS_ACCELERATOR.get()
    if name is not None and older_name is not None and name != older_name:
        raise AcceleratorSelectionError(
            f"ACCEL_ACCELERATOR={name!r} and DS_ACCELERATOR={older_name!r} mean the same thing and differ.",
            "Unset one of them.",
        )
    return name if name is not None else older_name


def builder_package() -> tuple[str, str]:
    """The accelerator that is named or detected, and the package of its op builders.

    For a prebuild, which needs no device: an accelerator that is named is not probed if its class says the package.

    Raises:
        AcceleratorSelectionError: the name is unknown, or belongs to a package that cannot be used here.
    """
    name = requested_name()
    if name is not None:
        is_built_in = name in SUPPORTED_ACCELERATOR_LIST
        declared = catalog.declared_package(name) if is_built_in else plugins.declared_package(name)
        if declared is not None:
            return name, declared
    choice = choose()
    if isinstance(choice, Refused):
        raise choice.error
    return choice.name, choice.accelerator.op_builder_dir()


def choose() -> Chosen | Refused:
    """Ask everything anew and choose; touches no state of this package."""
    try:
        name = requested_name()
    except AcceleratorSelectionError as error:
        return Refused(error, ())
    if name in SUPPORTED_ACCELERATOR_LIST:
        # No plug-in can have this name, and looking for them takes as long as half a load of an op.
        return select_named(name, built_in_candidates())
    entries = registered_entry_points()
    if name is None:
        return detect([*built_in_candidates(), *plugin_candidates(entries)])
    return select_named(name, [*built_in_candidates(), *plugin_candidates(entries, only=name)])
