"""The command lines of a plan. Nothing else in the project assembles compiler arguments."""

from __future__ import annotations

import os
import re
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from op_builder.cache.key import Roots
from op_builder.paths import native_root
from op_builder.plan import Binding, BuildPlan, Language, Source
from op_builder.system.torch_install import torch_install
from op_builder.toolchains.compiler_probe import LINKED_FLAG, lists_linked, searched_directories
from op_builder.toolchains.cuda import CudaToolkit
from op_builder.toolchains.cuda_archs import gencode_flags
from op_builder.toolchains.flags import TOOL_FLAGS, flags_of, grouped_flags
from op_builder.toolchains.packaged import (
    openmp_headers,
    openmp_runtime,
    require_libgomp,
    strip_flags,
    supported_link_flags,
)
from op_builder.toolchains.sycl_ahead import compile_flags, device_link
from op_builder.toolchains.toolset import Compiler, Toolset

# The object that linked device code becomes, named as torch names it.
DEVICE_OBJECT = "sycl_dlink.o"

# Flags that a C compiler rejects or warns about.
_ONLY_CXX = re.compile(r"-std=(?:c|gnu)\+\+|-fno-rtti$|-fvisibility-inlines-hidden$")

# One mistake in a template can fill a log of 20 MB. Clang stops after as many errors of its own accord.
_MOST_ERRORS = "-fmax-errors=20"
# The linker's own list of the files that it read.
LINKED_LIST = "link.d"
# Where a build's directory holds the precompiled torch/extension.h; see engine/precompiled.py.
PRECOMPILED_DIRECTORY = "precompiled"


@dataclass(frozen=True)
class CompileStep:
    """One source to one object; paths of the outputs are relative to the staging directory.

    Attributes:
        label: of the source; one that is compiled several times with other flags has parts, which are numbered.
    """

    source: Source
    label: str
    object_name: str
    command: tuple[str, ...]

    @property
    def depfile(self) -> str:
        # GCC does not preprocess .s, so that the assembler's list is the only one.
        is_bare = self.source.path.suffix == ".s" and "assembler-with-cpp" not in self.command
        return self.assembled if is_bare else f"{self.object_name}.d"

    @property
    def assembled(self) -> str:
        """The depfile of the assembler, which lists the files that ``.incbin`` includes."""
        return f"{self.object_name}.as.d"


@dataclass(frozen=True)
class BuildCommands:
    """All commands of a build, to be run in the staging directory.

    Attributes:
        device_link: links device code that was compiled ahead of time into DEVICE_OBJECT; empty without such code.
        stand_ins: by file name, make the empty libraries that are linked instead of torch's.
    """

    compile_steps: tuple[CompileStep, ...]
    link: tuple[str, ...]
    device_link: tuple[str, ...] = ()
    stand_ins: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def outputs(self) -> set[str]:
        """The names of the files that the commands may write, except for the binary."""
        of_steps = (name for step in self.compile_steps for name in (step.object_name, step.depfile, step.assembled))
        return {*of_steps, *self.stand_ins, DEVICE_OBJECT, LINKED_LIST}


def build_commands(
    plan: BuildPlan, toolset: Toolset, directory: Path | None = None, *, precompiled: bool = False
) -> BuildCommands:
    """The commands that make ``plan``'s binary with ``toolset``.

    Args:
        directory: where they will run; the binary must not contain its path.
        precompiled: whether PRECOMPILED_DIRECTORY in it holds torch/extension.h for GCC.
    """
    steps = compile_steps(plan, toolset, directory, precompiled=precompiled)
    objects = [step.object_name for step in steps]
    stand_ins = _stand_ins(plan, toolset)
    if toolset.icpx is None or plan.sycl is None:
        return BuildCommands(steps, _link(plan, objects, toolset), stand_ins=stand_ins)
    sycl_objects = [step.object_name for step in steps if step.source.language is Language.SYCL]
    device = device_link(toolset.icpx, plan.sycl.devices, sycl_objects, DEVICE_OBJECT)
    link = _link(plan, [*objects, DEVICE_OBJECT], toolset)
    return BuildCommands(steps, link, tuple(device), stand_ins)


