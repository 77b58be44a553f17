"""From the environment and the installed packages to one choice."""

from __future__ import annotations

from accelerator.catalog import SUPPORTED_ACCELERATOR_LIST, built_in_candidates
from accelerator.detection import Candidate, Chosen, Refused, select
from accelerator.errors import AcceleratorSelectionError
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

    For a prebuild, which needs no device: an accelerator that is named is not probed if its class declares the package.

    Raises:
        AcceleratorSelectionError: the name is unknown, or belongs to a package that cannot be used here.
    """
    name = requested_name()
    for candidate in _candidates(name):
        if candidate.name == name:
            try:
                declared = getattr(candidate.load(), "builder_package", None)
            except (Exception, SystemExit):  # choose() has the reason
                break
            if isinstance(declared, str):
                return name, declared
            break
    choice = choose()
    if isinstance(choice, Refused):
        raise choice.error
    return choice.name, choice.accelerator.op_builder_dir()


def choose() -> Chosen | Refused:
    """Ask everything anew and choose; changes no state of this package."""
    try:
        name = requested_name()
    except AcceleratorSelectionError as error:
        return Refused(error, ())
    return select(_candidates(name), name)


def _candidates(name: str | None) -> list[Candidate]:
    if name in SUPPORTED_ACCELERATOR_LIST:  # no plug-in can have this name
        return built_in_candidates()
    from accelerator.plugins import plugin_candidates  # not at the top: searching for plug-ins takes time

    return [*built_in_candidates(), *plugin_candidates(name)]
