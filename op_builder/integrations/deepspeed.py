"""DeepSpeed on this library: ``import op_builder.integrations.deepspeed``, before or after ``import deepspeed``.

``ACCEL_DEEPSPEED=1`` does the same without an import, and is set for the processes that this one starts. On the CPU,
DeepSpeed gets this library's accelerator and every op that this library has. On other devices it keeps its accelerator
and gets this library's ops in host memory (CPUAdam, AsyncIO and others), where it has such ops; on NVIDIA's devices it
also gets FusedAdam and FusedLion. There and on the CPU, its other builders are DeepSpeed's own classes, run by this
library's engine. On other devices they stay DeepSpeed's. ``off()`` undoes it, and ``on()`` switches again.

An op that DeepSpeed has loaded before stays in use by the objects that hold it.
"""

# torch.library is untyped.
# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import importlib
import logging
import os
import pkgutil
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache, partial
from importlib import metadata
from types import ModuleType
from typing import Any

import torch
from torch.utils import cpp_extension

from op_builder import env
from op_builder.builder.base import OpBuilder, is_builder
from op_builder.cache.store import Cache
from op_builder.catalog.builders import DeclaredBuilder
from op_builder.catalog.index import BUILDERS, DEEPSPEED_ONLY_OPS, family_of
from op_builder.catalog.registry import find_builder
from op_builder.device import current_accelerator
from op_builder.errors import AccelError, UnknownOpError
from op_builder.toolchains.cuda import find_cuda

logger = logging.getLogger(__name__)

OLDEST, NEWEST = (0, 18), (0, 19, 8)
"""The first and the last release of DeepSpeed that get no warning; the tests install the last one."""

_ENGINE_DEVICES = ("cpu", "cuda")
"""Where the engine runs DeepSpeed's own classes."""

_PROVEN_OPS = {"cuda": ("FusedAdamBuilder", "FusedLionBuilder")}
"""By device, ops with which DeepSpeed trained there as with its own."""

_BUILDERS = "deepspeed.ops.op_builder"
_ENGINE_PACKAGE = "deepspeed_on_accel_ops"
_undo: list[Callable[[], Any]] = []

Find = Callable[[str], Any]
"""Finds a builder class by its name."""


class DeepSpeedMissingError(AccelError, ImportError):
    """DeepSpeed cannot be imported, or not yet."""


def on() -> None:
    """Give this library's accelerator and builders to DeepSpeed, which is imported if it is not yet.

    Raises:
        DeepSpeedMissingError: DeepSpeed cannot be imported.
    """
    if _undo:
        return
    accelerator = _deepspeeds_accelerator()
    _check_version()
    theirs = accelerator.get_accelerator()
    device = "rocm" if torch.version.hip else theirs.device_name().partition(":")[0]
    inherited = env.ACCEL_DEEPSPEED.raw()
    # Both sides of an op that spans processes must be ours, such as ZenFlow's.
    env.set_for_libraries({env.ACCEL_DEEPSPEED.name: "1"})
    _undo.append(lambda: env.set_for_libraries({env.ACCEL_DEEPSPEED.name: inherited}))
    try:
        find = _use_our_accelerator(accelerator) if device == "cpu" else _with_our_ops(theirs, device)
        used = accelerator.get_accelerator()
        if device in _ENGINE_DEVICES:
            _set_cuda_home()
            find = _with_engine(find, device)
        _set_finder(used, find)
        replaced = _replace_names(find, _is_theirs, _is_offered)
        _renew_lists()
        if device == "cpu":
            _register_all_reduce()
    except BaseException:
        off()
        raise
    what = "builders" if used is theirs else "accelerator and builders"
    names = ", ".join(sorted(replaced)) or "none yet; it imports these of accel-ops from now on"
    logger.info("DeepSpeed (%s) uses accel-ops; replaced %s: %s.", device, what, names)


def off() -> None:
    """Give DeepSpeed its own accelerator and builders back."""
    if not _undo:
        return
    while _undo:
        _undo.pop()()
    # In modules that were imported meanwhile.
    _replace_names(_deepspeeds_accelerator().get_accelerator().get_op_builder, is_builder, lambda _: True)
    _undo.clear()
    _renew_lists()


