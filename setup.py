"""Packaging that ``pyproject.toml`` cannot say: the native sources become package data.

A checkout keeps ``csrc/`` and ``kernels_sycl/`` beside the packages; a wheel carries them below
``op_builder/_native``. ``op_builder.paths`` finds them in either place.
"""

from setuptools import find_packages, setup

NATIVE = {f"op_builder._native.{name}": name for name in ("csrc", "kernels_sycl")}

setup(
    packages=[*find_packages(include=["accelerator*", "op_builder*"]), *NATIVE],
    package_dir=NATIVE,
    package_data={"accelerator": ["py.typed"], "op_builder": ["py.typed"], **{name: ["**/*"] for name in NATIVE}},
)
