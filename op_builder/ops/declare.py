"""How this project's ops are declared: specs of native kernels for each kind of device, and of Python code on torch."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

from op_builder import env
from op_builder.cache.store import Cache
from op_builder.errors import IncompatibleOpError
from op_builder.load.load import load
from op_builder.paths import PREBUILT_DIRECTORY
from op_builder.plan import Binding, BuildPlan, ForeignLibrary, PlanFacts
from op_builder.recipe import Recipe, plan_of
from op_builder.spec import OpFamily, OpSpec
from op_builder.system.cpu_isa import chosen_isa
from op_builder.system.outcomes import CheckOutcome, Failed, Passed, Rejection, checked
from op_builder.system.torch_install import parse_release

_PREBUILT = (Path(__file__).resolve().parents[1] / PREBUILT_DIRECTORY,)
# Kernel parameters are __grid_constant__, which older CUDA devices do not support.
_OLDEST_ARCH = (7, 0)
_ISA_SOURCE = "cpu/isa.cpp"
# Of one architecture; csrc/kernels/cpu/each_isa.h numbers them.
_MOST_ISAS = 3


def host_recipe(
    name: str, kernels: Sequence[str], *, optimized: Sequence[str] | None = None, link_flags: Sequence[str] = ()
) -> Recipe:
    """The recipe of kernels for host memory, in ``csrc/kernels``, and of the binding ``csrc/bindings/<name>.cpp``.

    Args:
        kernels: slow ones first, so that all cores finish together.
        optimized: the kernels to compile with -O2; all if it is None. A binding only checks and dispatches, and to
            optimize it would double its compile time.
    """
    binding = f"csrc/bindings/{name}.cpp"
    files = {kernel: f"csrc/kernels/{kernel}" for kernel in kernels}
    quick = [binding, *(file for kernel, file in files.items() if optimized is not None and kernel not in optimized)]
    return Recipe(
        op=name,
        binding=Binding.STABLE,
        sources=(binding, *files.values()),
        include_dirs=("csrc",),
        source_flags=dict.fromkeys(quick, ("-O1",)),
        link_flags=tuple(link_flags),
    )


def native_spec(
    recipe: Recipe,
    front_end: type,
    *,
    plan: Callable[[PlanFacts], BuildPlan] | None = None,
    libraries: Callable[[], tuple[ForeignLibrary, ...]] = tuple,
    checks: Callable[[Cache], list[CheckOutcome]] | None = None,
    load_checks: Callable[[Cache], list[CheckOutcome]] | None = None,
    open_libraries: Callable[[Cache], None] | None = None,
) -> OpSpec:
    """The spec of an op with native kernels.

    Args:
        front_end: the class of what ``load()`` returns, made from the namespace of torch ops.
        plan: replaces the plan of the recipe.
        libraries: finds third-party libraries to link with.
        checks: in addition to those of every build.
    """

    def build_checks(cache: Cache, make_plan: Callable[[], BuildPlan]) -> list[CheckOutcome]:
        from op_builder.engine.checks import build_checks

        common = build_checks(make_plan, cache, recipe.op, has_device_checks=recipe.uses_cuda)
        return [*common, *(checks(cache) if checks is not None else ())]

    def all_load_checks(cache: Cache) -> list[CheckOutcome]:
        own = load_checks(cache) if load_checks is not None else []
        if env.ACCEL_CPU_ISA.raw() is None or f"csrc/kernels/{_ISA_SOURCE}" not in recipe.sources:
            return own  # the baseline kernels work on every CPU
        return [checked("instruction set", chosen_isa), *own]

    def own_plan(facts: PlanFacts) -> BuildPlan:
        return plan_of(recipe._replace(libraries=libraries()), facts)

    spec = OpSpec(
        recipe.op,
        plan or own_plan,
        front_end=front_end,
        build_checks=build_checks,
        load_checks=all_load_checks,
        prebuilt_roots=_PREBUILT,
        recipe=recipe,
        libraries=libraries,
    )
    return spec if open_libraries is None else spec._replace(open_libraries=open_libraries)


def system_check(not_on: Sequence[tuple[str, str]], system: str = sys.platform) -> list[CheckOutcome]:
    """A failed check with the reason where an op does not work on ``system``, as ``sys.platform``."""
    # For Linux the reason concerns builds for another machine.
    if system == "linux" or (reason := dict(not_on).get(system)) is None:
        return []
    return [Failed("system", Rejection(f"{reason}; this is {system}.", 'Use init_process_group("gloo") here.'))]


def load_host(family: OpFamily) -> Any:
    """Load an op on host memory, for this project's own use."""
    return load(family.spec_for("cpu"), Cache())


