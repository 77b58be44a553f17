"""Build backend (PEP 517 and PEP 660): setuptools, plus native ops in the wheel if the environment requests them.

::

    pip install .                      compiles nothing; ops are built when they are first loaded
    ACCEL_BUILD_OPS=1 pip install .    builds every compatible op into the wheel

setuptools builds the wheel. This backend unpacks it, runs ``op_builder.prebuild.worker`` on it in the Python whose
torch the ops are built against, and packs it again with the binaries and their tag. It imports neither torch nor
accel-ops, because the build environment contains little more than setuptools.
"""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from configparser import RawConfigParser
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from setuptools import build_meta  # type: ignore[import-untyped]

from accel_ops_build import sdist, wheels
from accel_ops_build.target import PATH_PROGRAM, TORCH, TargetPython, environment, fail, find_target, log

Settings = Mapping[str, Any] | None

# Requirements of compiling and packing, in addition to a compiler and torch.
_TOOLS = ["ninja>=1.11", "packaging>=22", "psutil>=5.9", "wheel>=0.40"]
_CROSS_TOOLS = ["ziglang>=0.16"]  # the compiler for another platform
_SOURCE_ROOTS = ("", "src")
_WORKER = f"""{PATH_PROGRAM}
from op_builder.prebuild import worker
sys.exit(worker.main(*sys.argv[1:]))
"""
# accel-ops' own, for what must work in every Python, such as ACCEL_CPP_EXTENSION; setuptools cannot install it.
_STARTUP_FILE = Path("build_tools", "accel_ops.pth")
_REPORTED = 3  # the worker's exit status after it has printed an error


get_requires_for_build_sdist = build_meta.get_requires_for_build_sdist
prepare_metadata_for_build_editable = build_meta.prepare_metadata_for_build_editable


def build_sdist(sdist_directory: str, config_settings: Settings = None) -> str:
    """setuptools' sdist, reproducible if SOURCE_DATE_EPOCH is set."""
    name = str(build_meta.build_sdist(sdist_directory, config_settings))
    if os.environ.get("SOURCE_DATE_EPOCH"):
        sdist.fix_times(Path(sdist_directory, name))
    return name


def get_requires_for_build_wheel(config_settings: Settings = None) -> list[str]:
    """The requirements of the build environment: only setuptools unless ops are requested."""
    return _requirements(build_meta.get_requires_for_build_wheel, config_settings)


def get_requires_for_build_editable(config_settings: Settings = None) -> list[str]:
    """The same for an editable install."""
    return _requirements(build_meta.get_requires_for_build_editable, config_settings)


def prepare_metadata_for_build_wheel(metadata_directory: str, config_settings: Settings = None) -> str:
    """setuptools' metadata, which do not depend on the ops."""
    with _private_directories():
        return str(build_meta.prepare_metadata_for_build_wheel(metadata_directory, config_settings))


def build_wheel(wheel_directory: str, config_settings: Settings = None, metadata_directory: str | None = None) -> str:
    """setuptools' wheel with the requested ops."""
    with _private_directories() as scratch:
        plain = _plain_wheel(scratch, config_settings, metadata_directory)
        if _ops_requested():
            tree = scratch / "tree"
            wheels.require_packer()
            wheels.unpack(plain, tree)
            if tag := _build_ops(tree):
                return wheels.pack(tree, Path(wheel_directory), tag)
        wheels.reject_ops(plain)
        shutil.copy(plain, wheel_directory)
        return plain.name


def build_editable(
    wheel_directory: str, config_settings: Settings = None, metadata_directory: str | None = None
) -> str:
    """setuptools' editable wheel; the requested ops are put into the project's own packages."""
    with _private_directories() as scratch:
        tree, metadata = scratch / "tree", scratch / "metadata"
        if _ops_requested():
            if os.environ.get("ACCEL_BUILD_TARGET"):
                fail("An editable install is for this machine, and ACCEL_BUILD_TARGET names another.", "Unset it.")
            wheels.unpack(_plain_wheel(scratch, config_settings, None), tree)
            _build_ops(tree)
        metadata.mkdir()
        name = prepare_metadata_for_build_editable(str(metadata), config_settings)
        packages = (metadata / name / "top_level.txt").read_text(encoding="utf-8").split()
        _replace_ops(packages, tree)
    wheel = str(build_meta.build_editable(wheel_directory, config_settings, metadata_directory))
    if _STARTUP_FILE.exists():
        wheels.add_file(Path(wheel_directory, wheel), _STARTUP_FILE)
    return wheel


def _ops_requested() -> bool:
    """Whether any op is requested. The worker reads which, and rejects invalid values."""
    return any(
        value.lower() not in ("", "0", "off", "false")
        for name, value in os.environ.items()
        if name.startswith("ACCEL_BUILD_") and name != "ACCEL_BUILD_TORCH"
    )