def compile_steps(
    plan: BuildPlan, toolset: Toolset, directory: Path | None = None, *, precompiled: bool = False
) -> tuple[CompileStep, ...]:
    """The part of :func:`build_commands` that compiles."""
    # Objects are numbered: sources of the same base name in two directories must not collide.
    steps = []
    maps = _prefix_maps(plan, directory)
    # -I comes before torch's -isystem. A precompiled header replaces many headers, which the key counts.
    header = [f"-I{PRECOMPILED_DIRECTORY}", "-fpch-deps"] if precompiled else []
    paths = [source.path for source in plan.sources]
    for index, source in enumerate(plan.sources):
        parts, earlier = paths.count(source.path), paths[:index].count(source.path)
        label = f"{source.label} (part {earlier + 1} of {parts})" if parts > 1 else source.label
        stem = re.sub(r"[^\w.+-]", "_", source.path.stem, flags=re.ASCII)
        object_name = f"{index}_{stem}.o"
        output = ["-MD", "-MF", f"{object_name}.d", "-c", str(source.path), "-o", object_name]
        if source.language is Language.CUDA:
            command = _compile_cuda(plan, source, toolset, maps)
        elif source.language is Language.SYCL:
            command = _compile_sycl(plan, source, toolset, maps)
        else:
            is_cxx = source.language is Language.CXX
            language = ["-x", "c"] if source.language is Language.C else header if is_cxx else []
            if toolset.cxx.is_gcc:
                output.append(f"-Wa,--MD,{object_name}.as.d")
            elif source.path.suffix == ".s":
                language = ["-undef", "-x", "assembler-with-cpp"]  # clang lists only what its preprocessor reads
            flags = [flag for flag in (*plan.cxx_flags, *source.flags) if is_cxx or not _ONLY_CXX.match(flag)]
            command = [*_compile_cxx(plan, flags, toolset, maps), *language]
        # -MD, not -MMD: a system header, such as libaio.h, can change the binary like one of the op's own.
        steps.append(CompileStep(source, label, object_name, (*command, *output)))
    return tuple(steps)


def precompile_command(plan: BuildPlan, toolset: Toolset, directory: Path, output: str) -> list[str]:
    """The command, run in ``directory``, that makes GCC's precompiled header of ``plan``'s only source."""
    command = _compile_cxx(plan, list(plan.cxx_flags), toolset, _prefix_maps(plan, directory))
    return [*command, "-MD", "-MF", f"{output}.d", "-x", "c++-header", plan.sources[0].label, "-o", output]


def lists_assembled(plan: BuildPlan, toolset: Toolset) -> bool:
    """Whether the assembler of every step lists what it reads; link-time optimization assembles later."""
    flags = [*toolset.cxx.command, *plan.cxx_flags, *(flag for source in plan.sources for flag in source.flags)]
    languages = {source.language for source in plan.sources}
    return (
        toolset.cxx.is_gcc
        and languages <= {Language.CXX, Language.C, Language.ASSEMBLER}
        and not any(flag.startswith("-flto") for flag in flags)
    )


def stamped_directories(plan: BuildPlan, toolset: Toolset) -> list[str]:
    """Directories whose files, and files that, count in the key through an identity, not by content."""
    sycl = [*toolset.sycl.header_dirs, toolset.sycl.library_dir / "libsycl.so"] if toolset.sycl is not None else []
    foreign = [library.include_dir for library in plan.libraries]
    foreign += [library.library.with_name(f"lib{library.name}.so") for library in plan.libraries]
    libraries = [torch_install().library_dir] if plan.binding.uses_torch else []  # which fit any torch, or its headers
    torch = _system_includes(plan) if plan.binding.uses_python else []
    installed = map(str, (*sycl, *foreign, *libraries))
    return [*torch, *_compiler_own(toolset.cxx), *_cuda_own(toolset.cuda), *installed]


