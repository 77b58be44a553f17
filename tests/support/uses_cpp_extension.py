"""A builder whose ``is_compatible()`` uses torch's cpp_extension, which it has not imported."""

import sys

import torch

from op_builder.builder import CPUOpBuilder


class ToolkitBuilder(CPUOpBuilder):
    NAME = "toolkit"

    def sources(self) -> list[str]:
        return []

    def is_compatible(self, verbose: bool = False) -> bool:  # noqa: ARG002
        return torch.utils.cpp_extension.CUDA_HOME is None or True


if __name__ == "__main__":
    builder = ToolkitBuilder()
    assert "setuptools" not in sys.modules
    assert builder.is_compatible()
    from torch.utils.cpp_extension import BuildExtension

    assert BuildExtension.__name__ == "BuildExtension"