def _requirements(of_setuptools: Callable[[Any], list[str]], config_settings: Settings) -> list[str]:
    with _private_directories():
        needed = list(of_setuptools(config_settings))
    if not _ops_requested():
        return needed
    needed += [*_TOOLS, *(_CROSS_TOOLS if os.environ.get("ACCEL_BUILD_TARGET") else [])]
    if _find_target() is not None:
        return needed
    log(f"no torch was found, so this build requires {TORCH}; set ACCEL_BUILD_TORCH to use an installed one")
    return [*needed, TORCH]


def _find_target() -> TargetPython | None:
    """The Python to build with; None if accel-ops itself is built and no torch is installed."""
    target = find_target()
    if not Path("op_builder", "prebuild").is_dir() and (target is None or not target.has_accel_ops):
        where = f"with torch in {target.torch_dir}" if target else "here"
        # Not a requirement, because the name on the package index may belong to someone else.
        fail(
            f"Ops are requested (ACCEL_BUILD_*), but accel-ops, which builds them, is not installed {where}.",
            "Install torch and accel-ops first. For python -m build and uv, set ACCEL_BUILD_TORCH to their Python.",
        )
    return target


@contextmanager
def _private_directories() -> Iterator[Path]:
    """A temporary directory that setuptools uses instead of the project's ``build/``.

    Files of earlier builds in ``build/`` would get into the wheel, and simultaneous builds would conflict.
    """
    given = os.environ.get("DIST_EXTRA_CONFIG")
    with tempfile.TemporaryDirectory(prefix="accel-ops-wheel-") as scratch:
        information = Path(scratch, "information")
        information.mkdir()
        config = RawConfigParser()
        config.read(given or (), encoding="utf-8")
        config.read_dict({"build": {"build_base": f"{scratch}/build"}, "egg_info": {"egg_base": information}})
        with open(Path(scratch, "setup.cfg"), "w", encoding="utf-8") as file:
            config.write(file)
        os.environ["DIST_EXTRA_CONFIG"] = file.name
        try:
            yield Path(scratch)
        finally:
            del os.environ["DIST_EXTRA_CONFIG"]
            os.environ.update({} if given is None else {"DIST_EXTRA_CONFIG": given})


def _plain_wheel(scratch: Path, config_settings: Settings, metadata_directory: str | None) -> Path:
    plain = scratch / "plain"
    plain.mkdir()
    if _ops_requested():  # setuptools logs every file, which would hide an op's error
        logging.disable(logging.INFO)
    try:
        wheel = plain / str(build_meta.build_wheel(str(plain), config_settings, metadata_directory))
    finally:
        logging.disable(logging.NOTSET)
    if _STARTUP_FILE.exists():
        wheels.add_file(wheel, _STARTUP_FILE)
    return wheel


def _build_ops(tree: Path) -> str:
    """Build the ops of the unpacked wheel; returns the wheel's tag, empty if none of its ops is requested."""
    target = _find_target()
    if target is None:
        fail("No torch was found to build ops against.", f"Install {TORCH}, or set ACCEL_BUILD_TORCH.")
    log(f"building against torch {target.torch_version} in {target.torch_dir} ({target.reason})")
    tag = tree.with_name("tag")
    command = target.command(_WORKER, [str(tree)], str(tree), str(tag))
    status = subprocess.run(command, env={**environment(), "PYTHONDONTWRITEBYTECODE": "1"}, check=False).returncode
    if status == _REPORTED:
        raise SystemExit(status)
    if status != 0:
        fail(
            f"{target.python} exited with status {status} while it built the ops.",
            "See its output above. Status -9 often means out of memory; ACCEL_MAX_JOBS=1 compiles one file at a time.",
        )
    return tag.read_text(encoding="utf-8")


def _replace_ops(packages: Iterable[str], tree: Path) -> None:
    """Replace the ops of an earlier editable install in the project's packages with those of ``tree``."""
    places = {ops: _source_package(ops.parent.relative_to(tree)) / wheels.DIRECTORY for ops in wheels.ops_in(tree)}
    try:
        for root in _SOURCE_ROOTS:
            for package in packages:
                for left in wheels.ops_in(Path(root, package)):
                    shutil.rmtree(left)
        for ops, place in places.items():
            shutil.copytree(ops, place)
            log(f"the ops of {place.parent.name} are in {place}")
    except OSError as error:
        fail(
            f"An editable install keeps its ops in the project's packages, which are not writable: {error}.",
            "Make them writable, or install without -e.",
        )


def _source_package(name: Path) -> Path:
    for root in _SOURCE_ROOTS:
        if Path(root, name, "__init__.py").is_file():
            return Path.cwd() / root / name
    return fail(
        f"The package {name} is neither in {Path.cwd()} nor in its src/, so its ops cannot be installed.",
        "Install without -e, or build the ops into the cache: `python -m op_builder.build`.",
    )