def _compiler_own(compiler: Compiler) -> list[str]:
    """Where a compiler keeps its own headers and those of the C++ standard library that comes with it.

    clang and others take the library of some GCC, which their own version does not identify: its content counts.
    """
    if compiler.is_zig:
        return [str(Path(compiler.path).parent / "lib")]
    prefix, target = Path(compiler.path).parent.parent, compiler.target
    if not compiler.is_gcc:
        found = [str(prefix / "lib" / "clang"), "/usr/lib/clang"]
        return found if prefix == Path("/usr") else [*found, str(prefix / "include" / "c++")]
    subdirectories = ["lib/gcc", "include/c++", f"include/{target}/c++", f"{target}/include/c++"]
    return [
        *(str(prefix / name) for name in subdirectories),
        "/usr/lib/gcc",
        "/usr/include/c++",
        f"/usr/include/{target}/c++",
    ]


def _cuda_own(cuda: CudaToolkit | None) -> list[str]:
    if cuda is None:
        return []
    # The libraries, too: the runtime, cudart_static, is linked in.
    found = [str(path) for kind in ("include", "lib") for path in cuda.home.glob(f"targets/*/{kind}")]
    # In an environment's prefix, include/ and lib/ belong to many packages.
    is_environment = cuda.home == Path(sys.prefix) or (cuda.home / "conda-meta").is_dir()
    return found if is_environment else [*found, str(cuda.home / "include"), str(cuda.library_dir)]


def _compile_cuda(plan: BuildPlan, source: Source, toolset: Toolset, maps: list[str]) -> list[str]:
    assert toolset.cuda is not None
    return [
        toolset.cuda.nvcc,
        f"-ccbin={toolset.cxx.program}",
        # Names of temporary files enter the binary; in /tmp they contain a process id.
        "--objdir-as-tempdir",
        *_torch_nvcc_flags(plan),
        *plan.nvcc_flags,
        *gencode_flags(plan.cuda_archs),
        *source.flags,
        "-Xcompiler=-fPIC",
        # Quoted for nvcc's own shell: unquoted it breaks at spaces, and at commas, of a path.
        *(f"-Xcompiler='{flag}'" for flag in maps),
        *(f"-I{path}" for path in plan.include_dirs),
        *_flagged("-isystem", [*_system_includes(plan), *(str(library.include_dir) for library in plan.libraries)]),
    ]


def _compile_cxx(plan: BuildPlan, flags: list[str], toolset: Toolset, maps: list[str]) -> list[str]:
    # To see through virtual calls GCC compiles each virtual function of torch's headers, 10,000 functions where 2,700
    # do: a fifth of the time of a file with torch/extension.h, a third with that header precompiled.
    is_quicker = plan.binding.uses_torch_cxx and toolset.cxx.is_gcc
    command = [
        *toolset.cxx.command,
        *(["-fno-devirtualize"] if is_quicker else []),
        *([_MOST_ERRORS] if toolset.cxx.is_gcc else []),
        *flags,
        "-fPIC",
        *maps,
        *(f"-I{path}" for path in plan.include_dirs),
        *_flagged("-isystem", _all_system_includes(plan, toolset)),
        *(openmp_headers() if _has_packaged_openmp(plan, toolset.cxx) else []),
    ]
    # diagnose() reads only messages in text form, and a later flag does not override an earlier one.
    return [word for word in command if not word.startswith("-fdiagnostics-format=")]


def _has_packaged_openmp(plan: BuildPlan, compiler: Compiler) -> bool:
    if not compiler.is_zig:  # only its clang has neither OpenMP's header nor its runtime
        return False
    source_flags = (flag for source in plan.sources for flag in source.flags)
    return "-fopenmp" in (*plan.cxx_flags, *plan.link_flags, *source_flags)


def _all_system_includes(plan: BuildPlan, toolset: Toolset) -> list[str]:
    cuda = [str(toolset.cuda.home / "include")] if toolset.cuda is not None else []
    sycl = [str(toolset.sycl.include_dir)] if toolset.sycl is not None else []
    libraries = [str(library.include_dir) for library in plan.libraries]
    return [*_libcxx_includes(plan, toolset.cxx), *_system_includes(plan), *cuda, *sycl, *libraries]


def _libcxx_includes(plan: BuildPlan, compiler: Compiler) -> list[str]:
    if not compiler.is_zig or plan.binding is not Binding.STABLE:
        return []
    # In place of torch's: exceptions of libc++ must not reach torch.
    csrc = native_root() / "csrc"
    return [str(csrc / "libcxx"), str(csrc)]


