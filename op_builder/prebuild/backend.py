"""The hooks of PEP 517 and PEP 660: setuptools', with ops built into the wheel where the environment asks.

They run in the frontend's build environment, which has setuptools and little else: no torch is imported
here. A project finds this module through ``build_tools/accel_build_backend.py``, a file to be copied.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from setuptools import build_meta  # type: ignore[import-untyped]

from op_builder import env
from op_builder.cache.store import MANIFEST
from op_builder.errors import AccelError
from op_builder.load.prebuilt import DIRECTORY, INDEX, read_index
from op_builder.prebuild import wheel
from op_builder.prebuild.order import Order
from op_builder.prebuild.target import PATH_PROGRAM, REFUSED, Target, find_target, say
from op_builder.system.torch_install import MINIMUM_TORCH

Settings = Mapping[str, Any] | None

# What compiling and packing need, besides a compiler and torch.
_TOOLS = ["ninja>=1.11", "packaging>=22", "psutil>=5.9", "wheel>=0.40"]
_TORCH = f"torch>={'.'.join(map(str, MINIMUM_TORCH))}"

_SOURCE_ROOTS = ("", "src/")

_WORKER = f"""{PATH_PROGRAM}
from op_builder.prebuild import worker
sys.exit(worker.main(sys.argv[1:]))
"""


def get_requires_for_build_wheel(config_settings: Settings = None) -> list[str]:
    """What the build environment must have: nothing but setuptools, unless ops are asked for."""
    with _told_clearly():
        return _requirements(build_meta.get_requires_for_build_wheel, config_settings)


def get_requires_for_build_editable(config_settings: Settings = None) -> list[str]:
    """The same for an editable install."""
    with _told_clearly():
        return _requirements(build_meta.get_requires_for_build_editable, config_settings)


def get_requires_for_build_sdist(config_settings: Settings = None) -> list[str]:
    """What an sdist needs: no op is built into it."""
    with _told_clearly(), _without_switches(Order.of_environment()):
        return list(build_meta.get_requires_for_build_sdist(config_settings))


def build_sdist(sdist_directory: str, config_settings: Settings = None) -> str:
    """setuptools' sdist."""
    with _told_clearly(), _without_switches(Order.of_environment()):
        return str(build_meta.build_sdist(sdist_directory, config_settings))


def prepare_metadata_for_build_wheel(metadata_directory: str, config_settings: Settings = None) -> str:
    """setuptools' metadata, which are the same with and without ops."""
    with _told_clearly(), _without_switches(Order.of_environment()), _private_directories():
        return str(build_meta.prepare_metadata_for_build_wheel(metadata_directory, config_settings))


def prepare_metadata_for_build_editable(metadata_directory: str, config_settings: Settings = None) -> str:
    """The same for an editable install."""
    with _told_clearly(), _without_switches(Order.of_environment()):
        return str(build_meta.prepare_metadata_for_build_editable(metadata_directory, config_settings))


def build_wheel(wheel_directory: str, config_settings: Settings = None, metadata_directory: str | None = None) -> str:
    """setuptools' wheel; with the ops in it that the environment asks for."""
    with _told_clearly():
        order = Order.of_environment()
        with _without_switches(order), _private_directories() as scratch:
            if order.is_empty:
                name = str(build_meta.build_wheel(wheel_directory, config_settings, metadata_directory))
                wheel.refuse_binaries(Path(wheel_directory, name))
                return name
            target = _target()
            plain, tree = _unpacked(scratch, config_settings, metadata_directory)
            tag = _prebuild(tree, order, target)
            if not tag:  # nothing of this project is asked for
                wheel.refuse_binaries(plain)
                shutil.copy(plain, wheel_directory)
                return plain.name
            return wheel.pack(tree, Path(wheel_directory), tag)


def build_editable(
    wheel_directory: str, config_settings: Settings = None, metadata_directory: str | None = None
) -> str:
    """setuptools' editable wheel; the ops asked for are put into the project's own packages."""
    with _told_clearly():
        order = Order.of_environment()
        with _without_switches(order):
            if not order.is_empty:
                target = _target()
                with _private_directories() as scratch:
                    _, tree = _unpacked(scratch, config_settings, None)
                    _prebuild(tree, order, target)
                    found = list(tree.rglob(DIRECTORY))
                    places = [_source_package(built.parent.relative_to(tree)) / DIRECTORY for built in found]
                    _take_away(_left_in_packages(), wheel.distribution_of(tree))
                    for built, place in zip(found, places, strict=True):
                        _put(built, place)
            elif left := _left_in_packages():
                with _private_directories() as scratch:
                    name = str(build_meta.prepare_metadata_for_build_editable(str(scratch), config_settings))
                    _take_away(left, name.partition("-")[0])
            return str(build_meta.build_editable(wheel_directory, config_settings, metadata_directory))


@contextmanager
def _told_clearly() -> Iterator[None]:
    """An error of ours ends the hook with its message alone: the frontend shows that, and no traceback."""
    try:
        yield
    except AccelError as error:
        sys.exit(f"op_builder: error: {error}")


@contextmanager
def _without_switches(order: Order) -> Iterator[None]:
    """Without the variables that ask for ops: a setup.py of its own may act on them, too."""
    with env.scope(**dict.fromkeys(order.variables)):
        yield