def engine_builder(name: str) -> type[OpBuilder]:
    """DeepSpeed's own builder class, run by this library's engine: its plan, cache, locks and errors.

    DeepSpeed gets these classes for ops that this library does not have; this function also gives the others, such as
    DeepSpeed's own ``CPUAdamBuilder``.

    Raises:
        UnknownOpError: DeepSpeed has no such builder for CUDA devices, the CPU or all.
    """
    known = _engine_classes(_deepspeeds_accelerator().get_accelerator().device_name().partition(":")[0])
    if name not in known:
        raise UnknownOpError(
            f"DeepSpeed has no builder {name!r} for CUDA devices or the CPU.", f"Use one of {', '.join(sorted(known))}."
        )
    _set_cuda_home()
    return known[name]


@cache
def _engine_classes(device: str) -> dict[str, type[OpBuilder]]:
    """DeepSpeed's builder classes for CUDA devices and the CPU, run by the engine, by their names.

    Of two classes of one name, that for the CPU counts where ``device`` is the CPU.
    """
    # Not by import: DeepSpeed asks for its builders while it imports that package.
    directories = [os.path.join(path, "ops", "op_builder") for path in importlib.import_module("deepspeed").__path__]
    known: dict[str, type[OpBuilder]] = {}
    packages = [
        (_ENGINE_PACKAGE, directories),
        (f"{_ENGINE_PACKAGE}.cpu", [os.path.join(path, "cpu") for path in directories]),
    ]
    for package, paths in reversed(packages) if device == "cpu" else packages:
        # A second copy of DeepSpeed's modules, whose "from .builder import ..." finds the classes of this library.
        copied = sys.modules[package] = ModuleType(package)
        copied.__path__ = paths
        sys.modules[f"{package}.builder"] = importlib.import_module("op_builder.builder")
        for item in pkgutil.iter_modules(paths):
            if item.ispkg or item.name in ("all_ops", "builder", "no_impl"):
                continue
            try:
                module = importlib.import_module(f"{package}.{item.name}")
            except Exception as error:  # another release of DeepSpeed; its import must not fail
                logger.warning("The builders of DeepSpeed's module %s stay its own: %s", item.name, error)
                continue
            for name, found in list(vars(module).items()):
                if is_builder(found) and found.__module__ == module.__name__ and name not in known:
                    known[name] = found
    return known


def _set_cuda_home() -> None:
    """With a torch without CUDA it is None, and DeepSpeed's builders pass it to os.path.join()."""
    if cpp_extension.CUDA_HOME is None:
        with suppress(AccelError):
            cpp_extension.CUDA_HOME = str(find_cuda(Cache().memo).home)
            if _undo:
                _undo.append(partial(setattr, cpp_extension, "CUDA_HOME", None))


def _with_engine(find: Find, device: str) -> Find:
    """``find`` for the ops that it finds in this library; other builders of DeepSpeed are run by the engine."""

    def find_or_run(name: str) -> Any:
        found = find(name)
        if _is_offered(found) or not _is_named(found, name):
            return found
        on_engine = _engine_classes(device).get(name)
        if on_engine is None or _is_installed(on_engine.NAME):  # DS_BUILD_OPS has compiled it
            return found
        _set_cuda_home()  # again: the environment may name a toolkit now
        return on_engine

    return find_or_run


def _is_named(builder: Any, name: str) -> bool:
    """Whether a builder is that of an op, not a place-holder for ops that a device lacks."""
    return getattr(builder, "__name__", None) == name


def _is_installed(op: str) -> bool:
    with suppress(ImportError):
        return bool(importlib.import_module("deepspeed.git_version_info_installed").installed_ops.get(op))
    return False


def _deepspeeds_accelerator() -> ModuleType:
    name = "deepspeed.accelerator.real_accelerator"
    try:
        importlib.import_module("deepspeed")
        found = importlib.import_module(name)
    except ImportError as error:
        if error.name not in (name, "deepspeed.accelerator"):
            raise DeepSpeedMissingError(
                f"DeepSpeed cannot be imported: {error}.", "Install it: `pip install deepspeed`."
            ) from error
        place = [*sys.modules["deepspeed"].__path__]
        raise DeepSpeedMissingError(
            f"The package 'deepspeed' at {place} has no module {name.partition('.')[2]}.",
            "Install DeepSpeed 0.18 or later, and start Python outside of a directory named deepspeed.",
        ) from None
    if not hasattr(found, "set_accelerator"):
        raise DeepSpeedMissingError(
            "DeepSpeed's accelerator is being imported.", "Import op_builder.integrations.deepspeed before or after it."
        )
    return found


def _check_version() -> None:
    try:
        version = metadata.version("deepspeed")
    except metadata.PackageNotFoundError:  # it is used from its sources
        version = "one of an unknown version"
    release = tuple(int(part) for part in version.split(".")[:3] if part.isdigit())
    if not OLDEST <= release <= NEWEST:
        tested = " to ".join(".".join(map(str, each)) for each in (OLDEST, NEWEST))
        logger.warning("accel-ops was tested with DeepSpeed %s, not with %s.", tested, version)


