"""Accelerators from other distributions, through the entry-point group ``accelerator.backends``.

The protocol, in the vendor's ``pyproject.toml``::

    [project.entry-points."accelerator.backends"]
    acme = "acme_accel:AcmeAccelerator"

The entry point's name is the accelerator's name in the override ``ACCEL_ACCELERATOR``. Its object
is a class that is called without arguments and gives an accelerator (best a subclass of
``accelerator.torch_accelerator.TorchAccelerator``, which has all of the following). Optional
members of the class:

``detection_priority: int``
    Its place in detection; higher is asked earlier. Built-ins: xpu.external 1000, xpu 900 and 800,
    npu 700, sdaa 600, mps 500, hpu 400, mlu 300, cuda 200, cpu 0. Without it
    :data:`DEFAULT_PRIORITY`: after every built-in device, before the CPU.
``probe() -> str | None``
    A class or static method: why the device cannot be used here, or None when it can. Without it
    an object is made and its ``is_available()`` asked.
``builder_package: str``
    The package of its op builders, what ``op_builder_dir()`` answers. With it a prebuild that names the
    accelerator needs no device.

A name that a built-in or an earlier plug-in has, a class that cannot be imported, and a probe that
raises are each a rejection with that reason in the trace; detection tells the first two whatever it
takes. Where the environment names a plug-in, no other is imported, and only such names are told;
where it names a built-in accelerator, no plug-in is looked for.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from accelerator.catalog import SUPPORTED_ACCELERATOR_LIST
from accelerator.detection import Candidate
from accelerator.errors import describe
from accelerator.vendors import import_vendor

ENTRY_POINT_GROUP = "accelerator.backends"
DEFAULT_PRIORITY = 100


def registered_entry_points() -> list[EntryPoint]:
    """The entry points of all installed distributions, by name; nothing is imported."""
    return sorted(entry_points(group=ENTRY_POINT_GROUP), key=lambda entry: (entry.name, entry.value))


def plugin_candidates(entries: Iterable[EntryPoint], *, only: str | None = None) -> list[Candidate]:
    """A candidate for each entry point; one that cannot be used becomes one that says why.

    Args:
        only: import the class of this name alone, since the others will not be asked.
    """
    taken = set(SUPPORTED_ACCELERATOR_LIST)
    candidates = []
    for entry in entries:
        if entry.name in taken:
            candidates.append(_clashing(entry))
        elif only is None or entry.name == only:
            candidates.append(_loaded(entry))
        else:
            candidates.append(_unusable(entry, f"not loaded: the environment names {only!r}"))
        taken.add(entry.name)
    return candidates


def declared_package(name: str) -> str | None:
    """The package of a plug-in's op builders, from its class alone; None where it declares none or cannot be had."""
    entry = next((entry for entry in registered_entry_points() if entry.name == name), None)
    try:
        package = None if entry is None else getattr(_load(entry), "builder_package", None)
    except KeyboardInterrupt:
        raise
    except BaseException:  # whoever asks for the accelerator itself is told the reason
        return None
    return package if isinstance(package, str) else None


def is_registered(accelerator_class: type) -> bool:
    """Whether an entry point names that class. Imports nothing: whoever has the class has imported its module."""
    for entry in registered_entry_points():
        try:
            if entry.module in sys.modules and entry.load() is accelerator_class:
                return True
        except Exception:  # an entry point that names nothing names no class
            continue
    return False


def _load(entry: EntryPoint) -> Any:
    import_vendor(entry.module)
    return entry.load()


def _label(entry: EntryPoint) -> str:
    return f"{entry.name} ({entry.value})"


def _loaded(entry: EntryPoint) -> Candidate:
    try:
        accelerator_class = _load(entry)
        priority = getattr(accelerator_class, "detection_priority", DEFAULT_PRIORITY)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # another distribution's import may raise anything
        return _unusable(entry, describe(error))
    if type(priority) is not int:  # True is one to isinstance()
        return _unusable(entry, f"detection_priority must be an int, found {priority!r}")
    return Candidate(
        name=entry.name,
        label=_label(entry),
        priority=priority,
        probe=getattr(accelerator_class, "probe", None) or _availability(accelerator_class),
        create=accelerator_class,
        needs=_needs(entry),
    )


def _availability(accelerator_class: Callable[[], Any]) -> Callable[[], str | None]:
    return lambda: None if accelerator_class().is_available() else "is_available() is False"


def _clashing(entry: EntryPoint) -> Candidate:
    owner = "a built-in accelerator" if entry.name in SUPPORTED_ACCELERATOR_LIST else "another plug-in"
    return _unusable(entry, f"the name {entry.name!r} belongs to {owner}")


def _unusable(entry: EntryPoint, reason: str) -> Candidate:
    def never() -> Any:
        raise LookupError(reason)

    return Candidate(entry.name, _label(entry), DEFAULT_PRIORITY, never, never, needs=_needs(entry), fault=reason)


def _needs(entry: EntryPoint) -> Callable[[str], str]:
    return lambda reason: f"Accelerator {entry.name!r} of {entry.value} cannot be used: {reason}."
