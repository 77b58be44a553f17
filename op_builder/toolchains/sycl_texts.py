"""Kernel texts in the binary: what the toolchain ``sycl-rtc`` compiles at run time.

The texts, with every header of the project that they include, become one generated C++ source. It is part of the
plan, so the key counts each of them by content.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from op_builder import paths
from op_builder.errors import SourceNotFoundError

GENERATED_SOURCE = "sycl_kernel_texts.cpp"

# As accel::xpu::kTextRoot in kernels_sycl/host/kernel_texts.h.
_ROOT = "/accel_ops_kernels/"
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"\n]+)"', re.MULTILINE)


@dataclass(frozen=True)
class KernelTexts:
    """Kernel texts, and what they include.

    Attributes:
        files: ``{machine-independent name: content}``; the kernels' own come first.
        own_count: how many are the kernels' own.
        options: of the kernel compiler.
    """

    files: dict[str, str]
    own_count: int
    options: tuple[str, ...]

    def as_source(self) -> str:
        """The C++ source that embeds them."""
        files = "".join(f"    {{{raw_literal(name)}, {raw_literal(text)}}},\n" for name, text in self.files.items())
        options = "".join(f"    {raw_literal(option)},\n" for option in self.options)
        return (
            '#include "host/kernel_texts.h"\n\n'
            "namespace accel::xpu {\nnamespace {\n\n"
            f"const KernelText kFiles[] = {{\n{files}}};\n\n"
            f"const char* const kOptions[] = {{\n{options}}};\n\n"
            f"const KernelTexts kTexts = {{kFiles, {len(self.files)}, {self.own_count}, "
            f"kOptions, {len(self.options)}}};\n\n"
            "}  // namespace\n\nconst KernelTexts& kernel_texts() { return kTexts; }\n\n"
            "}  // namespace accel::xpu\n"
        )


def collect_texts(
    kernels: Sequence[Path], include_dirs: Sequence[Path], options: Iterable[str], owner: type | None
) -> KernelTexts:
    """The texts of ``kernels`` and of the project files that they include with quotes.

    Args:
        kernels: files of free-function kernels.
        include_dirs: searched, in order, after the including file's own directory.
        options: of the kernel compiler, in addition to the include directories.
        owner: the builder's class, whose places the names are relative to; None for this project's kernels.

    Raises:
        SourceNotFoundError: a text would get another's name, or is outside all roots.
    """
    names = _Names.of([*(kernel.parent for kernel in kernels), *include_dirs], owner)
    files: dict[str, str] = {}
    waiting = list(kernels)
    read: dict[str, Path] = {}
    while waiting:
        path = waiting.pop(0)
        name = names.name(path)
        other = read.setdefault(name, path)
        if other != path:
            raise SourceNotFoundError(
                f"The kernel texts {other} and {path} would both be named {name!r}.", "Rename one of them."
            )
        if name in files:
            continue
        text = path.read_text(encoding="utf-8")
        files[name] = text
        found = (_included(name, path, include_dirs) for name in _INCLUDE.findall(text))
        waiting += [included for included in found if included is not None]
    searched = [f"-I{_ROOT}{names.name(directory)}" for directory in include_dirs]
    return KernelTexts(files, len(dict.fromkeys(kernels)), (*dict.fromkeys(searched), *options))


@dataclass(frozen=True)
class _Names:
    """Names of files and directories that are the same on every machine, and keep their relative locations.

    Attributes:
        roots: ``{directory: prefix}``, no directory inside another.
    """

    roots: dict[Path, str]

    @classmethod
    def of(cls, directories: Iterable[Path], owner: type | None) -> _Names:
        """Names for the files of ``directories``, of the builder's package and of this project."""
        own = paths.outermost_bases(owner)
        outside = [directory for directory in directories if not paths.is_native(directory)]
        every = list(dict.fromkeys([*own, *outside]))
        outermost = [path for path in every if not any(other in path.parents for other in every)]
        package = own[0] if own else None
        numbered = (path for path in outermost if path != package)
        roots = {path: f"include{number}/" for number, path in enumerate(numbered)}
        return cls(roots if package not in outermost else {**roots, package: ""})

    def name(self, path: Path) -> str:
        """The name of a file or directory.

        Raises:
            SourceNotFoundError: it is in none of the roots, so an include with ``..`` would not find it.
        """
        if paths.is_native(path):
            return path.relative_to(paths.native_root()).as_posix()
        for root, prefix in self.roots.items():
            if path == root or root in path.parents:
                return os.path.normpath(prefix + path.relative_to(root).as_posix())
        raise SourceNotFoundError(
            f"The kernel text {path} lies outside the op's package and its include directories.",
            "Name a directory above it in include_paths(), and include it from there.",
        )


def _included(name: str, by: Path, include_dirs: Sequence[Path]) -> Path | None:
    for directory in (by.parent, *include_dirs):
        candidate = Path(os.path.normpath(directory / name))
        if candidate.is_file():
            return candidate
    return None  # the compiler's own, or missing: then the compiler reports it, with the line


def raw_literal(text: str) -> str:
    """``text`` as a C++ raw string literal."""
    mark = "accel"
    while f'){mark}"' in text:
        mark += "_"
    return f'R"{mark}({text}){mark}"'
