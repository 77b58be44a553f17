"""Looking at a built binary before it is published: what it exports, and that it really loads.

The try happens in a child process, so a binary that crashes while loading takes nothing with
it. A binary on the Stable ABI meets only ``libtorch_cpu``, as it will on any torch; one that
needs a runtime which is not here (CUDA on a CPU build of torch) cannot be opened, and its
undefined symbols are held against the list of what a loader would find.
"""

from __future__ import annotations

import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path

from op_builder.errors import LoadError
from op_builder.plan import ENTRY_POINT, Binding, BuildPlan
from op_builder.toolchains.compiler import Compiler
from op_builder.toolchains.process import run
from op_builder.torch_install import TorchInstall, torch_install

_TIMEOUT_S = 300

# Run in the child: open what the binary links against, then the binary, and register its ops.
_CHILD = """
import ctypes, sys
entry, artifact, *libraries = sys.argv[1:]
for library in libraries:
    ctypes.CDLL(library, mode=ctypes.RTLD_GLOBAL)
opened = ctypes.CDLL(artifact)
if entry:
    error = ctypes.create_string_buffer(4096)
    if getattr(opened, entry)(b"accel_try_load", error, len(error)):
        sys.exit(error.value.decode(errors="replace"))
"""

# The same for a library that registers itself: only a whole torch can say under which names.
_TORCH_CHILD = """
import json, sys
import torch
def namespaces():
    return {name.partition("::")[0] for name in torch._C._dispatch_get_all_op_names()}
before = namespaces()
torch.ops.load_library(sys.argv[1])
print(json.dumps(sorted(namespaces() - before)))
"""

_KNOWN_UNDEFINED = re.compile(
    r"^(?:aoti_torch_\w+|torch_\w+)$"  # torch's C shim
    r"|@"  # a version: the linker found the symbol in a library that the binary names
    r"|^_Z(?:T[VIST])?N?K?S[tabsiod]"  # libstdc++'s, without one because torch exports a copy of some
    r"|^(?:_ITM_\w+|__gmon_start__|__cxa_finalize|__gxx_personality_v0|__tls_get_addr|_Unwind_\w+|__dso_handle)$"
)
_REGISTERS_OPS = re.compile(r"^_ZN5torch7LibraryC|torch_library_init")
_TORCH_CXX = re.compile(r"^_Z\w*(?:2at|3c10|5torch|6caffe2)")


@dataclass(frozen=True)
class Inspection:
    """What a built binary turned out to be.

    Attributes:
        kind: ``accel`` (registers under a namespace of the loader's choice), ``python`` (has
            ``PyInit_<module>``) or ``torch_library`` (registers itself when opened).
        namespaces: torch namespaces that are registered when it is opened; an ``accel`` binary has none.
        check: how it was tried, for the manifest.
    """

    kind: str
    namespaces: tuple[str, ...]
    check: str


def inspect(artifact: Path, plan: BuildPlan, compiler: Compiler) -> Inspection:
    """Find out how ``artifact`` is loaded, and prove that it can be.

    Raises:
        LoadError: it does not load, or a Stable-ABI binary uses torch's C++ symbols.
    """
    torch = torch_install()
    defined, undefined = _symbols(artifact, compiler)
    if plan.binding is Binding.STABLE:
        _refuse_torch_cxx(artifact, undefined)
    kind = "torch_library"
    if ENTRY_POINT in defined:
        kind = "accel"
    elif f"PyInit_{plan.module_name}" in defined:
        kind = "python"
    if plan.uses_cuda and torch.cuda is None:
        return Inspection(kind, (), _check_symbols_only(artifact, plan, undefined))
    registers = any(_REGISTERS_OPS.search(name) for name in undefined)
    if kind == "torch_library" or (kind == "python" and registers):
        namespaces = _registered_namespaces(artifact)
        if kind == "torch_library" and not namespaces:
            raise _binds_nothing(artifact)
        return Inspection(kind, namespaces, "loaded in a child process with torch")
    libraries = _libraries(plan, torch)
    child = run(
        [sys.executable, "-I", "-S", "-c", _CHILD, ENTRY_POINT if kind == "accel" else "", str(artifact), *libraries],
        timeout_s=_TIMEOUT_S,
    )
    if not child.ok:
        raise _load_failed(artifact, child.code, child.errors)
    return Inspection(kind, (), f"loaded in a child process with {', '.join(Path(name).name for name in libraries)}")


