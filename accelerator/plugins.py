"""Accelerators from other distributions, through the entry-point group ``accelerator.backends``.

An entry point's name is the accelerator's name in the override; its object is a class, or another callable without
parameters, that returns an accelerator. ``docs/add_a_device.md`` lists the optional members of the class.

A plug-in is rejected, with the reason in the trace, if its name is taken, its class cannot be imported, or its probe
raises. If the environment names a plug-in, no other is imported; if it names a built-in accelerator, no plug-in is
searched.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Collection
from functools import partial
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from accelerator.detection import Candidate
from accelerator.errors import describe
from accelerator.vendors import import_vendor

ENTRY_POINT_GROUP = "accelerator.backends"
DEFAULT_PRIORITY = 100


def plugin_candidates(reserved: Collection[str], named: str | None = None) -> list[Candidate]:
    """A candidate for each entry point of the installed distributions, by name.

    Args:
        reserved: the names of the built-in accelerators.
        named: the accelerator that the environment names; priorities are then unused. By default, every class is
            imported for its priority.
    """
    taken = set(reserved)
    candidates = []
    for entry in _registered_entry_points():
        priority, fault = DEFAULT_PRIORITY, None
        if entry.name.lower() in taken:
            owner = "a built-in accelerator" if entry.name.lower() in reserved else "another plug-in"
            fault = f"the name {entry.name!r} belongs to {owner}"
        elif named is None:
            priority, fault = _priority(entry)
        taken.add(entry.name.lower())
        candidates.append(
            Candidate(
                entry.name,
                f"{entry.name} ({entry.value})",
                priority,
                partial(_load, entry),
                requirement=f"Accelerator {entry.name!r} of {entry.value} cannot be used",
                fault=fault,
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
