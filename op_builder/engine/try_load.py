"""Inspecting a built binary before it is published: what it exports, and that it loads.

It is opened in a child process, so a crash while loading harms nothing else; a Python module's init function runs there
too. For a binary on the Stable ABI, only ``libtorch_cpu`` is opened, as on any torch, and for one that uses no symbol
of torch, none of its libraries. One that needs a missing runtime (CUDA on a CPU build of torch) cannot be opened, and
its undefined symbols are compared with the list of those that a loader would find. So are those of a binary for another
platform.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from op_builder import env
from op_builder.cache.key import platform_name
from op_builder.engine.stable_abi import NON_TORCH_SYMBOL, check_target_functions
from op_builder.errors import LoadError, ToolchainError
from op_builder.plan import ENTRY_POINT, SYCL_LIBRARY, Binding, BuildPlan
from op_builder.system import elf, macho
from op_builder.system.global_symbols import libraries_offering
from op_builder.system.interpreter import bare_command, isolated_command
from op_builder.system.process import Finished, run
from op_builder.system.target import library_file
from op_builder.system.torch_install import torch_install
from op_builder.toolchains.checks import OTHER_COMPILER, OTHER_LIBRARY
from op_builder.toolchains.compiler_probe import binutil, demangled
from op_builder.toolchains.remedies import WROTE_NOTHING, load_remedy
from op_builder.toolchains.toolset import Compiler, Toolset

TIMEOUT_S = 300.0

# The child prints this last: a library that ends the process when opened, even with status 0, is not loaded.
_LOADED = "accel-ops: loaded"

# The start of both children: a Python module is not only opened, its init function runs, too. They end without running
# exit handlers: torch's take a tenth of a second.
_START = """
import ctypes, os, sys
from importlib import machinery, util
if sys.platform == "linux":
    # PR_SET_PDEATHSIG, SIGKILL: opening the file may never return, and the parent may be killed meanwhile.
    ctypes.CDLL(None).prctl(1, 9)
def end(*words):
    print(*words, flush=True)
    os._exit(0)
def start(module, artifact):
    loader = machinery.ExtensionFileLoader(module, artifact)
    spec = util.spec_from_file_location(module, artifact, loader=loader)
    loader.exec_module(util.module_from_spec(spec))
"""

# Run in the child: open what the binary links against, then the binary, and register its ops.
_CHILD = f"""{_START}
entry, module, artifact, *libraries = sys.argv[1:]
for library in libraries:
    ctypes.CDLL(library, mode=ctypes.RTLD_GLOBAL)
opened = ctypes.CDLL(artifact)
if entry:
    error = ctypes.create_string_buffer(4096)
    if getattr(opened, entry)(b"accel_try_load", error, len(error)):
        sys.exit(error.value.decode(errors="replace"))
if module:
    start(module, artifact)
end({_LOADED!r})
"""

# The same with the whole of torch, which reports the names that a library registers when it is opened.
_TORCH_CHILD = f"""{_START}
import json
module, artifact = sys.argv[1:]
import torch
from op_builder.system import torch_ops
def namespaces(operators):
    return {{name.partition("::")[0] for name in operators}}
before = torch_ops.known_operators()
defined_before = {{name for name in namespaces(before) if torch_ops.is_namespace_defined(name)}}
torch.ops.load_library(artifact)
if module:
    start(module, artifact)
