"""Packaging that ``pyproject.toml`` cannot express: the native sources become package data.

In a checkout ``csrc/``, ``kernels_sycl/``, the template of ``accel-ops new`` and its build backend are next to the
packages, in a wheel in ``op_builder/_native``. ``op_builder.paths`` finds both.
"""

from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

NATIVE = {
    f"op_builder._native.{'.'.join(directory.parts)}": directory.as_posix()
    for name in ("csrc", "kernels_sycl", "examples/my_ops", "build_tools/accel_ops_build")
    for directory in (Path(name), *filter(Path.is_dir, sorted(Path(name).rglob("*"))))
    if not directory.match("__pycache__")
}
BACKEND = "op_builder._native.build_tools"


class WithoutTools(build_py):
    """Of ``build_tools/`` itself, only the backend's ``pyproject.toml`` is installed."""

    def find_package_modules(self, package, package_dir):
        return [] if package == BACKEND else super().find_package_modules(package, package_dir)


setup(
    packages=[*find_packages(include=["accelerator*", "op_builder*"]), *NATIVE, BACKEND],
    package_dir={**NATIVE, BACKEND: "build_tools"},
    cmdclass={"build_py": WithoutTools},
    package_data={
        "accelerator": ["py.typed"],
        "op_builder": ["py.typed"],
        "op_builder.report": ["known_symbols.json"],
        **{name: ["*"] for name in NATIVE},
        BACKEND: ["pyproject.toml"],
    },
    exclude_package_data={BACKEND: ["*.pth", "*.sh", "*.txt"]},
)
