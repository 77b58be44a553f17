"""The helper methods that builder classes written for DeepSpeed's ``OpBuilder`` call on ``self``."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Iterable
from typing import TYPE_CHECKING

from op_builder import paths
from op_builder.recipe import text_list
from op_builder.system.cpu_isa import architecture_flag, simd_define
from op_builder.system.torch_install import torch_install

if TYPE_CHECKING:
    from op_builder.cache.store import Cache
    from op_builder.plan import BuildPlan

logger = logging.getLogger(__name__)


class DeepSpeedMethods:
    """A base of :class:`op_builder.builder.base.OpBuilder`, which has the members declared here."""

    name: str
    build_for_cpu: bool
    error_log: str | None
    _logged: set[str]

    if TYPE_CHECKING:
        cache: Cache

        def plan(self) -> BuildPlan: ...

    def has_function(
        self, funcname: str, libraries: Iterable[str], library_dirs: Iterable[str] | None = None, verbose: bool = False
    ) -> bool:
        """Whether a program that calls ``funcname`` compiles and links with ``libraries`` (names without ``lib``)."""
        from op_builder.toolchains import probes

        names = text_list(libraries, f"{self.name}: the argument libraries of has_function()")
        directories = text_list(library_dirs or (), f"{self.name}: the argument library_dirs of has_function()")
        failure = probes.link_failure(funcname, tuple(names), tuple(directories), self.cache.memo)
        if failure and verbose:
            logger.warning("%s: no function %s in %s: %s", self.name, funcname, names, failure)
        return not failure

    def warning(self, msg: str) -> None:
        """Log a warning about this op, once for each builder, and keep it as the reason that the report shows."""
        self.error_log = str(msg)
        if self.error_log not in self._logged:
            self._logged.add(self.error_log)
            logger.warning("%s: %s", self.name, msg)

    def command_exists(self, cmd: str | list[str]) -> bool:
        """Whether at least one of the commands is on PATH."""
        commands = [cmd] if isinstance(cmd, str) else cmd
        return any(shutil.which(command) is not None for command in commands)

    def strip_empty_entries(self, args: Iterable[str]) -> list[str]:
        """``args`` without empty strings, which compilers take for file names."""
        return [arg for arg in args if len(arg) > 0]

    def cpu_arch(self) -> str:
        """Compiler flag for this CPU's architecture level, by name, so that the key contains it."""
        return architecture_flag()

    def simd_width(self) -> str:
        """``-D__AVX512__``, ``-D__AVX256__`` or ``-D__SCALAR__`` for this CPU."""
        return simd_define()

    def torch_version(self) -> tuple[int, int]:
        """(major, minor) of torch."""
        return torch_install().release

    def version_dependent_macros(self) -> list[str]:
        """Defines that older extension sources test; all are true for torch >= 2.10."""
        return ["-DVERSION_GE_1_1", "-DVERSION_GE_1_3", "-DVERSION_GE_1_5"]

    def deepspeed_src_path(self, code_path: str) -> str:
        """The absolute path of a source, found as the names in :meth:`sources` are, or where a missing one would be."""
        candidates = paths.places(code_path, type(self))
        return next(filter(os.path.exists, candidates), candidates[0])

    @staticmethod
    def is_rocm_pytorch() -> bool:
        """Whether torch is a ROCm build."""
        return torch_install().hip is not None

    @staticmethod
    def is_sycl_enabled() -> bool:
        """Whether torch is an XPU build."""
        return torch_install().xpu is not None

    @staticmethod
    def installed_rocm_version() -> tuple[int, int]:
        """(major, minor) of ROCm; (0, 0) if it is not installed."""
        from op_builder.toolchains import probes

        return probes.rocm_version()

    @staticmethod
    def get_rocm_gpu_arch() -> str:
        """The GPU's architecture as ``gfx90a``; empty without a GPU."""
        from op_builder.toolchains import probes

        return probes.rocm_agent("Name:", r"gfx[0-9a-f]+")

    @staticmethod
    def get_rocm_wavefront_size() -> str:
        """Threads per wavefront of the GPU, as text; ``32`` if unknown."""
        from op_builder.toolchains import probes

        return probes.rocm_agent("Wavefront Size:", r"\d+") or "32"

    def get_cuda_lib64_path(self) -> str:
        """Directory of the CUDA toolkit's libraries (ROCm's on a ROCm build)."""
        if self.is_rocm_pytorch():
            from torch.utils import cpp_extension

            return os.path.join(cpp_extension.ROCM_HOME or "/opt/rocm", "lib")
        from op_builder.toolchains.cuda import find_cuda

        return str(find_cuda(self.cache.memo).library_dir)

    def get_cuda_compile_flag(self) -> str:
        """``-D__ENABLE_CUDA__`` if torch is a CUDA build and the op is not for the CPU, else ``-D__DISABLE_CUDA__``."""
        if self.build_for_cpu or torch_install().cuda is None:
            return "-D__DISABLE_CUDA__"
        return "-D__ENABLE_CUDA__"

    def hipify_extension(self) -> None:
        """On a ROCm build, translate the CUDA sources in their directories; otherwise do nothing.

        Never run on ROCm hardware by this project.
        """
        if not self.is_rocm_pytorch():
            return
        from torch.utils.hipify import hipify_python

        plan = self.plan()
        files = [source.path for source in plan.sources if source.text is None]
        root = os.path.commonpath([str(path.parent) for path in files])
        hipify_python.hipify(
            project_directory=root,
            output_directory=root,
            header_include_dirs=[str(path) for path in plan.include_dirs],
            extra_files=[str(path) for path in files],
            is_pytorch_extension=True,
            hipify_extra_files_only=True,
        )

    def sycl_extension(self) -> None:
        """Hook for existing builders with SYCL sources; ``builder()`` needs no preparation."""
