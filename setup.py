"""Packaging that ``pyproject.toml`` cannot express: the native sources become package data.

In a checkout ``csrc/``, ``kernels_sycl/`` and the template of ``accel-ops new`` are next to the packages, in a wheel in
``op_builder/_native``. ``op_builder.paths`` finds both.
"""

from pathlib import Path

from setuptools import find_packages, setup

NATIVE = {
    f"op_builder._native.{'.'.join(directory.parts)}": directory.as_posix()
    for name in ("csrc", "kernels_sycl", "examples/my_ops")
    for directory in (Path(name), *filter(Path.is_dir, sorted(Path(name).rglob("*"))))
    if not directory.match("__pycache__")
}

setup(
    packages=[*find_packages(include=["accelerator*", "op_builder*"]), *NATIVE],
    package_dir=NATIVE,
    package_data={
        "accelerator": ["py.typed"],
        "op_builder": ["py.typed"],
        "op_builder.report": ["known_symbols.json"],
        **{name: ["*"] for name in NATIVE},
    },
)