def directories_of(command: Sequence[str], source: Source, toolset: Toolset) -> tuple[str, ...]:
    """The directories in which ``command`` searches for the headers of ``source``, in order; runs the compiler."""
    # Outputs, and maps of the build's directory, change no directory; files that flags include take time.
    kept = [word for word in command[: command.index("-MD")] if "-ffile-prefix-map=" not in word]
    groups = grouped_flags(kept)
    flags = [word for flag, _, words in groups if flag not in ("-include", "-imacros") for word in words]
    language = {Language.C: "c", Language.CUDA: "cu"}.get(source.language, "c++")
    return searched_directories(tuple(flags), language, toolset.is_for_target, tuple(toolset.identities.items()))


def _compile_sycl(plan: BuildPlan, source: Source, toolset: Toolset, maps: list[str]) -> list[str]:
    assert toolset.icpx is not None
    assert toolset.sycl is not None
    assert plan.sycl is not None
    flags = [
        *plan.cxx_flags,
        *source.flags,
        "-fPIC",
        *maps,
        *_flagged("-include", list(map(str, plan.sycl.texts_before(source)))),
        *(f"-I{path}" for path in plan.include_dirs),
        *_flagged("-isystem", [*_system_includes(plan), str(toolset.sycl.include_dir)]),
    ]
    sycl_flags = compile_flags(plan.sycl.devices, toolset.cxx.program, flags)
    return [toolset.icpx.path, *flags, *plan.sycl.flags, *sycl_flags, "-x", "c++"]


def _torch_libraries(plan: BuildPlan, toolset: Toolset) -> list[str]:
    """The libraries of torch that the binary of ``plan`` needs (DT_NEEDED)."""
    if not plan.binding.uses_torch:
        return []
    libraries = ["torch_cpu", "c10"]
    if plan.uses_cuda or plan.sycl is not None or plan.binding.uses_torch_cxx:
        # On a CUDA build, libtorch loads all of torch's CUDA libraries, which host code does not need.
        libraries.insert(0, "torch")
    if plan.binding.uses_torch_cxx:
        libraries.append("torch_python")
        if toolset.cuda is not None:
            libraries += ["torch_cuda", "c10_cuda"]
    if toolset.sycl is not None and torch_install().xpu is not None:
        libraries += ["torch_xpu", "c10_xpu"]
    return libraries


def _stand_ins(plan: BuildPlan, toolset: Toolset) -> dict[str, tuple[str, ...]]:
    """Empty libraries with the names that the binary will need, by file name.

    Linking with torch's own takes half a second, because the linker reads 100,000 symbols. A shared library may have
    unresolved symbols, and torch's have no versions, so reading them is useless. The trial load after the build
    binds all symbols of the binary and thereby checks that they exist.
    """
    if not _has_stand_ins(plan, toolset):
        return {}
    names = [f"lib{library}.so" for library in _torch_libraries(plan, toolset)]
    make = (*toolset.cxx.command, "-shared", "-nostdlib", "-x", "assembler", "/dev/null")
    return {name: (*make, f"-Wl,-soname,{name}", "-o", name) for name in names}


def _has_stand_ins(plan: BuildPlan, toolset: Toolset) -> bool:
    """False if flags make the linker require all symbols: -z defs, --no-undefined, --unresolved-symbols."""
    words = ("defs", "undefined", "unresolved")
    flags = [flag for flag in (*toolset.cxx.command, *plan.link_flags) if "sanitize=" not in flag]
    return plan.system != "darwin" and not any(word in flag for flag in flags for word in words)