def _libraries(plan: BuildPlan, torch: TorchInstall) -> list[str]:
    names = ["libtorch_cpu.so"]
    if plan.uses_cuda or plan.binding is Binding.TORCH:
        names.append("libtorch.so")
    if plan.binding is Binding.TORCH:
        names.append("libtorch_python.so")
    return [str(torch.library_dir / name) for name in names]


def _registered_namespaces(artifact: Path) -> tuple[str, ...]:
    child = run([sys.executable, "-c", _TORCH_CHILD, str(artifact)], timeout_s=_TIMEOUT_S)
    if not child.ok:
        raise _load_failed(artifact, child.code, child.errors)
    return tuple(json.loads(child.output.strip().splitlines()[-1]))


def _binds_nothing(artifact: Path) -> LoadError:
    return LoadError(
        f"{artifact.name} holds no Python module (no PyInit function of its name) and registers no torch ops.",
        "Use PYBIND11_MODULE(TORCH_EXTENSION_NAME, m), TORCH_LIBRARY or STABLE_TORCH_LIBRARY in one source.",
    )


def _check_symbols_only(artifact: Path, plan: BuildPlan, undefined: set[str]) -> str:
    if plan.binding is Binding.STABLE:
        unknown = sorted(name for name in undefined if not _KNOWN_UNDEFINED.search(name))
        if unknown:
            raise LoadError(
                f"{artifact.name} needs symbols that nothing will provide: {', '.join(unknown[:8])}.",
                "Add the source or library that defines them.",
            )
    return "undefined symbols only: torch here has no CUDA, so the binary was not loaded"


def _refuse_torch_cxx(artifact: Path, undefined: set[str]) -> None:
    # torch's symbols carry no version; those of libstdc++ do, and std::string::at() looks like at's.
    found = sorted(name for name in undefined if "@" not in name and _TORCH_CXX.match(name))
    if found:
        raise LoadError(
            f"{artifact.name} is to use only torch's stable C ABI, but needs C++ symbols of torch: "
            f"{', '.join(found[:4])}.",
            "Include only torch/csrc/stable/ and torch/headeronly/, or declare BINDING = Binding.TORCH.",
        )


def _symbols(artifact: Path, compiler: Compiler) -> tuple[set[str], set[str]]:
    """Defined and undefined dynamic symbols; the undefined keep their version, as ``memcpy@GLIBC_2.14``."""
    nm = run([*compiler.command, "-print-prog-name=nm"]).output.strip() or "nm"
    listed = run([nm, "-D", str(artifact)])
    if not listed.ok:
        raise LoadError(f"{nm} cannot read {artifact.name}: {listed.errors.strip()}.", "Is the disk full?")
    defined: set[str] = set()
    undefined: set[str] = set()
    for line in listed.output.splitlines():  # an address where defined, the kind, the name
        *address, _, name = line.split()
        (defined if address else undefined).add(name)
    return defined, undefined


def _load_failed(artifact: Path, code: int, errors: str) -> LoadError:
    lines = [line for line in errors.strip().splitlines() if line.strip()]
    # torch wraps the loader's error in one of its own, so the last line need not be the telling one.
    telling = [line for line in lines if re.search(r"undefined symbol|cannot open shared object", line)]
    cause = (telling or lines or ["no message"])[-1]
    if code < 0:
        cause = f"the process was ended by signal {-code}" + (f" ({cause})" if lines else "")
    missing = re.search(r"undefined symbol: (\S+)", cause)
    remedy = "Add the library that defines this symbol to extra_ldflags()." if missing else ""
    return LoadError(f"The built {artifact.name} does not load: {cause}", remedy)