new = torch_ops.known_operators() - before
end({_LOADED!r}, json.dumps([
    sorted(namespaces(new)),
    sorted(name for name in namespaces(new) - defined_before if torch_ops.is_namespace_defined(name)),
    sorted(filter(torch_ops.is_operator_defined, new)),
]))
"""

# Lines of a child's errors that name the cause, best first: torch and Python wrap the loader's message.
_CAUSES = tuple(
    map(
        re.compile,
        (
            r"undefined symbol|cannot open shared object|version `.*' not found",
            r"^\s*what\(\):",
            r"^[\w.]*(?:Error|Exception)(?:: |$)",
        ),
    )
)
_MESSAGE_LINES = 3  # of what Python raised

_KNOWN_UNDEFINED = re.compile(
    r"^(?:aoti_torch_\w+|torch_\w+)$"  # torch's C shim
    r"|@"  # a version: the linker found the symbol in a library that the binary names
    r"|^_Z(?:T[VIST])?N?K?S[tabsiod]"  # libstdc++'s, without a version because torch exports copies of some
    r"|^(?:_ITM_\w+|__gmon_start__|__cxa_finalize|__gxx_personality_v0|__tls_get_addr|_Unwind_\w+|__dso_handle)$"
)
_REGISTERS_OPS = re.compile(r"^_ZN5torch7LibraryC|torch_library_init")
# An exported function, or a call that registers global functions or types.
_EXPORTS_TVM_FFI = ("__tvm_ffi_", "TVMFFIFunctionSetGlobal", "TVMFFITypeRegister")
_LIBCXX_NAMESPACE = "St3__1"  # std::__1
_TORCH_CXX = re.compile(r"^_Z\w*(?:2at|3c10|5torch|6caffe2)")


@dataclass(frozen=True)
class Inspection:
    """The facts about a built binary that its manifest contains, under the same names.

    Attributes:
        kind: ``accel`` (registers under a namespace of the loader's choice), ``python`` (has
            ``PyInit_<module>``), ``torch_library`` (registers itself when opened), ``tvm_ffi`` (exports functions) or
            ``library`` (none of these).
        namespaces: torch namespaces of the ops that opening it defines; empty for an ``accel`` binary.
        check: how it was tried, for the manifest.
        defined_namespaces: those that it defines itself (``TORCH_LIBRARY``, not ``TORCH_LIBRARY_FRAGMENT``).
        operators: the torch ops that opening it defines, by their full names.
        needs: the newest required version of each system library: ``{"GLIBC": "2.32"}``.
    """

    kind: str
    namespaces: tuple[str, ...]
    check: str
    defined_namespaces: tuple[str, ...] = ()
    operators: tuple[str, ...] = ()
    needs: dict[str, str] = field(default_factory=dict)


def inspect(artifact: Path, plan: BuildPlan, toolset: Toolset) -> Inspection:
    """Find out how ``artifact`` is loaded, and check that it loads.

    Raises:
        LoadError: it does not load, or a Stable-ABI binary uses torch's C++ symbols.
    """
    if not artifact.exists():
        raise LoadError(
            f"The compiler {toolset.cxx.command[0]} reported success but wrote no {artifact.name}.",
            WROTE_NOTHING,
        )
    try:
        if plan.system == "darwin":
            defined, undefined, least_macos = macho.read_library(artifact)
            needs = {"macOS": least_macos}
        else:
            read = elf.read_library(artifact)
            defined, undefined = set(read.defined), {*read.undefined, *read.optional}
            needs = elf.newest_versions(read.versions)
    except ValueError as error:
        raise LoadError(
            f"{artifact.name} cannot be read: {error}.",
            "Remove link flags that change the output's format; if the disk of the cache is full, free space on it.",
        ) from error
    if toolset.sycl is not None:
        needs[SYCL_LIBRARY] = str(toolset.sycl.major)
    try:
        return replace(_tried(artifact, plan, toolset, defined, undefined), needs=needs)
    except LoadError:
        offered = libraries_offering(sorted(name for name in undefined if "@" not in name))
        if not offered or not plan.binding.uses_torch_cxx:
            raise
    # This process has opened them with RTLD_GLOBAL; the loader would find the symbols there.
    return replace(_tried(artifact, plan, toolset, defined, undefined, offered), needs=needs)


def _tried(
    artifact: Path,
    plan: BuildPlan,
    toolset: Toolset,
    defined: set[str],
    undefined: set[str],
    preloaded: Sequence[str] = (),
) -> Inspection:
    binding, compiler = plan.binding, toolset.cxx
    _refuse_torch_cxx(artifact, plan, undefined, compiler)
    registers = binding.uses_torch and any(_REGISTERS_OPS.search(name) for name in undefined)
    kind = _kind(artifact, plan, defined, undefined, registers=registers)
    if plan.target is not None:
        check_target_functions(artifact, plan, kind, undefined, compiler)
        if plan.target.platform != platform_name():
            return Inspection(kind, (), f"undefined symbols only: it is for {plan.target.name}")
    if plan.uses_cuda and binding.uses_torch and torch_install().cuda is None:
        return Inspection(kind, (), _check_symbols_only(artifact, plan, undefined, compiler))
    module = plan.module_name if kind == "python" else ""
    if kind == "torch_library" or (module and registers):
        inspection = _try_with_torch(artifact, kind, module, compiler, preloaded)
        if not module and not inspection.namespaces:
            if binding is Binding.LIBRARY:
                return replace(inspection, kind="library")
            raise LoadError(
                f"{artifact.name} holds no Python module (no PyInit function of its name) and registers no torch ops.",
                "Use PYBIND11_MODULE(TORCH_EXTENSION_NAME, m), TORCH_LIBRARY or STABLE_TORCH_LIBRARY in one source.",
            )
        return inspection
    libraries = needed_libraries(plan, toolset)
    search = [library.library.parent for library in plan.libraries]
    if all(map(NON_TORCH_SYMBOL.search, undefined)) and (artifact.parent / "libtorch.so").exists():
        # Opening torch takes 0.4 s. The empty libraries of the build, with which it was linked, have the same names.
        libraries = [library for library in libraries if Path(library).parent != torch_install().library_dir]
        search.append(artifact.parent)
    arguments = [ENTRY_POINT if kind == "accel" else "", module, str(artifact), *libraries]
    try:
        _try_in_child(artifact, compiler, bare_command(_CHILD, *arguments), search, preloaded)
    except LoadError:
        if not module:
            raise
    else:
        names = ", ".join(Path(name).name for name in libraries) or "no other library"
        return Inspection(kind, (), f"loaded in a child process with {names}")
    # Its init function may import modules, or need an imported torch. Importing it takes a second or two, which most
    # modules do not need.
    if binding.uses_torch:
        return _try_with_torch(artifact, kind, module, compiler, preloaded)
    _try_in_child(artifact, compiler, isolated_command(_CHILD, *arguments), search, preloaded)
    return Inspection(kind, (), "loaded in a child process with the packages of this environment")


def _kind(artifact: Path, plan: BuildPlan, defined: set[str], undefined: set[str], *, registers: bool) -> str:
    """The :class:`Inspection`'s ``kind``.

    Args:
        registers: whether the binary may register torch ops when it is opened.

    Raises:
        LoadError: the binary lacks what its binding promises.
    """
    if plan.binding is Binding.C:
        return "library"
    if plan.binding is Binding.TVM_FFI:
        if any(name.startswith(_EXPORTS_TVM_FFI) for name in (*defined, *undefined)):
            return "tvm_ffi"
        raise LoadError(
            f"{artifact.name} exports no function of TVM FFI.", "Use TVM_FFI_DLL_EXPORT_TYPED_FUNC in one source."
        )
    if ENTRY_POINT in defined:
        return "accel"
    if f"PyInit_{plan.module_name}" in defined:
        return "python"
    if plan.binding is Binding.LIBRARY and not registers:
        return "library"
    if not registers:
        _refuse_other_names(artifact, defined)
    if plan.binding is Binding.PYTHON:
        raise LoadError(
            f"{artifact.name} holds no Python module: no source defines PyInit_{plan.module_name}.",
            f"Name the module {plan.module_name}, or use Binding.C for a library without one.",
        )
    return "torch_library"


def needed_libraries(plan: BuildPlan, toolset: Toolset) -> list[str]:
    """The libraries to open before the binary of ``plan``, which names them without paths."""
    names = ["torch_cpu"] if plan.binding.uses_torch else []
    if names and (plan.uses_cuda or plan.sycl is not None or plan.binding.uses_torch_cxx):
        names.append("torch")
    if plan.binding.uses_torch_cxx:
        names.append("torch_python")
    sycl = [str(toolset.sycl.library)] if toolset.sycl is not None else []
    foreign = [str(library.library) for library in plan.libraries]
    own = [torch_install().library_dir / library_file(name, plan.system) for name in names]
    return [*map(str, own), *sycl, *foreign]


def _try_with_torch(artifact: Path, kind: str, module: str, compiler: Compiler, preloaded: Sequence[str]) -> Inspection:
    command = isolated_command(_TORCH_CHILD, module, str(artifact))
    answer = json.loads(_try_in_child(artifact, compiler, command, (), preloaded))
    namespaces, defined, operators = map(tuple, answer)
    return Inspection(kind, namespaces, "loaded in a child process with torch", defined, operators)


def _try_in_child(
    artifact: Path, compiler: Compiler, command: list[str], search: Iterable[Path], preloaded: Sequence[str]
) -> str:
    """Run Python by ``command``; returns the rest of the line with its mark of success.

    Args:
        search: directories where the child finds libraries that are named without a path, too.
        preloaded: libraries whose symbols every library in the child finds.
    """
    places = [*map(str, search), *filter(None, [env.LD_LIBRARY_PATH.raw()])]
    environment = env.child_environment(LD_LIBRARY_PATH=":".join(places) or None)
    if preloaded:
        environment["LD_PRELOAD"] = ":".join(filter(None, [environment.get("LD_PRELOAD"), *preloaded]))
    try:
        child = run(command, timeout_s=TIMEOUT_S, environment=environment)
    except ToolchainError as error:
        if not isinstance(error.__cause__, subprocess.TimeoutExpired):
            raise
        raise LoadError(
            f"The built {artifact.name} does not load: opening it did not end within {TIMEOUT_S:g} s.",
            "Check its static initializers, which run when the file is opened, for code that blocks.",
        ) from None
    _, mark, result = child.output.rpartition(_LOADED)
    if not child.ok or not mark:
        raise _load_failed(artifact, child, compiler)
    return result.partition("\n")[0]


def _refuse_other_names(artifact: Path, defined: set[str]) -> None:
    modules = sorted(name.removeprefix("PyInit_") for name in defined if name.startswith("PyInit_"))
    if modules:
        raise LoadError(
            f"{artifact.name} holds the Python module {', '.join(modules)}, which can be imported only by that name.",
            f"Name it {artifact.stem} (PYBIND11_MODULE(TORCH_EXTENSION_NAME, m), PyInit_{artifact.stem}), or name "
            f"the op's module {modules[0]}.",
        )


def _check_symbols_only(artifact: Path, plan: BuildPlan, undefined: set[str], compiler: Compiler) -> str:
    if plan.binding is Binding.STABLE:
        unknown = sorted(name for name in undefined if not _KNOWN_UNDEFINED.search(name))
        if unknown:
            shown = ", ".join(_readable(name, compiler) for name in unknown[:8])
            raise LoadError(
                f"{artifact.name} has undefined symbols that no library provides: {shown}.",
                "Add the source or library that defines them.",
            )
    return "undefined symbols only: torch here has no CUDA, so the binary was not loaded"


def _refuse_torch_cxx(artifact: Path, plan: BuildPlan, undefined: set[str], compiler: Compiler) -> None:
    # torch's symbols carry no version; those of libstdc++ do, and std::string::at() looks like at's.
    found = sorted(name for name in undefined if "@" not in name and _TORCH_CXX.match(name))
    if not found:
        return
    if plan.binding is Binding.STABLE:
        raise LoadError(
            f"{artifact.name} may use only torch's stable C ABI, but needs C++ symbols of torch, such as "
            f"{_readable(found[0], compiler)}.",
            "Include only torch_c/, torch/csrc/stable/ and torch/headeronly/, or declare BINDING = Binding.TORCH.",
        )
    if plan.system == "linux" and (compiler.is_zig or any(_LIBCXX_NAMESPACE in name for name in undefined)):
        raise LoadError(
            f"{artifact.name} needs C++ symbols of torch, such as {_readable(found[0], compiler)}, "
            f"but {OTHER_LIBRARY}.",
            OTHER_COMPILER,
        )


def _load_failed(artifact: Path, child: Finished, compiler: Compiler) -> LoadError:
    # Not the directory: it is removed after the build.
    lines = [line for line in child.errors.replace(f"{artifact.parent}/", "").splitlines() if line.strip()]
    causes = ((pattern, [at for at, line in enumerate(lines) if pattern.search(line)]) for pattern in _CAUSES)
    pattern, at = next(((pattern, found[-1]) for pattern, found in causes if found), (None, len(lines) - 1))
    # Python's error may continue in the next lines; the loader's and a C++ exception's have one.
    length = _MESSAGE_LINES if pattern is _CAUSES[-1] else 1
    cause = "\n    ".join(line.strip() for line in lines[at : at + length])
    if child.code < 0:
        name = signal.Signals(-child.code).name if -child.code in set(signal.Signals) else f"signal {-child.code}"
        ended = f"the process was ended by {name}"
        cause = f"{ended} ({cause})" if cause else ended
    elif not cause:
        cause = f"its code ended the process with status {child.code}"
    remedy = load_remedy(cause)
    missing = re.search(r"undefined symbol: (\w+)", cause)
    if missing:
        readable = _readable(missing[1], compiler)
        cause, remedy = cause.replace(missing[1], readable), remedy.replace(missing[1], readable)
    return LoadError(f"The built {artifact.name} does not load: {cause}", remedy)


def _readable(symbol: str, compiler: Compiler) -> str:
    """``symbol`` with its C++ name, if that differs."""
    try:
        program = binutil("c++filt", compiler.command)
    except ToolchainError:
        return symbol
    name = demangled([symbol], program).get(symbol, symbol)
    return symbol if name == symbol else f"{symbol} ({name})"
