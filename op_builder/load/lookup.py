"""The facts of this machine and process about one op, for :mod:`op_builder.load.resolve`."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING

from op_builder import env
from op_builder.cache.key import COMPILER_PARTS, PlanKey, Roots, cpu_digest, plan_key, platform_name
from op_builder.cache.store import CHANGED, Cache, Entry
from op_builder.errors import AccelError
from op_builder.load.open import opened_entries
from op_builder.load.resolve import Candidate, PrebuiltFacts, cached_candidates
from op_builder.messages import warn_once
from op_builder.plan import BuildPlan, PlanFacts
from op_builder.spec import OpSpec
from op_builder.system.outcomes import Rejection
from op_builder.system.target import require_supported
from op_builder.system.torch_install import torch_install
from op_builder.toolchains.toolset import Toolset, find_toolset

if TYPE_CHECKING:
    from op_builder.system.target import Target
    from op_builder.toolchains.sycl_runtime import SyclRuntime

logger = logging.getLogger(__name__)

_OTHER_KEY = Rejection("its sources, flags or tools are others now")


class Lookup:
    """What is known about an op: its plan, its tools, its key and its binaries, each found once, when it is needed.

    Args:
        target: the platform to build for; None for this machine.
        namespace: torch namespace for a library that registers its ops when it is opened.
    """

    def __init__(
        self, spec: OpSpec, cache: Cache, *, target: Target | None = None, namespace: str | None = None
    ) -> None:
        self.spec = spec
        self.cache = cache
        self.machine = ThisMachine()
        self._facts = PlanFacts(cache.memo, target, namespace=namespace)

    @cached_property
    def plan(self) -> BuildPlan:
        """The recipe; raises an AccelError if there is none."""
        return self.spec.plan(self._facts)

    @cached_property
    def _tools(self) -> Toolset | AccelError:
        try:
            return find_toolset(self.plan, self.cache.memo)
        except AccelError as error:
            if env.CXX.get() is not None:  # the user requested a compiler that will not be used
                warn_once(logger, f"{error.message} Existing builds of any compiler are used instead. {error.remedy}")
            return error

    @property
    def toolset(self) -> Toolset | None:
        """The compilers; None if one is missing."""
        return self._tools if isinstance(self._tools, Toolset) else None

    def require_toolset(self) -> Toolset:
        """The compilers.

        Raises:
            ToolchainError, MissingCUDAException: one is missing.
        """
        if isinstance(self._tools, AccelError):
            raise self._tools
        return self._tools

    @cached_property
    def key(self) -> PlanKey:
        """The first stage of the op's key; compiles nothing and writes only memos."""
        return plan_key(self.plan, self.toolset, self.cache.memo)

    @cached_property
    def roots(self) -> Roots:
        """The directories that the headers of entries are named relative to."""
        return Roots.of(self.plan)

    def find_cached(self) -> Entry | None:
        """The usable entry in the cache; raises an AccelError if the op has no plan."""
        _ = self.key
        for candidate in cached_candidates(self):
            if candidate.rejection is None and candidate.entry is not None:
                self.cache.note_use(candidate.entry)
                return candidate.entry
            self.dismiss(candidate)
        return None

    def dismiss(self, candidate: Candidate) -> None:
        """Move a damaged entry out of the way, and warn of one that is not trusted."""
        if candidate.entry is not None and candidate.rejection is not None:
            self.cache.dismiss(candidate.entry, candidate.rejection)

    # What resolve() asks ----------------------------------------------------------------------

    @property
    def any_compiler(self) -> bool:
        return self.toolset is None

    def unavailable(self) -> Rejection | None:
        if sys.platform == "win32":
            try:
                require_supported(sys.platform)
            except AccelError as error:
                return Rejection(error.message, error.remedy)
        return self.spec.unavailable

    def opened(self) -> Iterator[tuple[Entry, Rejection | None]]:
        for entry in opened_entries(self.spec.name):
            try:
                same = self.key.differs_only_in(entry.manifest.key_parts, COMPILER_PARTS if self.any_compiler else ())
            except AccelError as error:  # a wheel may contain binaries without their sources
                yield entry, Rejection(error.message, error.remedy)
                continue
            unchanged = same and entry.manifest.key.headers_unchanged(
                self.roots, self.cache.memo, any_system=self.any_compiler
            )
            yield entry, None if unchanged else CHANGED if same else _OTHER_KEY

    def prebuilt(self) -> Iterator[PrebuiltFacts]:
        if not any(os.path.isdir(root) for root in self.spec.prebuilt_roots):
            return
        from op_builder.load.prebuilt import find_prebuilt

        yield from find_prebuilt(self.spec, self.cache.memo)

    def cached(self) -> Iterator[tuple[Entry, Rejection | None]]:
        try:
            key, roots = self.key, self.roots
        except AccelError as error:
            logger.debug("'%s' has no plan: %s", self.spec.name, error.message)
            return
        yield from self.cache.matching(key, self.plan.op, roots, any_compiler=self.any_compiler)

    def building(self) -> Rejection | None:
        return JIT_FORBIDDEN if not env.ACCEL_JIT.get() else None


JIT_FORBIDDEN = Rejection(
    "ACCEL_JIT=0 forbids compiling when an op is loaded.",
    "Unset ACCEL_JIT, or use a cache directory or a wheel that contains the op.",
)


class ThisMachine:
    """What a binary must fit here."""

    @property
    def platform(self) -> str:
        return platform_name()

    @property
    def cpu(self) -> str:
        return cpu_digest()

    @property
    def glibc(self) -> str:
        """Empty for another C library."""
        try:
            return (os.confstr("CS_GNU_LIBC_VERSION") or "").rpartition(" ")[2]
        except (AttributeError, OSError, ValueError):
            return ""

    @property
    def torch_release(self) -> tuple[int, int]:
        return torch_install().release

    @property
    def torch_version(self) -> str:
        return torch_install().version

    @property
    def python_abi(self) -> str:
        import sysconfig

        return str(sysconfig.get_config_var("EXT_SUFFIX"))

    @property
    def cuda_capabilities(self) -> list[tuple[int, int]]:
        """Of the visible devices."""
        if torch_install().cuda is None:
            return []
        import torch

        return [torch.cuda.get_device_capability(index) for index in range(torch.cuda.device_count())]

    @property
    def sycl(self) -> SyclRuntime | None:
        from op_builder.toolchains.sycl_runtime import find_runtime

        return find_runtime()

    @property
    def tvm_ffi(self) -> str | Rejection:
        """The version of apache-tvm-ffi."""
        from op_builder.toolchains.tvm_ffi import tvm_ffi_library

        try:
            return tvm_ffi_library().version
        except AccelError as error:
            return Rejection(error.message.rstrip("."), error.remedy)