def _requirements(of_setuptools: Callable[[Any], list[str]], config_settings: Settings) -> list[str]:
    order = Order.of_environment()
    with _without_switches(order):
        with _private_directories():
            needed = list(of_setuptools(config_settings))
        if order.is_empty:
            return needed
        target = find_target()
    if target is None:
        say(
            f"no torch in {sys.prefix}, so {_TORCH} is requested for this build. "
            f"{env.ACCEL_BUILD_TORCH.name}=<python or site-packages> builds against one that is there."
        )
        return [*needed, *_TOOLS, _TORCH]
    return [*needed, *_TOOLS]


def _target() -> Target:
    target = find_target()
    if target is None:
        raise AccelError(
            f"There is no torch to build ops against in {sys.prefix}.",
            f"Install {_TORCH}, or set {env.ACCEL_BUILD_TORCH.name} to a Python, or a site-packages, that has it.",
        )
    say(f"building against torch {target.torch_version} in {target.torch_dir}, that of {target.reason}")
    return target


@contextmanager
def _private_directories() -> Iterator[Path]:
    """A directory that goes at the end, where setuptools does its work, too.

    In the project's own ``build/`` it would find, and put into the wheel, what earlier builds left, and
    builds at the same time would meet.
    """
    with tempfile.TemporaryDirectory(prefix="accel-ops-wheel-") as scratch:
        config, information = Path(scratch, "setup.cfg"), Path(scratch, "information")
        information.mkdir()
        config.write_text(f"[build]\nbuild_base = {scratch}/build\n[egg_info]\negg_base = {information}\n")
        with env.scope(DIST_EXTRA_CONFIG=str(config)):
            yield Path(scratch)


def _unpacked(scratch: Path, config_settings: Settings, metadata_directory: str | None) -> tuple[Path, Path]:
    """setuptools' wheel, and the directory into which it is unpacked."""
    plain, tree = scratch / "plain", scratch / "tree"
    plain.mkdir()
    with _quietly():
        name = build_meta.build_wheel(str(plain), config_settings, metadata_directory)
    wheel.unpack(plain / name, tree)
    return plain / name, tree


@contextmanager
def _quietly() -> Iterator[None]:
    """Without setuptools' word on each file: hundreds of lines, behind which an op's error would be lost."""
    before = logging.root.manager.disable
    logging.disable(logging.INFO)
    try:
        yield
    finally:
        logging.disable(before)


def _prebuild(tree: Path, order: Order, target: Target) -> str:
    """Have the target's Python build the ops of ``tree``; returns the wheel's tag."""
    answer = tree.with_name("tag")
    what = json.dumps([order.everything, dict(order.ops)])
    command = target.command(_WORKER, [str(tree)], str(tree), what, str(answer))
    environment = env.child_environment(PYTHONPATH=None, PYTHONDONTWRITEBYTECODE="1")
    status = subprocess.run(command, env=environment, check=False).returncode
    if status == 0 and answer.is_file():
        return answer.read_text(encoding="utf-8")
    if status == REFUSED:
        sys.exit(status)  # with the reason told
    raise AccelError(
        f"{target.python} ended with status {status} while it built the ops; nothing was made.",
        "See what it wrote above. Status -9 is often the end of memory: ACCEL_MAX_JOBS=1 compiles one file at a time.",
    )


def _left_in_packages() -> list[Path]:
    """Where ops lie in packages below this project: those of an earlier editable install, or of other projects."""
    depths = ("*", "*/*", "*/*/*")  # no deeper: an environment may lie in the checkout
    patterns = [f"{parent}{package}/{DIRECTORY}/{INDEX}" for parent in _SOURCE_ROOTS for package in depths]
    return sorted({index.parent for pattern in patterns for index in Path.cwd().glob(pattern)})


def _take_away(places: Iterable[Path], distribution: str) -> None:
    """Remove, of ops that lie there, those that an earlier editable install of this project has left."""
    for place in places:
        with contextlib.suppress(ValueError):  # where nobody can tell whose they are they stay
            index = read_index(place)
            if index is not None and index.get("distribution") == distribution:
                with _explained(place):
                    shutil.rmtree(place)


def _put(built: Path, place: Path) -> None:
    beside = place.with_name(f"{place.name}-new")
    with _explained(place):
        shutil.rmtree(beside, ignore_errors=True)
        try:
            shutil.copytree(built, beside)
            for manifest in beside.rglob(MANIFEST):
                # The project's sources may have been edited since they were copied: none is taken for what was built.
                os.utime(manifest, ns=(0, 0))
            if place.exists():
                shutil.rmtree(place)
            beside.rename(place)
        finally:
            shutil.rmtree(beside, ignore_errors=True)
    say(f"the ops of {place.parent.name} lie in {place}")


@contextmanager
def _explained(place: Path) -> Iterator[None]:
    """A failure to change files there, as an AccelError."""
    try:
        yield
    except OSError as error:
        raise AccelError(
            f"An editable install keeps its ops in {place}, and that cannot be changed: {error}.",
            "Make it writable, or install without -e.",
        ) from error


def _source_package(name: Path) -> Path:
    for parent in _SOURCE_ROOTS:
        if (Path.cwd() / parent / name / "__init__.py").is_file():
            return Path.cwd() / parent / name
    raise AccelError(
        f"The package {name} is neither in {Path.cwd()} nor in its src/, so its ops have no place to go.",
        "Install without -e, or build the ops into the cache: python -m op_builder.build.",
    )
