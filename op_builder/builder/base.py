"""``OpBuilder``: the class that an op's author extends, and how it becomes a loaded op.

A subclass names the op and returns data (sources, flags). :meth:`OpBuilder.spec` gives these, as the value that
loading, building and reporting work on.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, ClassVar, TypeGuard

from op_builder import paths
from op_builder.builder.deepspeed_methods import DeepSpeedMethods
from op_builder.builder.recipe_of import recipe_of
from op_builder.cache.store import Cache
from op_builder.errors import AccelError, IncompatibleOpError
from op_builder.load.load import load
from op_builder.load.resolve import WITHOUT_PREBUILT
from op_builder.plan import Binding, BuildPlan, PlanFacts
from op_builder.recipe import Recipe, normalized, plan_of
from op_builder.spec import OpSpec, opened_library
from op_builder.system.computed_once import computed_once
from op_builder.system.outcomes import Passed, Rejection

if TYPE_CHECKING:
    from op_builder.engine.ninja import Progress
    from op_builder.system.outcomes import CheckOutcome

logger = logging.getLogger(__name__)

# Context variables, because an author's methods, which take no arguments, call those of this class, and because threads
# share builders. The facts that a plan is made for:
planned_facts: ContextVar[PlanFacts | None] = ContextVar("planned_facts", default=None)
# The builder whose author's is_compatible() is called: this class's, which authors call from theirs, is then True.
_asked: ContextVar[OpBuilder | None] = ContextVar("_asked", default=None)


class OpBuilder(DeepSpeedMethods, ABC):
    """Base class of all builders.

    Attributes:
        NAME: the op's name, ``cpu_adam``; a class attribute, as the next three.
        BUILD_VAR: the variable that requests the op in a prebuild, ``ACCEL_BUILD_CPU_ADAM``.
        BINDING: how the binary registers with Python; ``Binding.TORCH`` accepts any style.
        SUMMARY: one line for the report.
        name: the op's name.
        jit_mode: whether ``jit_load()`` was called.
        build_for_cpu: whether only host code is built.
        enable_bf16: whether all target CUDA architectures support bfloat16.
        error_log: the last message passed to :meth:`warning`.
    """

    NAME: ClassVar[str] = ""
    BUILD_VAR: ClassVar[str] = ""
    BINDING: ClassVar[Binding] = Binding.TORCH
    SUMMARY: ClassVar[str] = ""

    # The device whose wheel contains the op: cuda or xpu; empty for all.
    _kernels_for: ClassVar[str] = ""

    def __init__(self, name: str | None = None) -> None:
        self.name = name or self.NAME
        self.jit_mode = False
        self.build_for_cpu = False
        self.enable_bf16 = False
        self.error_log: str | None = None
        self._logged: set[str] = set()
        if type(self).is_compatible is not OpBuilder.is_compatible:
            from op_builder.builder.lazy_cpp_extension import offer_cpp_extension

            offer_cpp_extension()

    # Methods that an author overrides ---------------------------------------------------------

    def absolute_name(self) -> str:
        """Dotted name of the prebuilt module; its last part names the binary."""
        return f"op_builder.{self.name}"

    @abstractmethod
    def sources(self) -> list[str]:
        """Files to compile: absolute, relative to the project's root, or relative to this class's package."""

    def source_texts(self) -> dict[str, str]:
        """Sources without a file, ``{"name.cpp": content}``: generated code, a notebook's cell."""
        return {}

    def include_paths(self) -> list[str]:
        """Include directories, named like sources."""
        return []

    def cxx_args(self) -> list[str]:
        """Flags for the host C++ compiler, added after the common ones."""
        return []

    def nvcc_args(self) -> list[str]:
        """Flags for nvcc, added after the common ones; ``-gencode`` flags replace the computed ones."""
        return []

    def source_args(self, source: str) -> list[str]:  # noqa: ARG002
        """Flags for one source, added after all others; ``source`` is a name from :meth:`sources`."""
        return []

    def extra_ldflags(self) -> list[str]:
        """Flags for the linker."""
        return []

    def libraries_args(self) -> list[str]:
        """Libraries to link, as ``-lname`` flags or bare names."""
        return []

    def bind(self, opened: Any) -> Any:
        """The object that ``load()`` returns, made from the opened binary: ``torch.ops.<namespace>`` or a module."""
        return opened

    def open_libraries(self) -> None:
        """Open the libraries that the binary needs and that torch does not load; called before the binary is opened.

        Raises:
            LoadError: a library cannot be opened.
        """

    def build_checks(self) -> list[CheckOutcome]:
        """Checks of what compiling the op needs, in addition to the tools and settings that its plan needs."""
        return []

    def load_checks(self) -> list[CheckOutcome]:
        """Checks of everything that loading the built op needs."""
        return []

    def is_compatible(self, verbose: bool = False) -> bool:
        """Whether ``load()`` would work here, with an existing binary or by compiling one.

        Args:
            verbose: log the reason and the remedy if it would not.
        """
        if _asked.get() is self:
            return True
        from op_builder.load.decision import decide

        rejection = decide(self.spec(), lambda: self.cache).rejection
        if rejection is not None:
            self.error_log = str(rejection)
            if verbose:
                logger.warning("Op '%s' is not available here. %s", self.name, rejection)
        return rejection is None

    def own_rejection(self) -> Rejection | None:
        """Why an overridden :meth:`is_compatible` rejects this machine; None if it does not.

        Existing builders give the reason by calling :meth:`warning`.
        """
        if type(self).is_compatible is OpBuilder.is_compatible:
            return None
        # The caller has already run the checks that it needs; compiling, for example, needs no device.
        before, self.error_log = self.error_log, None
        token = _asked.set(self)
        try:
            if self.is_compatible(verbose=True):
                self.error_log = before
                return None
        finally:
            _asked.reset(token)
        reason = (self.error_log or "Its builder gives no reason").rstrip(".")
        return Rejection(f"{reason}.", "Ask the op's author; the op's own is_compatible() gives this reason.")

    def builder(self) -> Any:
        """The plan as a setuptools extension, for a ``setup.py`` with torch's ``BuildExtension``."""
        from op_builder.builder.extension import setuptools_extension

        return setuptools_extension(self.absolute_name(), self.plan())

    def load(self, verbose: bool = True) -> Any:
        """Load the op: already loaded, else prebuilt, else from the cache, else compiled now.

        Args:
            verbose: log each step of a build at level INFO instead of DEBUG; on standard error without logging.

        Returns:
            the Python object with the op's functions; the same object each time for the same build.

        Raises:
            IncompatibleOpError: the op cannot be built or loaded here; gives the reason and the remedy.
            CompileError, LoadError, CacheError, ToolchainError: building or opening it failed.
        """
        return load(self.spec(), self.cache, log_steps(self.name, verbose))

    def jit_load(self, verbose: bool = True) -> Any:
        """Load the op from the cache, else compile it now, even if a prebuilt binary is installed."""
        self.jit_mode = True
        return load(self.spec(), self.cache, log_steps(self.name, verbose), WITHOUT_PREBUILT)

    # Methods that an author calls -------------------------------------------------------------

    def check(self) -> list[CheckOutcome]:
        """All checks of building and loading this op, in order."""
        spec = self.spec()
        return [*spec.build_checks(self.cache, self.plan), *spec.load_checks(self.cache)]

    def spec(self) -> OpSpec:
        """The op as the value that loading, building and reporting work on."""
        owner = type(self)

        def build_checks(cache: Cache, make_plan: Callable[[], BuildPlan]) -> list[CheckOutcome]:
            return [*self.plan_checks(cache, make_plan), *self.build_checks()]

        return OpSpec(
            self.name,
            self.plan_for,
            front_end=self.bind if owner.bind is not OpBuilder.bind else opened_library,
            build_checks=build_checks,
            load_checks=lambda _: self.load_checks(),
            open_libraries=lambda _: self.open_libraries(),
            own_rejection=self.own_rejection,
            owner=owner,
            prebuilt_roots=tuple(paths.prebuilt_roots(owner)),
            builder=owner.__name__,
            summary=self.SUMMARY,
            build_variable=self.BUILD_VAR,
            binding=self.BINDING,
            device=type(self)._kernels_for,
        )

    def recipe(self) -> Recipe:
        """The values of the methods above."""
        return recipe_of(self)

    def plan(self) -> BuildPlan:
        """The plan that JIT and prebuild share."""
        return self.plan_for(PlanFacts(self.cache.memo))

    def plan_for(self, facts: PlanFacts) -> BuildPlan:
        """The plan for a platform, architectures or a namespace.

        Raises:
            SourceNotFoundError: a source does not exist.
            ArgumentError: a method returns a value of a wrong type, a source's suffix is unknown, or there are no
                sources.
            IncompatibleOpError: a method raises another error, for example because a package is missing.
        """
        token = planned_facts.set(facts)
        try:
            return plan_of(normalized(self.recipe()), facts)
        except AccelError:
            raise
        except Exception as error:  # another package's builder may raise anything
            name = error.name if isinstance(error, ImportError) else None
            cure = "Install what it needs" if name is None else f"Install the package that provides {name!r}"
            text = str(error).rstrip(".")
            raise IncompatibleOpError(
                f"Op '{self.name}' cannot be built: its builder fails: {type(error).__name__}: {text}.",
                f"{cure}, or report this to the author of {type(self).__module__}.",
            ) from error
        finally:
            planned_facts.reset(token)

    def plan_checks(self, cache: Cache, make_plan: Callable[[], BuildPlan]) -> list[CheckOutcome]:
        """Checks of the tools and settings that the plan needs."""
        from op_builder.engine.checks import build_checks

        if type(self).load is not OpBuilder.load and not self.sources() and not self.source_texts():
            return [Passed("implementation", "its own load(), which compiles nothing")]
        return build_checks(make_plan, cache, self.name, has_device_checks=type(self)._kernels_for == "cuda")

    @computed_once
    def cache(self) -> Cache:
        """The cache directory that the environment names."""
        return Cache()

    def cuda_archs(self) -> list[str]:
        """CUDA architectures to compile for; empty for nvcc's default."""
        return []


