"""The base class of CUDA builders, and functions about CUDA for authors."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

from op_builder.builder.base import OpBuilder, planned_facts
from op_builder.cache.machine import ThisMachine
from op_builder.cache.store import Cache
from op_builder.errors import MissingCUDAException
from op_builder.plan import PlanFacts
from op_builder.system.outcomes import CheckOutcome, checked
from op_builder.toolchains import checks
from op_builder.toolchains.cuda import CudaToolkit, find_cuda, require_same_cuda
from op_builder.toolchains.cuda_archs import all_have_bf16, default_archs, gencode_flags, parse_arch_list, target_archs

_HALF_FEATURES = ("HALF_OPERATORS", "HALF_CONVERSIONS", "HALF2_OPERATORS")
_ARCH_FLAG = re.compile(r"--?(gencode|generate-code|arch|gpu-architecture)\b")


class CUDAOpBuilder(OpBuilder):
    """An op with CUDA sources. Compiling needs a CUDA toolkit; loading needs a device and a CUDA build of torch."""

    _kernels_for = "cuda"

    def nvcc_args(self) -> list[str]:
        """Flags for nvcc, added after the common ones; ``-gencode`` flags replace the computed ones.

        By default, as in DeepSpeed's class, they give ops on torch's C++ API back the operators and conversions of
        ``__half`` that torch's own flags disable.
        """
        half = [f"-U__CUDA_NO_{what}__" for what in _HALF_FEATURES] if self.BINDING.uses_torch_cxx else []
        return [*super().nvcc_args(), *half]

    def filter_ccs(self, ccs: list[str]) -> Sequence[str | Sequence[str]]:
        """The requested compute capabilities that this op supports: all, unless overridden.

        Args:
            ccs: entries like ``8.0``, ``9.0a``, ``9.0+PTX``.

        Returns:
            entries of the same form, or pairs like ``("9", "0+PTX")``.
        """
        return ccs

    def cuda_archs(self) -> list[str]:
        return [] if names_archs(self.nvcc_args()) else self._target_archs(None)

    def compute_capability_args(self, cross_compile_archs: str | None = None) -> list[str]:
        """``-gencode`` flags for the target architectures; also sets ``enable_bf16``.

        Args:
            cross_compile_archs: a list as in ``TORCH_CUDA_ARCH_LIST``, which it overrides.
        """
        return gencode_flags(self._target_archs(cross_compile_archs))

    def cuda_capability_major(self) -> int | None:
        """Major compute capability of the first device; None before this process uses CUDA, as for DeepSpeed."""
        import torch

        is_used = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
        return torch.cuda.get_device_capability(0)[0] if is_used else None

    def load_checks(self) -> list[CheckOutcome]:
        return [checked("CUDA device", checks.torch_cuda_check)]

    def _target_archs(self, named: str | None) -> list[str]:
        facts = planned_facts.get() or PlanFacts(self.cache.memo)
        if named and facts.cuda_archs is None:
            archs = _filtered_archs(self.name, self.filter_ccs, parse_arch_list(named))
        else:
            archs = planned_archs(self.name, self.filter_ccs, facts)
        self.enable_bf16 = all_have_bf16(archs, ())
        return archs


def names_archs(nvcc_flags: Iterable[str]) -> bool:
    """Whether flags for nvcc name architectures, which replace the computed ones."""
    return any(map(_ARCH_FLAG.match, nvcc_flags))


Filter = Callable[[list[str]], Sequence[str | Sequence[str]]]
"""Which of the requested compute capabilities an op supports; see :meth:`CUDAOpBuilder.filter_ccs`."""


def planned_archs(op: str, supported: Filter, facts: PlanFacts) -> list[str]:
    """The CUDA architectures to plan an op for: those of an existing binary, else the requested or visible ones."""
    if facts.cuda_archs is not None:
        return list(facts.cuda_archs)
    return _filtered_archs(op, supported, target_archs(find_cuda(facts.memo).archs, ThisMachine().cuda_capabilities))


def _filtered_archs(op: str, supported: Filter, archs: list[str]) -> list[str]:
    kept = [cc if isinstance(cc, str) else ".".join(cc) for cc in supported(archs)]
    if not kept:
        raise MissingCUDAException(
            f"Op '{op}' supports none of the requested CUDA architectures ({', '.join(archs)}).",
            "Set TORCH_CUDA_ARCH_LIST to an architecture that it supports.",
        )
    return kept


def installed_cuda_version(name: str = "") -> tuple[int, int]:
    """(major, minor) of the CUDA toolkit.

    Args:
        name: the op, for the message.

    Raises:
        MissingCUDAException: no toolkit was found.
    """
    return _toolkit(name).version


def _toolkit(op: str) -> CudaToolkit:
    try:
        return find_cuda(Cache().memo)
    except MissingCUDAException as error:
        if not op:
            raise
        raise MissingCUDAException(f"Op '{op}' needs CUDA. {error.message}", error.remedy) from error


def get_default_compute_capabilities() -> str:
    """The target architectures on a machine without a device, as a ``TORCH_CUDA_ARCH_LIST``."""
    return ";".join(default_archs(find_cuda(Cache().memo).archs))


def assert_no_cuda_mismatch(name: str = "") -> bool:
    """True if the toolkit has the CUDA major version that torch was built with; minor versions are compatible.

    Raises:
        MissingCUDAException: no toolkit was found.
        CUDAMismatchException: torch was built with another major version, or without CUDA.
    """
    require_same_cuda(_toolkit(name), f"Op '{name}': " if name else "")
    return True
