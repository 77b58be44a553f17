"""Packaging that ``pyproject.toml`` cannot express: the native sources become package data.

``csrc/`` and ``kernels_sycl/`` are next to the packages in a checkout and in ``op_builder/_native`` in a wheel.
``op_builder.paths`` finds both.
"""

from pathlib import Path

from setuptools import find_packages, setup

NATIVE = {
    f"op_builder._native.{'.'.join(directory.parts)}": directory.as_posix()
    for name in ("csrc", "kernels_sycl")
    for directory in (Path(name), *filter(Path.is_dir, sorted(Path(name).rglob("*"))))
}

setup(
    packages=[*find_packages(include=["accelerator*", "op_builder*"]), *NATIVE],
    package_dir=NATIVE,
    package_data={"accelerator": ["py.typed"], "op_builder": ["py.typed"], **{name: ["*"] for name in NATIVE}},
)