def _use_our_accelerator(module: ModuleType) -> Find:
    """Make this library's accelerator DeepSpeed's. The result finds its builders."""
    theirs = module.get_accelerator()
    ours = current_accelerator()
    if ours.device_name() != "cpu":
        logger.warning("accel-ops uses %s, DeepSpeed the CPU; its accelerator stays.", ours.device_name())
        return _with_our_ops(theirs, "cpu")
    module.set_accelerator(ours)
    _undo.append(lambda: module.set_accelerator(theirs))
    return ours.get_op_builder


def _with_our_ops(theirs: Any, device: str) -> Find:
    """A function that finds this library's builders of proven or host ops that DeepSpeed has, else DeepSpeed's."""
    find: Find = theirs.get_op_builder

    def find_ours(name: str) -> Any:
        op, own = family_of(name), find(name)
        if op is None or not _is_named(own, name):
            return own
        if name in _PROVEN_OPS.get(device, ()):
            return find_builder(name, f"op_builder.{device}")
        return find_builder(name, "op_builder.host") if op.host is not None else own

    return find_ours


def _set_finder(accelerator: Any, find: Find) -> None:
    def create_op_builder(name: str) -> Any:
        builder = find(name)
        return None if builder is None else builder()

    for name, method in (("get_op_builder", find), ("create_op_builder", create_op_builder)):
        setattr(accelerator, name, method)
        _undo.append(partial(delattr, accelerator, name))


def _replace_names(find: Find, is_old: Callable[[Any], bool], is_wanted: Callable[[Any], bool]) -> set[str]:
    """Replace builders in the modules of DeepSpeed that have imported them, and return their names."""
    replaced = set()
    known = {*BUILDERS, *DEEPSPEED_ONLY_OPS}
    for module in _modules():
        for name in known & {*vars(module)}:
            old = vars(module)[name]
            if is_old(old) and is_wanted(new := find(name)):
                setattr(module, name, new)
                _undo.append(partial(setattr, module, name, old))
                replaced.add(name)
    return replaced


def _is_theirs(value: Any) -> bool:
    return value is None or getattr(value, "__module__", "").startswith(_BUILDERS)


def _is_offered(value: Any) -> bool:
    return is_builder(value) and not (issubclass(value, DeclaredBuilder) and value.SPEC.unavailable is not None)


def _modules() -> Iterator[ModuleType]:
    for name, module in list(sys.modules.items()):
        if f"{name}.".startswith("deepspeed.") and module is not None:
            yield module


def _renew_lists() -> None:
    """Have DeepSpeed rebuild its lists of ops, if it has built them."""
    lists = sys.modules.get(f"{_BUILDERS}.all_ops")
    if lists is not None:
        importlib.reload(lists)
        for module in _modules():
            if "ALL_OPS" in vars(module):
                vars(module)["ALL_OPS"] = lists.ALL_OPS
    ops = vars(sys.modules.get("deepspeed.ops", ModuleType("")))
    if "__getattr__" in ops:
        ops.pop("__compatible_ops__", None)
    elif lists is not None and "__compatible_ops__" in ops:  # older releases make it once, when they are imported
        ops["__compatible_ops__"].clear()
        compatible = {name: op.is_compatible() for name, op in lists.ALL_OPS.items()}
        ops["__compatible_ops__"].update(compatible, deepspeed_not_implemented=False)


def _register_all_reduce() -> None:
    """Make ``torch.ops.deepspeed.inference_all_reduce_``, through which DeepSpeed's collectives call shm_comm."""
    if hasattr(torch.ops.deepspeed, "inference_all_reduce_"):
        return  # DeepSpeed's own op is loaded
    # Finding a loaded op again would take a hundred times as long as a small reduction.
    loaded = cache(lambda: find_builder("ShareMemCommBuilder", "op_builder.cpu")().load())
    library = torch.library.Library("deepspeed", "FRAGMENT")
    library.define("inference_all_reduce_(Tensor(a!) tensor) -> ()")

    def all_reduce(tensor: torch.Tensor) -> None:
        loaded().inference_all_reduce_(tensor)

    library.impl("inference_all_reduce_", all_reduce, "CPU")
    library.impl("inference_all_reduce_", lambda _: None, "Meta")
    kept = [library]
    _undo.append(kept.clear)  # without a reference the op is unregistered


on()
