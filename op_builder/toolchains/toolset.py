"""The tools that build a plan, identified without running them in a warm load.

The identity of a compiler is its path, version and target, and a digest of its programs. Finding them costs a
subprocess, so a memo keeps them as long as the compiler's files are unchanged: the driver and the compiler that it
starts (``cc1plus``, ``clang``), so that an upgrade behind a wrapper script counts, too.
"""

import json
import os
import shutil
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from op_builder import env
from op_builder.errors import AccelError, ToolchainError
from op_builder.plan import BuildPlan
from op_builder.system.records import Memo, Schema, are_texts, is_flag, is_text
from op_builder.toolchains.flags import (
    TOOL_FLAGS,
    checked_flags,
    contents_of,
    expand_response_files,
    flags_of,
    host_words,
    named_files,
    names_in,
)

if TYPE_CHECKING:
    from op_builder.system.target import Target
    from op_builder.toolchains.cuda import CudaToolkit
    from op_builder.toolchains.sycl_ahead import SyclCompiler
    from op_builder.toolchains.sycl_runtime import SyclRuntime

_ANSWER: Schema = {"version": is_text, "target": is_text, "is_gcc": is_flag, "variables": are_texts, "digest": is_text}
_DEFAULT_CXX = ("g++", "c++", "clang++")
_ZIG = "zig"
_SCRIPT = "accel-c++"


class Compiler(NamedTuple):
    """A compiler that was found.

    Attributes:
        command: how to start it; more than one word for ``CXX="ccache g++"``.
        path: the resolved file of its last word that is a program.
        version: its line of ``--version``.
        target: the machine it compiles for, as ``x86_64-linux-gnu``.
        is_gcc: whether it is GCC, and not another compiler that takes GCC's options.
        variables: the words of its wrapper scripts, among them the variables that they read.
        digest: of the contents of its programs.
        flags: those in ``command``.
        flags_text: the same with the variables of ``env NAME=VALUE g++``, quoted for a shell.
    """

    command: tuple[str, ...]
    path: str
    version: str
    target: str
    is_gcc: bool
    variables: tuple[str, ...] = ()
    digest: str = ""
    flags: tuple[str, ...] = ()
    flags_text: str = ""

    @property
    def is_zig(self) -> bool:
        """Whether it is ziglang's clang, which has libc++ in place of libstdc++."""
        return os.path.basename(self.path) == _ZIG

    @property
    def identity(self) -> str:
        """Path, version, target and digest, without the flags in ``command``."""
        return " | ".join(filter(None, [self.path, self.version, self.target, self.digest]))

    @property
    def program(self) -> str:
        """The word of ``command`` that names the compiler, after a launcher such as ccache."""
        return self.command[-len(self.flags) - 1]


INSTALL_GXX = "Debian and Ubuntu: `apt-get install g++`; Fedora: `dnf install gcc-c++`; conda: `conda install gxx`"


def find_cxx(
    memo: Memo,
    target: "Target | None" = None,
    *,
    needs_libstdcxx: bool = False,
    selections: tuple[tuple[str, ...], ...] = (),
) -> Compiler:
    """The host C++ compiler: ``$CXX``, else the first of g++, c++, clang++ on PATH, else that of the package ziglang.

    Args:
        target: the platform to compile for, by ziglang; None for this machine and any compiler.
        needs_libstdcxx: the remedy does not name ziglang, which has libc++.
        selections: TOOL_FLAGS of a plan, by which it may start other programs.

    Raises:
        ToolchainError: it is missing, or it does not answer ``--version``.
    """
    if target is not None:
        return _find_packaged(memo, target)
    named, text = env.CXX.get(), env.CXX.raw()
    if named is not None and os.path.basename(named[0]) == _SCRIPT:
        commands = []  # the script hides which ziglang it runs
    else:
        commands = [_checked(named)] if named is not None else [[name] for name in _DEFAULT_CXX]
    for words in commands:
        program = shutil.which(words[0])
        if program is not None:
            return identify((os.path.abspath(program), *words[1:]), memo, selections)
        if named is not None:
            raise ToolchainError(
                f"CXX={text!r}: no program {words[0]!r} was found.", "Correct CXX, or unset it to use g++ from PATH."
            )
    from op_builder.toolchains.packaged import packaged_command

    packaged = packaged_command("c++")
    if packaged is not None:
        return identify(packaged, memo)
    raise ToolchainError(
        f"No C++ compiler: CXX={text!r} needs the package ziglang, which is not installed."
        if named is not None
        else f"No C++ compiler: none of {', '.join(_DEFAULT_CXX)} is on PATH and CXX is unset.",
        f"Install one ({INSTALL_GXX}{'' if needs_libstdcxx else '; or `pip install ziglang`'}), or set CXX.",
    )


def _find_packaged(memo: Memo, target: "Target") -> Compiler:
    from op_builder.toolchains.packaged import packaged_command

    command = packaged_command("c++", target)
    if command is None:
        raise ToolchainError(
            f"Building for {target.name} needs the package ziglang, which is not installed.",
            "Install it: `pip install ziglang`.",
        )
    return identify(command, memo)


def is_packaged(compiler: Compiler) -> bool:
    """Whether it is the package ziglang's, used because PATH has no compiler."""
    return env.CXX.raw() is None and compiler.is_zig


