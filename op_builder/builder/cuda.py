"""The base class of CUDA builders, and functions about CUDA for authors."""

from __future__ import annotations

import re
from collections.abc import Sequence

from op_builder.builder.base import OpBuilder
from op_builder.cache.store import Cache
from op_builder.errors import CUDAMismatchException, MissingCUDAException
from op_builder.plan import BuildPlan
from op_builder.system.outcomes import CheckOutcome, Failed, Passed, guarded
from op_builder.system.torch_install import parse_release, torch_install
from op_builder.toolchains import checks
from op_builder.toolchains.cuda import find_cuda
from op_builder.toolchains.cuda_archs import default_archs, gencode_flags, parse_arch_list, target_archs

_BF16_SINCE = (8, 0)
_HALF_FEATURES = ("HALF_OPERATORS", "HALF_CONVERSIONS", "HALF2_OPERATORS")
_ARCH_FLAG = re.compile(r"--?(gencode|generate-code|arch|gpu-architecture)\b")


class CUDAOpBuilder(OpBuilder):
    """An op with CUDA sources. Compiling needs a CUDA toolkit; loading needs a device and a CUDA build of torch."""

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
        return [] if self.names_own_archs() else self._target_archs()

    def names_own_archs(self) -> bool:
        """Whether :meth:`nvcc_args` contains architecture flags, which replace the computed ones."""
        return any(_ARCH_FLAG.match(flag) for flag in self.nvcc_args())

    def compute_capability_args(self, cross_compile_archs: str | None = None) -> list[str]:
        """``-gencode`` flags for the target architectures; also sets ``enable_bf16``.

        Args:
            cross_compile_archs: a list as in ``TORCH_CUDA_ARCH_LIST``, which it overrides.
        """
        if cross_compile_archs and self.given_archs is None:
            return gencode_flags(self._filtered(parse_arch_list(cross_compile_archs)))
        return gencode_flags(self._target_archs())

    def cuda_capability_major(self) -> int | None:
        """Major compute capability of the first device; None before this process uses CUDA, as for DeepSpeed."""
        import torch

        is_used = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
        return torch.cuda.get_device_capability(0)[0] if is_used else None

    def build_checks(self) -> list[CheckOutcome]:
        outcomes = super().build_checks()
        plan = guarded("nvcc", self.plan)
        if isinstance(plan, Failed) or not plan.uses_cuda:
            return outcomes
        outcomes.append(guarded("nvcc", lambda: checks.nvcc_check(plan, self.cache.memo)))
        if self.BINDING.uses_torch_cxx:
            outcomes.append(guarded("CUDA versions", _versions_check))
        return outcomes

    def _needs_cuda_torch(self, plan: BuildPlan) -> bool:  # noqa: ARG002
        return False  # compiling needs only the toolkit

    def load_checks(self) -> list[CheckOutcome]:
        return [guarded("CUDA device", checks.torch_cuda_check)]

    def _target_archs(self) -> list[str]:
        if self.given_archs is not None:
            self.enable_bf16 = _all_support_bf16(self.given_archs)
            return self.given_archs
        return self._filtered(target_archs(find_cuda(self.cache.memo).archs, _visible_capabilities()))

    def _filtered(self, archs: list[str]) -> list[str]:
        kept = [cc if isinstance(cc, str) else ".".join(cc) for cc in self.filter_ccs(archs)]
        self.enable_bf16 = _all_support_bf16(kept)
        if not kept:
            raise MissingCUDAException(
                f"Op '{self.name}' supports none of the requested CUDA architectures ({', '.join(archs)}).",
                "Set TORCH_CUDA_ARCH_LIST to an architecture that it supports.",
            )
        return kept


def _all_support_bf16(archs: list[str]) -> bool:
    return bool(archs) and all(parse_release(arch) >= _BF16_SINCE for arch in archs)


def installed_cuda_version(name: str = "") -> tuple[int, int]:
    """(major, minor) of the CUDA toolkit.

    Args:
        name: the op, for the message.

    Raises:
        MissingCUDAException: no toolkit was found.
    """
    try:
        return find_cuda(Cache().memo).version
    except MissingCUDAException as error:
        if not name:
            raise
        raise MissingCUDAException(f"Op '{name}' needs CUDA. {error.message}", error.remedy) from error


def get_default_compute_capabilities() -> str:
    """The target architectures on a machine without a device, as a ``TORCH_CUDA_ARCH_LIST``."""
    return ";".join(default_archs(find_cuda(Cache().memo).archs))


def assert_no_cuda_mismatch(name: str = "") -> bool:
    """True if the toolkit has the CUDA major version that torch was built with; minor versions are compatible.

    Raises:
        MissingCUDAException: no toolkit was found.
        CUDAMismatchException: torch was built with another major version, or without CUDA.
    """
    toolkit = installed_cuda_version(name)
    built = torch_install().cuda
    prefix = f"Op '{name}': " if name else ""
    if built is None:
        raise CUDAMismatchException(
            f"{prefix}torch {torch_install().version} is a build without CUDA.",
            "Install a CUDA build of torch.",
        )
    if parse_release(built)[0] != toolkit[0]:
        raise CUDAMismatchException(
            f"{prefix}the CUDA toolkit is {toolkit[0]}.{toolkit[1]}, torch was built with CUDA {built}.",
            f"Install a CUDA {built} toolkit and set CUDA_HOME to it, or a torch built for CUDA {toolkit[0]}.",
        )
    return True


def _versions_check() -> CheckOutcome:
    built = torch_install().cuda
    if built is None and torch_install().hip is None:
        return Passed("CUDA versions", "torch is a build without CUDA; the toolkit is enough to compile")
    if torch_install().hip is None:
        assert_no_cuda_mismatch()
    return Passed("CUDA versions", f"torch for CUDA {built}")


def _visible_capabilities() -> list[tuple[int, int]]:
    if torch_install().cuda is None:
        return []
    import torch

    return [torch.cuda.get_device_capability(index) for index in range(torch.cuda.device_count())]
