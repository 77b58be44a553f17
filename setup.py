"""Packaging that ``pyproject.toml`` cannot say: the native sources become package data.

A checkout keeps ``csrc/`` and ``kernels_sycl/`` beside the packages; a wheel carries them below
``op_builder/_native``. ``op_builder.paths`` finds them in either place.
"""

import os
import sys
from pathlib import Path

from setuptools import find_packages, setup

NATIVE = {
    f"op_builder._native.{'.'.join(directory.parts)}": directory.as_posix()
    for name in ("csrc", "kernels_sycl")
    for directory in (Path(name), *filter(Path.is_dir, sorted(Path(name).rglob("*"))))
}

asked = sorted(
    name
    for name, value in os.environ.items()
    if name.startswith("ACCEL_BUILD_")
    and name != "ACCEL_BUILD_TORCH"
    and value.lower() not in ("", "0", "off", "false")
)
if asked:
    # The build backend builds ops and hides these variables from here. Better no wheel than one without them.
    sys.exit(f"{', '.join(asked)}: setup.py builds no ops by itself. Use: {asked[0]}=1 pip install .")

setup(
    packages=[*find_packages(include=["accelerator*", "op_builder*"]), *NATIVE],
    package_dir=NATIVE,
    package_data={"accelerator": ["py.typed"], "op_builder": ["py.typed"], **{name: ["*"] for name in NATIVE}},
)