class CPUOpBuilder(OpBuilder):
    """An op of host code, which needs no device to build or load."""

    def __init__(self, name: str | None = None) -> None:
        super().__init__(name)
        self.build_for_cpu = True


class TorchCPUOpBuilder(CPUOpBuilder):
    """Host code compiled for this machine's CPU with OpenMP, as existing extension builders expect."""

    def cxx_args(self) -> list[str]:
        return [self.cpu_arch(), "-fopenmp", self.simd_width(), "-g", "-Wno-reorder", self.get_cuda_compile_flag()]

    def extra_ldflags(self) -> list[str]:
        return ["-fopenmp"]


def is_builder(value: object) -> TypeGuard[type[OpBuilder]]:
    """Whether it is a builder class."""
    return isinstance(value, type) and issubclass(value, OpBuilder)


def log_steps(op: str, verbose: bool) -> Progress | None:
    """A callback that logs each step of a build; None if the level hides it.

    Where the program has not configured logging, ``verbose`` writes the steps to standard error, as torch does.
    """
    level = logging.INFO if verbose else logging.DEBUG
    prints = verbose and not logger.hasHandlers()
    return functools.partial(_log_step, op, level, prints) if prints or logger.isEnabledFor(level) else None


def _log_step(op: str, level: int, prints: bool, done: int, total: int, step: str) -> None:
    if prints:
        with contextlib.suppress(AttributeError, OSError, ValueError):  # None, a broken pipe, or closed
            sys.stderr.write(f"{op}: [{done}/{total}] {step}\n")
    else:
        logger.log(level, "%s: [%d/%d] %s", op, done, total, step)
