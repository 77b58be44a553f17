"""PEP 517 backend: setuptools, and native ops built into the wheel where the environment asks for them.

    pip install .                      compiles nothing; ops are built when first loaded
    ACCEL_BUILD_OPS=1 pip install .    builds every op that can be built here into what is installed

The work is done by ``op_builder.prebuild.backend``. This file finds it: in accel-ops itself in the checkout;
in another project, which copies this file as it is, in the environment that is installed into, which has
accel-ops. In that project's ``pyproject.toml``::

    [build-system]
    requires = ["setuptools>=77"]
    build-backend = "accel_build_backend"
    backend-path = ["build_tools"]
"""

import os
import subprocess
import sys

from setuptools import build_meta

_FIND = "import op_builder.prebuild, os; print(os.path.dirname(os.path.dirname(op_builder.__file__)))"


def _backend():
    """op_builder's hooks; setuptools' own where op_builder is not installed and no op is asked for; else None."""
    if os.path.isdir(os.path.join("op_builder", "prebuild")):
        return _imported(os.getcwd())
    try:  # in the build environment, if it was requested for that
        from op_builder.prebuild import backend

        return backend
    except ImportError:
        pass
    place = _installed()
    if place:
        return _imported(place)
    return None if _asked() else build_meta


def _imported(place):
    sys.path.insert(0, place)
    sys.dont_write_bytecode = True  # a build leaves nothing in the project
    try:
        from op_builder.prebuild import backend
    finally:
        sys.path.remove(place)
    return backend


def _installed():
    """Where the environment that is installed into has op_builder; pip hides that from this process only."""
    named = os.environ.get("ACCEL_BUILD_TORCH", "")
    if os.path.isdir(os.path.join(named, "op_builder", "prebuild")):
        return named
    # What is named has torch, and may not have op_builder.
    pythons = (named, os.path.join(named, "bin", "python"), sys.executable) if named else (sys.executable,)
    for python in pythons:
        try:
            found = subprocess.run(
                [python, "-E", "-c", _FIND],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                timeout=120,
            )
        except (OSError, subprocess.TimeoutExpired):
            continue
        if found.returncode == 0:
            return found.stdout.decode().strip()
    return ""


def _asked():
    off = ("", "0", "off", "false")
    return any(
        value.lower() not in off
        for name, value in os.environ.items()
        if name.startswith("ACCEL_BUILD_") and name != "ACCEL_BUILD_TORCH"
    )


def _requirements(hook, config_settings):
    backend = _backend()
    if backend is not None:
        return getattr(backend, hook)(config_settings)
    print("Ops are asked for, and accel-ops, which builds them, is not installed: it is requested.", file=sys.stderr)
    return [*getattr(build_meta, hook)(config_settings), "accel-ops", "wheel"]


def _call(hook, *arguments):
    backend = _backend()
    if backend is None:
        sys.exit(
            "Ops are asked for (ACCEL_BUILD_*), and accel-ops, which builds them, is not installed here. "
            "Install it and torch first, and then this project."
        )
    return getattr(backend, hook)(*arguments)


def get_requires_for_build_wheel(config_settings=None):
    return _requirements("get_requires_for_build_wheel", config_settings)


def get_requires_for_build_editable(config_settings=None):
    return _requirements("get_requires_for_build_editable", config_settings)


def get_requires_for_build_sdist(config_settings=None):
    return (_backend() or build_meta).get_requires_for_build_sdist(config_settings)


def prepare_metadata_for_build_wheel(metadata_directory, config_settings=None):
    return _call("prepare_metadata_for_build_wheel", metadata_directory, config_settings)


def prepare_metadata_for_build_editable(metadata_directory, config_settings=None):
    return _call("prepare_metadata_for_build_editable", metadata_directory, config_settings)


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    return _call("build_wheel", wheel_directory, config_settings, metadata_directory)


def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    return _call("build_editable", wheel_directory, config_settings, metadata_directory)


def build_sdist(sdist_directory, config_settings=None):
    return (_backend() or build_meta).build_sdist(sdist_directory, config_settings)