def _link(plan: BuildPlan, objects: list[str], toolset: Toolset) -> tuple[str, ...]:
    libraries = _torch_libraries(plan, toolset)
    search = [f"-L{'.' if _has_stand_ins(plan, toolset) else torch_install().library_dir}"] if libraries else []
    runtime: list[str] = []
    if toolset.cuda is not None:
        search.append(f"-L{toolset.cuda.library_dir}")
        # An op on torch's C++ API must share torch's runtime library; others link the CUDA runtime statically, so that
        # they fit every torch of the driver.
        is_shared = plan.binding.uses_torch_cxx
        runtime = [toolset.cuda.runtime_flag] if is_shared else ["-lcudart_static", "-lpthread", "-ldl", "-lrt"]
    sycl: list[str] = []
    if toolset.sycl is not None:
        search.append(f"-L{toolset.sycl.library_dir}")
        sycl = ["-lsycl"]
    linker = (*toolset.cxx.command, *flags_of(TOOL_FLAGS, plan.link_flags))
    listed = [f"-Wl,{LINKED_FLAG}={LINKED_LIST}"] if lists_linked(linker) else []
    keeps_debug = any(flag.startswith("-g") for flag in plan.cxx_flags)
    own = strip_flags(plan.system) if toolset.cxx.is_zig and not keeps_debug else []
    if plan.system == "darwin":
        # The loader finds torch's functions in the process; the binary names no library of torch.
        start = (*toolset.cxx.command, "-shared", "-Wl,-undefined,dynamic_lookup", *own)
        return (*start, *objects, "-o", plan.artifact_name, *plan.link_flags)
    link_flags = tuple(supported_link_flags(plan.link_flags)) if toolset.cxx.is_zig else plan.link_flags
    openmp: list[str] = []
    if _has_packaged_openmp(plan, toolset.cxx):
        link_flags = tuple(flag for flag in link_flags if flag != "-lgomp")
        openmp = openmp_runtime("c++", require_libgomp(plan.op, plan.target))
    return (
        *toolset.cxx.command,
        "-shared",
        *own,
        *objects,
        *openmp,
        "-o",
        plan.artifact_name,
        *listed,
        # Assembler sources without the note .note.GNU-stack would make the stack executable.
        "-Wl,-z,noexecstack",
        *search,
        # By default the linker drops -ltorch, through which torch's CUDA symbols are found.
        "-Wl,--no-as-needed",
        *(f"-l{library}" for library in libraries),
        "-Wl,--as-needed",
        *runtime,
        *sycl,
        *(word for library in plan.libraries for word in (f"-L{library.library.parent}", f"-l{library.name}")),
        # Libraries that the author names are kept, because a library may only register itself.
        *(["-Wl,--no-as-needed", *link_flags, "-Wl,--as-needed"] if link_flags else []),
    )


def _system_includes(plan: BuildPlan) -> list[str]:
    python = [sysconfig.get_paths()["include"]] if plan.binding.uses_python else []
    return [*torch_includes(plan), *python]


def torch_includes(plan: BuildPlan) -> list[str]:
    """Torch's own include directories."""
    if plan.binding is Binding.STABLE:
        # This directory has all headers of the Stable ABI. cpp_extension names it, too, but importing it,
        # and setuptools with it, takes half as long as a small build without its compiler.
        return [str(torch_install().include_dir)]
    if not plan.binding.uses_torch:
        return []
    from torch.utils import cpp_extension

    return [os.path.realpath(path) for path in cpp_extension.include_paths("cpu")]


def _torch_nvcc_flags(plan: BuildPlan) -> list[str]:
    """The flags that torch's BuildExtension passes to nvcc first, so that JIT and prebuild compile alike."""
    if not plan.binding.uses_torch_cxx:
        return []
    from torch.utils import cpp_extension

    return list(cpp_extension.COMMON_NVCC_FLAGS)


def _prefix_maps(plan: BuildPlan, directory: Path | None) -> list[str]:
    """Flags that keep this machine's paths out of the binary (__FILE__, debug information)."""
    directories = dict(Roots.of(plan).directories)
    if plan.binding.uses_torch:
        directories["torch"] = str(torch_install().root)
    if directory is not None:
        directories["build"] = os.path.realpath(directory)
    # The last matching option wins, so longer paths come later.
    ordered = sorted(directories.items(), key=lambda item: len(item[1]))
    return [f"-ffile-prefix-map={directory}={name}" for name, directory in ordered]


def _flagged(flag: str, values: list[str]) -> list[str]:
    return [word for value in values for word in (flag, value)]
