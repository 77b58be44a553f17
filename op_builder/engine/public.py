"""The engine for other projects: from sources and flags to the path of a built library. See docs/embedding.md.

It imports torch only for a binding that uses torch, and nothing of this project above the engine.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from op_builder.cache.key import Roots, plan_key
from op_builder.cache.store import Cache
from op_builder.errors import AccelError, ArgumentError, SourceNotFoundError
from op_builder.plan import Binding, ForeignLibrary, PlanFacts
from op_builder.recipe import Recipe, normalized, plan_of, text_list
from op_builder.toolchains.toolset import find_toolset

if TYPE_CHECKING:
    from op_builder.engine.ninja import Progress
    from op_builder.toolchains.jobs import JobBudget

# Members that builders give and this face does not have.
_FOR_BUILDERS = ("kernels", "kernel_flags", "sycl_toolchain", "module_name", "owner")
_LISTS = ("sources", "include_dirs", "cxx_flags", "nvcc_flags", "link_flags", "cuda_archs")


class BuiltLibrary(NamedTuple):
    """A library in the cache.

    Attributes:
        path: of the file, which no build changes. The cache may remove it when it has not been used for long.
        key: identifies everything that the library was built from, as 32 hexadecimal digits.
        is_cached: whether it existed already, perhaps because another process has just built it.
        reasons: why it was built: how the nearest library in the cache differs. Empty if ``is_cached``.
    """

    path: Path
    key: str
    is_cached: bool
    reasons: tuple[str, ...]


def build_library(
    recipe: Recipe,
    *,
    cache_root: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
    cancel: threading.Event | None = None,
    budget: JobBudget | None = None,
    timeout_s: float | None = None,
) -> BuiltLibrary:
    """The library of a recipe, from the cache or compiled now. It is not opened in this process.

    Args:
        recipe: what to compile. Relative paths are relative to the current directory.
        cache_root: the cache's directory, which is created if it is missing. None for ``$ACCEL_CACHE_DIR``, or
            ``accel-ops`` in the user's cache directory.
        progress: called with (steps done, steps in all, what was just done), in the thread of the call. Without it, a
            build of more than 2 s is logged now and then.
        cancel: ends the build when another thread sets it.
        budget: the compilers that several builds may run together. None: as many as cores and memory allow.
        timeout_s: the longest time that the compilers may take. None for ``$ACCEL_COMPILE_TIMEOUT_S``.

    Raises:
        ArgumentError: a member of the recipe has a wrong type or value.
        SourceNotFoundError: a source does not exist.
        CompileError: the compiler or the linker failed.
        LoadError: the library was built but does not load, or lacks what its binding promises.
        BuildCancelled: ``cancel`` was set.
        CacheError: the cache cannot be written, or the disk is full.
        ToolchainError, MissingCUDAException: a tool is missing or failed, or the time is up.
        IncompatibleOpError: the package of the binding is missing, or the system is Windows.
    """
    try:
        recipe = _checked(recipe)
        cache = Cache(Path(os.path.abspath(cache_root)) if cache_root is not None else None)
        plan = plan_of(normalized(recipe), PlanFacts(cache.memo))
        toolset, missing_tool = None, None
        try:
            toolset = find_toolset(plan, cache.memo)
        except AccelError as error:  # the cache may have it from another machine's compiler
            missing_tool = error
        key, roots = plan_key(plan, toolset, cache.memo), Roots.of(plan)
        entry = cache.find(key, plan.op, roots, any_compiler=toolset is None)
        if entry is not None:
            return BuiltLibrary(entry.artifact, entry.digest, is_cached=True, reasons=())
        if toolset is None:
            assert missing_tool is not None
            raise missing_tool
        from op_builder.engine.build import BuildOptions, build

        reasons: list[str] = []  # stays empty if another process has built it meanwhile
        options = BuildOptions(
            progress=progress,
            budget=budget,
            cancel=cancel or threading.Event(),
            on_start=reasons.extend,
            timeout_s=timeout_s,
            is_shown=progress is not None,
        )
        entry = build(plan, key, toolset, cache, options)
        return BuiltLibrary(entry.artifact, entry.digest, is_cached=not reasons, reasons=tuple(reasons))
    except AccelError as error:  # see load()
        raise error.with_traceback(None) from error.__cause__


def _checked(recipe: Recipe) -> Recipe:
    """The recipe with absolute paths."""
    where = f"The recipe of {recipe.op!r}:"
    if not isinstance(recipe.binding, Binding):
        names = ", ".join(map(str, Binding))
        raise ArgumentError(f"{where} its binding is {recipe.binding!r}.", f"Use one of {names}.")
    if used := [name for name in _FOR_BUILDERS if getattr(recipe, name) != Recipe._field_defaults[name]]:
        names = ", ".join(used)
        raise ArgumentError(f"{where} build_library() does not support {names}.", f"Remove {names} from the recipe.")
    for name in ("texts", "source_flags", "parts"):
        if not isinstance(getattr(recipe, name), Mapping):
            raise ArgumentError(f"{where} {name} is {getattr(recipe, name)!r}.", "Pass a dict with sources as keys.")
    if not all(isinstance(text, str) for pair in recipe.texts.items() for text in pair):
        raise ArgumentError(f"{where} texts is {recipe.texts!r}.", "Pass names and contents of sources, each a str.")
    if not all(isinstance(library, ForeignLibrary) for library in recipe.libraries):
        raise ArgumentError(f"{where} libraries is {recipe.libraries!r}.", "Pass a tuple of ForeignLibrary values.")
    lists: dict[str, Any] = {name: text_list(getattr(recipe, name), f"{where} its {name}") for name in _LISTS}
    flags = {name: text_list(words, f"{where} the flags of {name!r}") for name, words in recipe.source_flags.items()}
    for member, named, places, known in (
        ("source_flags", flags, "sources or texts", {*lists["sources"], *recipe.texts}),
        ("parts", recipe.parts, "sources", set(lists["sources"])),
    ):
        if unknown := sorted(set(map(str, named)) - known):
            raise ArgumentError(f"{where} {member} names {', '.join(unknown)}.", f"Use names as they are in {places}.")
    for name, count in recipe.parts.items():
        if not isinstance(count, int) or count < 1:
            raise ArgumentError(f"{where} parts of {name!r} is {count!r}.", "Use a whole number of at least 1.")
    absolute = {name: os.path.abspath(name) for name in lists["sources"]}
    for name, path in absolute.items():
        if not os.path.isfile(path):
            raise SourceNotFoundError(
                f"{where} the source {name!r} is not a file ({path}).", "Pass paths of existing files in sources."
            )
    lists["sources"] = list(absolute.values())
    lists["include_dirs"] = list(map(os.path.abspath, lists["include_dirs"]))
    lists = {name: tuple(words) for name, words in lists.items()}
    by_source = {absolute.get(str(name), str(name)): tuple(words) for name, words in flags.items()}
    parts = {absolute[name]: count for name, count in recipe.parts.items()}
    return recipe._replace(source_flags=by_source, parts=parts, **lists)
