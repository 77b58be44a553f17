"""Packaging that ``pyproject.toml`` cannot say: the native sources become package data.

A checkout keeps ``csrc/`` and ``kernels_sycl/`` next to the packages; a wheel carries them below
``op_builder/_native``. ``op_builder.paths`` finds them in either place.
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
