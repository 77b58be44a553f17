"""What is known before anything is compiled."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import pytest
import torch

from op_builder import Binding, CPUOpBuilder
from op_builder.system.outcomes import Failed


class MixedBuilder(CPUOpBuilder):
    NAME = "mixed"
    BINDING = Binding.TORCH
    SOURCES: ClassVar[list[str]] = []

    def sources(self) -> list[str]:
        return self.SOURCES


@pytest.mark.skipif(torch.version.cuda is not None, reason="this torch is a build with CUDA")
@pytest.mark.parametrize(("names", "failing"), [(["a.cpp", "b.cu"], ["torch with CUDA"]), (["a.cpp"], [])])
def test_cuda_sources_of_a_cpu_builder_need_a_torch_with_cuda(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: list[str], failing: list[str]
) -> None:
    for name in names:
        (tmp_path / name).touch()
    monkeypatch.setattr(MixedBuilder, "SOURCES", [str(tmp_path / name) for name in names])
    checks = MixedBuilder().build_checks()
    assert [check.name for check in checks if isinstance(check, Failed)] == failing
