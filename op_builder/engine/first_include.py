"""Which sources read ``torch/extension.h`` before anything that could change it.

Such a source may be compiled as if it began with that header, precompiled or in part.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from op_builder.plan import Binding, BuildPlan, Language, Source
from op_builder.toolchains.flags import DIRECTORY_FLAGS, grouped_flags
from op_builder.toolchains.toolset import Toolset


def eligible_sources(plan: BuildPlan, toolset: Toolset) -> tuple[Source, ...]:
    """The sources of ``plan`` that may begin with the header; GCC alone precompiles it well enough."""
    if plan.binding is not Binding.TORCH or not toolset.cxx.is_gcc:
        return ()
    directories = own_include_dirs(plan)
    return tuple(
        source
        for source in plan.sources
        if source.language is Language.CXX and not source.flags and opens_with_torch(source, directories)
    )


def own_include_dirs(plan: BuildPlan) -> list[Path]:
    """The directories that are searched before torch's."""
    named = [Path(value) for flag, value, _ in grouped_flags(plan.cxx_flags) if flag in DIRECTORY_FLAGS]
    return [*plan.include_dirs, *named]


_COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)
_INCLUDE = re.compile(r"""include\s*(?P<quote>[<"])(?P<name>[^>"]+)[>"]""")
_GUARD = re.compile(r"(?:ifndef\s+|if\s+!\s*defined\s*\(?\s*)(\w+)\s*\)?")
# The headers of the C++ standard library, and torch's own, are the same in any order.
_HARMLESS = re.compile(
    r"[a-z_]+|(?:torch|ATen|c10|pybind11)/.*|Python\.h"
    r"|(?:stdio|stdlib|stdint|stddef|string|math|limits|float|time|omp|immintrin|unistd)\.h"
)
_MAX_DEPTH = 16


def opens_with_torch(source: Source, include_dirs: Sequence[Path]) -> bool:
    """Whether ``torch/extension.h`` is read before any macro or declaration of the source's own."""
    if source.text is not None:
        return bool(_decide(source.text, [], include_dirs, _MAX_DEPTH))
    return bool(_decide_file(source.path, include_dirs, _MAX_DEPTH))


def _decide_file(path: Path, include_dirs: Sequence[Path], depth: int) -> bool | None:
    return _decide(path.read_text(encoding="utf-8", errors="replace"), [path.parent], include_dirs, depth)


def _decide(text: str, beside: Sequence[Path], include_dirs: Sequence[Path], depth: int) -> bool | None:
    """True or False as soon as it is decided; None when ``text`` ends before."""
    lines = [line.strip() for line in _COMMENT.sub(" ", text).replace("\\\n", " ").splitlines() if line.strip()]
    directives = (line.removeprefix("#").strip() if line.startswith("#") else "" for line in lines)
    for directive in directives:
        include = _INCLUDE.match(directive)
        guard = _GUARD.fullmatch(directive)
        if include is not None:
            decided = _decide_include(include, beside, include_dirs, depth)
            if decided is not None:
                return decided
        elif guard is not None:
            # An include guard is one only with its define; any other condition may leave out what follows.
            if next(directives, "").split() != ["define", guard[1]]:
                return False
        elif not directive.startswith(("line ", "pragma once")):
            return False
    return None


def _decide_include(
    include: re.Match[str], beside: Sequence[Path], include_dirs: Sequence[Path], depth: int
) -> bool | None:
    name = include["name"]
    directories = (*beside, *include_dirs) if include["quote"] == '"' else include_dirs
    own = next((path for path in (directory / name for directory in directories) if path.is_file()), None)
    if own is not None:
        return _decide_file(own, include_dirs, depth - 1) if depth > 0 else False
    if name == "torch/extension.h":
        return True
    return None if _HARMLESS.fullmatch(name) else False