def cuda_spec(recipe: Recipe, files: Sequence[str], front_end: type) -> OpSpec:
    """The spec of the CPU op of ``recipe`` with CUDA kernels, ``files`` of ``csrc/kernels/cuda``, in one binary."""
    recipe = recipe._replace(
        sources=(*recipe.sources, *(f"csrc/kernels/cuda/{file}" for file in files)),
        cxx_flags=("-DACCEL_WITH_CUDA",),
        # Products are fused only where a formula uses fma, as with -ffp-contract=off on the CPU.
        nvcc_flags=("-fmad=false",),
    )

    def plan(facts: PlanFacts) -> BuildPlan:
        from op_builder.builder.cuda import planned_archs

        return plan_of(recipe._replace(cuda_archs=tuple(planned_archs(recipe.op, supported_archs, facts))), facts)

    def load_checks(_: Cache) -> list[CheckOutcome]:
        from op_builder.toolchains.checks import torch_cuda_check

        return [checked("CUDA device", torch_cuda_check)]

    return native_spec(recipe, front_end, plan=plan, load_checks=load_checks)


def supported_archs(archs: Sequence[str]) -> list[str]:
    """Those of the CUDA architectures that this project's kernels support."""
    return [arch for arch in archs if parse_release(arch) >= _OLDEST_ARCH]


def sycl_spec(name: str, front_end: type) -> OpSpec:
    """The spec of SYCL kernels: ``kernels_sycl/kernels/<name>.sycl.hpp``, and a binding of that name.

    They are for XPU devices, and for CPU tensors through a SYCL CPU device.
    """
    recipe = Recipe(
        op=name,
        binding=Binding.STABLE,
        sources=(f"kernels_sycl/bindings/{name}.cpp",),
        source_flags={f"kernels_sycl/bindings/{name}.cpp": ("-O1",)},
        kernels=(f"kernels_sycl/kernels/{name}.sycl.hpp",),
    )

    def chosen() -> CheckOutcome:
        from op_builder.toolchains.sycl import choose, gather_facts

        return choose(gather_facts(has_kernel_texts=True))

    def plan(facts: PlanFacts) -> BuildPlan:
        from op_builder.toolchains.sycl_plan import EXACT_KERNELS

        return plan_of(recipe._replace(sycl_toolchain=chosen().name, kernel_flags=(EXACT_KERNELS,)), facts)

    def load_checks(cache: Cache) -> list[CheckOutcome]:
        from op_builder.toolchains.sycl import load_checks

        return load_checks(chosen, cache.memo, has_kernel_texts=True)

    return native_spec(recipe, front_end, plan=plan, load_checks=load_checks)


def python_spec(name: str, front_end: Callable[[], Any]) -> OpSpec:
    """The spec of an op that is Python code on torch: nothing is compiled, and ``load()`` returns its object."""

    def no_plan(_: PlanFacts) -> NoReturn:
        raise IncompatibleOpError(
            f"Op '{name}' is Python code on torch; it has no binary.", "Load it; it needs no build."
        )

    def build_checks(*_: object) -> list[CheckOutcome]:
        return [Passed("implementation", "Python code on torch")]

    return OpSpec(name, no_plan, build_checks=build_checks, python=cache(front_end))


def host_optimizer(name: str, builder: str, formula: str, front_end: type) -> OpFamily:
    """An optimizer whose parameters and states are in host memory: the kernel ``cpu/<formula's name>.cpp``."""
    recipe = optimizer_recipe(name)
    summary = f"{formula} with parameters and states in host memory"
    return OpFamily(name, builder, summary, host=native_spec(recipe, front_end))


def fused_optimizer(
    name: str,
    builder: str,
    formula: str,
    front_end: type,
    *,
    has_sycl: bool = False,
    elsewhere: Callable[[], Any] | None = None,
) -> OpFamily:
    """An optimizer whose parameters and states are on the device."""
    recipe = optimizer_recipe(name)
    return OpFamily(
        name,
        builder,
        f"{formula} over many tensors in few kernels on the device",
        cpu=native_spec(recipe, front_end),
        cuda=cuda_spec(recipe, (f"{name}.cu", "multi_tensor.cu"), front_end),
        xpu=sycl_spec(name, front_end) if has_sycl else None,
        elsewhere=python_spec(name, elsewhere) if elsewhere is not None else None,
    )


def optimizer_recipe(name: str) -> Recipe:
    """The recipe of an optimizer's kernels for host memory; ``cpu_adam`` and ``fused_adam`` share ``cpu/adam.cpp``."""
    kernel = f"cpu/{name.partition('_')[2]}.cpp"
    recipe = host_recipe(name, (kernel, "cpu/norm.cpp", _ISA_SOURCE))
    return recipe._replace(parts={f"csrc/kernels/{kernel}": _MOST_ISAS})
