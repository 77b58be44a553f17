"""DeepSpeed on this library: ``import op_builder.integrations.deepspeed``, before or after ``import deepspeed``.

``ACCEL_DEEPSPEED=1`` does the same without a line, and is set for the processes that this one starts. On the CPU,
DeepSpeed gets this library's accelerator and every op that this library has. On other devices it keeps its accelerator,
and gets the ops that work in host memory where it has them, too (CPUAdam, AsyncIO and others); the ops for the device
stay DeepSpeed's. ``off()`` undoes it.

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
from functools import cache
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any, TypeGuard

import torch
from torch.utils import cpp_extension

from op_builder import env
from op_builder.builder.base import OpBuilder
from op_builder.catalog.device import current_accelerator
from op_builder.catalog.registry import find_builder
from op_builder.catalog.table import OPS, OTHERS_OPS, op_of
from op_builder.catalog.unavailable import UnavailableOpBuilder
from op_builder.errors import AccelError, UnknownOpError
from op_builder.system.memo import Memo
from op_builder.toolchains.cuda import find_cuda

logger = logging.getLogger(__name__)

OLDEST, NEWEST = (0, 18), (0, 19)
"""The first and the last release of DeepSpeed that get no warning; 0.19.8 is the one that the tests install."""

_BUILDERS = "deepspeed.ops.op_builder"
_ENGINE_PACKAGE = "deepspeed_on_accel_ops"
_undo: list[Callable[[], Any]] = []


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
    device = theirs.device_name().partition(":")[0]
    inherited = env.ACCEL_DEEPSPEED.raw()
    # Both sides of an op that spans processes must be ours, such as ZenFlow's.
    env.set_for_libraries({env.ACCEL_DEEPSPEED.name: "1"})
    _undo.append(lambda: env.set_for_libraries({env.ACCEL_DEEPSPEED.name: inherited}))
    try:
        served = _serve_all(accelerator) if device == "cpu" else _serve_host_ops(theirs)
        replaced = _replace_names(accelerator.get_accelerator(), _is_theirs, served)
        _renew_lists()
        if device == "cpu":
            _register_all_reduce()
    except BaseException:
        off()
        raise
    what = "builders" if accelerator.get_accelerator() is theirs else "accelerator and builders"
    names = ", ".join(sorted(replaced)) or "none yet; it imports these of accel-ops from now on"
    logger.info("DeepSpeed (%s) uses accel-ops; replaced %s: %s.", device, what, names)


def off() -> None:
    """Give DeepSpeed its own accelerator and builders back."""
    if not _undo:
        return
    while _undo:
        _undo.pop()()
    _replace_names(_deepspeeds_accelerator().get_accelerator(), _is_ours, lambda _: True)
    _renew_lists()


def engine_builder(name: str) -> type[OpBuilder]:
    """DeepSpeed's own builder class, run by this library's engine: its plan, cache, locks and errors.

    For ops that this library does not have: ``engine_builder("TransformerBuilder")().load()``. DeepSpeed does not use
    these classes by itself, because ops for CUDA were never run that way on a device.

    Raises:
        UnknownOpError: DeepSpeed has no such builder for CUDA devices, the CPU or all.
    """
    if cpp_extension.CUDA_HOME is None:  # a torch without CUDA; builders pass it to os.path.join()
        with suppress(AccelError):
            cpp_extension.CUDA_HOME = str(find_cuda(Memo(Path(os.devnull))).home)
    directories = list(importlib.import_module(_BUILDERS).__path__)
    known: dict[str, type[OpBuilder]] = {}
    for package, paths in (
        (_ENGINE_PACKAGE, directories),
        (f"{_ENGINE_PACKAGE}.cpu", [os.path.join(path, "cpu") for path in directories]),
    ):
        if package not in sys.modules:
            # A second copy of DeepSpeed's modules, whose "from .builder import ..." finds the classes of this library.
            copied = sys.modules[package] = ModuleType(package)
            copied.__path__ = paths
            sys.modules[f"{package}.builder"] = importlib.import_module("op_builder.builder")
        for item in pkgutil.iter_modules(paths):
            if not item.ispkg and item.name not in ("all_ops", "builder", "no_impl"):
                module = importlib.import_module(f"{package}.{item.name}")
                for found in vars(module).values():
                    if _is_ours(found) and found.__module__ == module.__name__:
                        known.setdefault(found.__name__, found)
    if name not in known:
        raise UnknownOpError(
            f"DeepSpeed has no builder {name!r} for CUDA devices or the CPU.", f"It has: {', '.join(sorted(known))}."
        )
    return known[name]


def _deepspeeds_accelerator() -> ModuleType:
    """The module ``deepspeed.accelerator``."""
    name = "deepspeed.accelerator.real_accelerator"
    try:
        importlib.import_module("deepspeed")
        found = importlib.import_module(name)
    except ImportError as error:
        if error.name not in (name, "deepspeed.accelerator"):
            raise DeepSpeedMissingError(f"DeepSpeed cannot be imported: {error}.", "pip install deepspeed") from error
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
        version = "of an unknown version"
    release = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if not OLDEST <= release <= NEWEST:
        tested = " to ".join(".".join(map(str, each)) for each in (OLDEST, NEWEST))
        logger.warning("DeepSpeed %s was not tested with accel-ops; tested are %s.", version, tested)


def _serve_all(module: ModuleType) -> Callable[[str], bool]:
    """Make this library's accelerator DeepSpeed's. The result says which builders to replace."""
    theirs = module.get_accelerator()
    ours = current_accelerator()
    if ours.device_name() != "cpu":
        logger.warning("accel-ops uses %s, DeepSpeed the CPU; its accelerator stays.", ours.device_name())
        return _serve_host_ops(theirs)
    module.set_accelerator(ours)
    _undo.append(lambda: module.set_accelerator(theirs))
    return lambda name: not issubclass(ours.get_op_builder(name), UnavailableOpBuilder)


def _serve_host_ops(theirs: Any) -> Callable[[str], bool]:
    """Let DeepSpeed's accelerator find this library's builders of ops in host memory, where it has such builders."""
    find = theirs.get_op_builder

    def serves(name: str) -> bool:
        op = op_of(name)
        own = find(name) if op is not None and op.works_anywhere else None
        return own is not None and own.__name__ == name  # else its place-holder

    def get_op_builder(name: str) -> Any:
        return find_builder(name, "op_builder.host") if serves(name) else find(name)

    def create_op_builder(name: str) -> Any:
        builder = get_op_builder(name)
        return None if builder is None else builder()

    for method in (get_op_builder, create_op_builder):
        setattr(theirs, method.__name__, method)
        _undo.append(lambda name=method.__name__: delattr(theirs, name))  # type: ignore[misc]
    return serves


def _replace_names(accelerator: Any, is_old: Callable[[Any], bool], serves: Callable[[str], bool]) -> set[str]:
    """Replace builders in the modules of DeepSpeed that have imported them, and return their names."""
    known = {op.builder for op in OPS} | {*OTHERS_OPS}
    found = [(module, name) for module in _modules() for name in known & {*vars(module)}]
    replaced = {name for module, name in found if is_old(vars(module)[name]) and serves(name)}
    for module, name in found:
        if name in replaced and is_old(vars(module)[name]):
            setattr(module, name, accelerator.get_op_builder(name))
    return replaced


def _is_theirs(value: Any) -> bool:
    return value is None or getattr(value, "__module__", "").startswith(_BUILDERS)


def _is_ours(value: Any) -> TypeGuard[type[OpBuilder]]:
    return isinstance(value, type) and issubclass(value, OpBuilder)


def _modules() -> Iterator[ModuleType]:
    """The imported modules of DeepSpeed, but not those that define its builders."""
    for name, module in list(sys.modules.items()):
        if f"{name}.".startswith("deepspeed.") and not name.startswith(f"{_BUILDERS}.") and module is not None:
            yield module


def _renew_lists() -> None:
    """Let DeepSpeed make its lists of ops again, if it has made them."""
    lists = sys.modules.get(f"{_BUILDERS}.all_ops")
    if lists is not None:
        importlib.reload(lists)
        for module in _modules():
            if "ALL_OPS" in vars(module):
                vars(module)["ALL_OPS"] = lists.ALL_OPS
    vars(sys.modules.get("deepspeed.ops", ModuleType(""))).pop("__compatible_ops__", None)


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
