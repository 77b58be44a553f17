"""A program for AOTInductor: ``export`` or ``use``, the library with ``acme::twice``, and the package."""

from __future__ import annotations

import sys

import torch


class Model(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        twice: torch.Tensor = torch.ops.acme.twice(x)
        return twice + 1


if __name__ == "__main__":
    _, what, library, package = sys.argv
    torch.ops.load_library(library)
    if what == "export":
        exported = torch.export.export(Model(), (torch.ones(5),))
        torch._inductor.aoti_compile_and_package(exported, package_path=package)
    else:
        model = torch._inductor.aoti_load_package(package)
        assert torch.equal(model(torch.arange(5.0)), torch.arange(5.0) * 2 + 1)
        assert "op_builder" not in sys.modules