def _checked(command: tuple[str, ...]) -> list[str]:
    try:
        return checked_flags(command)
    except AccelError as error:
        raise ToolchainError(f"CXX: {error.message}", error.remedy) from None


def identify(command: tuple[str, ...], memo: Memo, selections: tuple[tuple[str, ...], ...] = ()) -> Compiler:
    """The compiler that ``command`` starts; its version and target come from the memo if they are there."""
    # ccache and distcc take the real compiler as their first argument; zig takes "c++" as a command.
    words = [word for word in command if not word.startswith("-")]
    first_flag = next((index for index, word in enumerate(command) if word.startswith("-")), len(command))
    flags, flags_text = command[first_flag:], ""
    if counted := [*(word for word in command[:first_flag] if "=" in word), *flags]:
        import shlex

        flags_text = shlex.join(counted)
    names = [os.path.basename(word) for word in words]
    zig_at = min((names.index(name) for name in (_ZIG, "ziglang") if name in names), default=len(words))
    programs = [found for found in (shutil.which(word) for word in words[: zig_at + 1]) if found]
    path = os.path.realpath(programs[-1])

    def compute() -> tuple[dict[str, Any], list[str]]:
        from op_builder.toolchains.compiler_probe import ask_compiler

        return ask_compiler(command, programs, selections)

    selecting = [*selections, flags_of(TOOL_FLAGS, flags)] if selections or flags else []
    named = [name for selection in selecting for name in names_in(selection)]
    binutils = [shutil.which(name) for name in ("as", "ld", *named)]  # GCC may find them on PATH
    subject = f"c++ compiler {command} {path} {binutils}"
    if places := [*selections, *env.program_places()]:
        subject += f" {places}"
    fact = memo.get(subject, _ANSWER, compute, is_program=True)
    variables = tuple(fact["variables"])
    return Compiler(
        command, path, fact["version"], fact["target"], fact["is_gcc"], variables, fact["digest"], flags, flags_text
    )


class Toolset(NamedTuple):
    """The tools a plan is built with.

    Attributes:
        cxx: the host compiler.
        cuda: None for a plan without CUDA sources.
        sycl: the SYCL runtime; None for a plan without SYCL.
        icpx: the SYCL compiler; None for a plan without SYCL sources.
        is_for_target: whether they compile for another platform, without this one's variables for compilers.
    """

    cxx: Compiler
    cuda: "CudaToolkit | None" = None
    sycl: "SyclRuntime | None" = None
    icpx: "SyclCompiler | None" = None
    is_for_target: bool = False

    @property
    def variables(self) -> dict[str, str]:
        """The variables that are set and that the tools read."""
        tools = [tool for tool in (self.cxx, self.cuda, self.icpx) if tool is not None]
        if self.is_for_target:
            return {name: value for name, value in env.read_by_compilers().items() if name in env.FOR_ANY_TARGET}
        words = {word for tool in tools for word in tool.variables}
        return env.read_by_compilers(words, (word for word in words if word.endswith("_") and len(word) > 2))

    @property
    def variable_words(self) -> list[str]:
        """The words of :attr:`variables`, some of which are flags."""
        return expand_response_files(word for value in self.variables.values() for word in value.split())

    @property
    def identities(self) -> dict[str, str]:
        """The parts of the key that identify the tools."""
        known = {"c++ compiler": self.cxx.identity}
        if self.cxx.flags_text:
            known["flags in CXX"] = " ".join([self.cxx.flags_text, *contents_of(named_files(self.cxx.flags))])
        if self.cuda is not None:
            known["cuda compiler"] = self.cuda.identity
        if self.icpx is not None:
            known["sycl compiler"] = self.icpx.identity
        if variables := self.variables:
            words = self.variable_words
            known["compiler variables"] = json.dumps([variables, *words, *contents_of(named_files(words))])
        return known


def find_toolset(plan: BuildPlan, memo: Memo) -> Toolset:
    """The tools for ``plan``.

    Raises:
        ToolchainError, MissingCUDAException: one of them is missing or does not answer.
    """
    kinds: list[Sequence[str]] = [plan.compile_flags, *(source.flags for source in plan.sources if source.flags)]
    if plan.uses_cuda:
        kinds.append(expand_response_files(env.nvcc_words()))
        kinds = [host_words(flags) for flags in kinds]
    kinds = [flags for flags in (*kinds, plan.link_flags) if any(word.startswith(TOOL_FLAGS) for word in flags)]
    selections = tuple(dict.fromkeys(flags_of(TOOL_FLAGS, flags) for flags in kinds))
    cxx = find_cxx(memo, plan.target, selections=selections)
    if plan.sycl is not None:
        if plan.uses_cuda:
            raise ToolchainError(
                f"Op '{plan.op}' has both CUDA and SYCL sources, and a binary can have only one of them.",
                "Write one builder for each device.",
            )
        from op_builder.toolchains.sycl_ahead import find_sycl_tools

        return Toolset(cxx, None, *find_sycl_tools(plan, memo))
    if not plan.uses_cuda:
        return Toolset(cxx, is_for_target=plan.target is not None)
    from op_builder.toolchains.cuda import find_cuda

    return Toolset(cxx, find_cuda(memo, for_torch=plan.binding.uses_torch))
