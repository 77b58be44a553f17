"""``torch/extension.h`` precompiled, so that the ops which include it compile in a third of the time.

Reading that header is most of such a compile: 5,400 files. GCC can keep what it made of them. A
precompiled header is an entry of the cache like a built op, named ``torch_extension``, one for
each set of flags that a compiler insists on, and 600 to 800 MB large. It is made in the background
after the first build that could have used it: making it takes longer than that build.

Sources that may begin with the header begin with its core (see ``torch_header``), precompiled or not,
as long as that compiles.

What comes out of a build does not depend on any of this, nor does the key: GCC itself refuses a
precompiled header that does not fit flags and macros, and reads the text instead.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import re
import shutil
import subprocess
import sys
import time
import traceback
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from op_builder import env
from op_builder.cache.fingerprint import BuildKey, build_key, plan_key, saved_since
from op_builder.cache.headers import Roots, parse_depfile
from op_builder.cache.store import Cache, Entry
from op_builder.engine import torch_header
from op_builder.engine.commands import PRECOMPILED_HEADER, precompile_command, stamped_directories
from op_builder.engine.first_include import eligible_sources, own_include_dirs
from op_builder.engine.publish import publish
from op_builder.engine.session import watched
from op_builder.engine.try_load import Inspection
from op_builder.errors import AccelError, ToolchainError
from op_builder.plan import Binding, BuildPlan, Language, Source
from op_builder.system.cgroups import HostFiles, available_memory_bytes, falls_together, memory_limit_bytes
from op_builder.system.process import run
from op_builder.toolchains.flags import DIRECTORY_FLAGS, grouped_flags
from op_builder.toolchains.toolset import Toolset, find_toolset

logger = logging.getLogger(__name__)

OP = "torch_extension"
_NAMES = "names.json"

# Measured on torch 2.13 with g++ 12: 2.4 GB of memory, 0.8 GB on disk, which the build holds but once.
_MEMORY_BYTES = 3 << 30
_DISK_BYTES = 2 << 30
_NICENESS = 10
_RETRY_AFTER_S = 3600.0


@dataclass(frozen=True)
class Preincluded:
    """What some sources of a plan begin with.

    Attributes:
        sources: those sources.
        text: ``torch/extension.h``, the whole or the core.
        entry: the same precompiled, None where the cache has none that fits.
    """

    sources: tuple[Source, ...]
    text: str
    entry: Entry | None

    def offer(self, directory: Path) -> None:
        """Put it where a build in ``directory`` finds it: the text, and GCC's own form beside it."""
        (directory / PRECOMPILED_HEADER).write_text(self.text, encoding="utf-8")
        compiled = directory / f"{PRECOMPILED_HEADER}.gch"
        compiled.unlink(missing_ok=True)  # of the first attempt
        if self.entry is not None:
            compiled.symlink_to(self.entry.artifact)

    def complete(self, key: BuildKey) -> BuildKey:
        """``key`` with the headers that GCC did not list, having read them when it precompiled."""
        if self.entry is None:
            return key
        manifest = self.entry.manifest
        headers = {(header.root, header.path): header for header in (*manifest.headers, *key.headers)}
        system = key.system.union(manifest.system_headers)
        return BuildKey(key.plan, tuple(headers[name] for name in sorted(headers)), system)


def find(plan: BuildPlan, toolset: Toolset, cache: Cache, whole: bool = False) -> Preincluded | None:
    """What sources of ``plan`` are to begin with, None where nothing is gained.

    Args:
        whole: with all of the header, because its core was not enough.
    """
    sources = eligible_sources(plan, toolset)
    header = _wanted(plan, sources, whole)
    if header is None:
        return None
    text = header.sources[0].text or ""
    entry = cache.find(plan_key(header, toolset, cache.memo), OP, Roots.of(header))
    if entry is not None and _shadowed(entry, own_include_dirs(plan)):
        entry = None
    return None if entry is None and text == torch_header.WHOLE else Preincluded(sources, text, entry)


def _wanted(plan: BuildPlan, sources: Sequence[Source], whole: bool) -> BuildPlan | None:
    """The plan of the header that ``sources`` of ``plan`` are to begin with, None where it serves none."""
    return header_plan(plan, torch_header.text_for(sources, whole)) if sources else None


def header_plan(plan: BuildPlan, text: str) -> BuildPlan | None:
    """The plan of precompiling ``text`` for the sources of ``plan``.

    Returns:
        None where a flag has files read before all others.
    """
    flags: list[str] = []
    optimization: list[str] = []
    for flag, value, words in grouped_flags(plan.cxx_flags):
        if flag in ("-include", "-imacros", "-x") or flag.startswith("-Wp,"):
            return None
        if flag in DIRECTORY_FLAGS or flag.startswith("-W") or flag == "-w":
            continue
        if flag.startswith("-O"):  # the last one counts, wherever it stands
            optimization = ["-O2" if flag in _LIKE_O2 else flag]
            continue
        # Defines that torch does not look at are as many as there are ops; of the others GCC decides.
        if flag not in ("-D", "-U") or _SEEN_BY_TORCH.match(value):
            flags += words
    return _plan_of([*optimization, *flags], text)


# GCC takes a header precompiled at any of these for every other: none is seen by the preprocessor.
_LIKE_O2 = ("-O", "-O1", "-O2", "-O3", "-Og")


def _plan_of(flags: Iterable[str], text: str) -> BuildPlan:
    source = Source(Path(PRECOMPILED_HEADER), PRECOMPILED_HEADER, Language.HEADER, text=text)
    return BuildPlan(OP, PRECOMPILED_HEADER, Binding.TORCH, (source,), (), tuple(flags), (), ())


_SEEN_BY_TORCH = re.compile(r"NDEBUG|_GLIBCXX_|AT_|ATEN_|C10_|CAFFE2_|PYBIND11_|TORCH_(?!EXTENSION_NAME)|USE_")


def _shadowed(entry: Entry, include_dirs: Iterable[Path]) -> bool:
    """Whether an own include directory holds a name that torch's headers would then find there."""
    try:
        names = set(json.loads((entry.directory / _NAMES).read_text()))
        return any(names.intersection(os.listdir(path)) for path in include_dirs if path.is_dir())
    except (OSError, ValueError):
        return True


# Making it -----------------------------------------------------------------------------------


def make_in_background(plan: BuildPlan, toolset: Toolset, cache: Cache, whole: bool = False) -> None:
    """Have the header that the sources of ``plan`` could use precompiled by a process of its own.

    It runs at low priority and goes on when this process ends. Nothing happens where memory or
    disk are short, or the variable ``ACCEL_PRECOMPILE`` forbids it. Whatever goes wrong is only logged.

    Args:
        whole: all of the header, as in :func:`find`.
    """
    try:
        _start(plan, toolset, cache, whole)
    except (AccelError, OSError, subprocess.SubprocessError) as error:
        logger.warning("torch/extension.h is not precompiled: %s", error)


def _start(plan: BuildPlan, toolset: Toolset, cache: Cache, whole: bool) -> None:
    sources = eligible_sources(plan, toolset) if env.ACCEL_PRECOMPILE.get() else ()
    header = _wanted(plan, sources, whole)
    if header is None or _is_made(header, toolset, cache) or _failed_lately(cache, header, toolset):
        return
    obstacle = _obstacle(cache)
    if obstacle:
        logger.debug("torch/extension.h is not precompiled: %s", obstacle)
        return
    request = json.dumps({"cache": str(cache.root), "flags": header.cxx_flags, "text": header.sources[0].text})
    # The shell ends at once, so that nobody is left to wait for the process.
    starter = ["/bin/sh", "-c", '"$@" </dev/null >/dev/null 2>&1 &', "sh"]
    own_root = str(Path(__file__).resolve().parents[2])
    program = f"import sys; sys.path.insert(0, {own_root!r}); from {__name__} import main; main()"
    subprocess.run([*starter, sys.executable, "-c", program, request], start_new_session=True, check=True)
    logger.info("torch/extension.h is being precompiled in the background, for the builds to come.")


def _is_made(header: BuildPlan, toolset: Toolset, cache: Cache) -> bool:
    return cache.find(plan_key(header, toolset, cache.memo), OP, Roots.of(header)) is not None


def precompile(header: BuildPlan, toolset: Toolset, cache: Cache) -> Entry:
    """The entry of a precompiled header, made now and tried.

    Raises:
        ToolchainError: GCC failed, or does not take what it made.
        CacheError: the cache directory cannot be written.
    """
    started, started_ns = time.monotonic(), time.time_ns()
    key = plan_key(header, toolset, cache.memo)
    with cache.staging(OP) as staging, cache.errors_explained():
        (staging / PRECOMPILED_HEADER).write_text(header.sources[0].text or "", encoding="utf-8")
        command = precompile_command(header, toolset, staging)
        _compile(command, staging)
        flags = command[: command.index("-MD")]
        attempt = [*flags, "-include", PRECOMPILED_HEADER, "-Winvalid-pch", "-Werror", "-fsyntax-only"]
        _compile([*attempt, "-x", "c++", os.devnull], staging)
        depfile = staging / f"{header.artifact_name}.d"
        (staging / _NAMES).write_text(json.dumps(_first_names(depfile, header, toolset)))
        whole_key = build_key(key, header, [depfile], stamped_directories(header, toolset))
        if plan_key(header, toolset, cache.memo) != key or saved_since(started_ns, header, whole_key):
            raise ToolchainError("torch/extension.h is not kept precompiled: a header changed meanwhile.")
        inspection = Inspection("header", (), "an empty file was compiled with it")
        build_s = time.monotonic() - started
        return publish(cache, header, staging, whole_key, inspection, build_s, keep=[_NAMES])


def _compile(command: Sequence[str], staging: Path) -> None:
    """Run the compiler, which ends with this process.

    Raises:
        ToolchainError: it failed, or did not end in time.
    """
    timeout_s = env.ACCEL_COMPILE_TIMEOUT_S.get()
    environment = env.child_environment(TMPDIR=str(staging), LC_ALL="C")
    log_path = staging / "precompile.log"
    with log_path.open("w") as log, watched(command, cwd=staging, environment=environment, output=log) as process:
        try:
            code = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise ToolchainError(f"torch/extension.h was not precompiled within {timeout_s:g} s.") from None
    if code != 0:
        said = log_path.read_text(errors="replace").strip()[-2000:]
        raise ToolchainError(f"torch/extension.h cannot be precompiled: {said}")


def _first_names(depfile: Path, header: BuildPlan, toolset: Toolset) -> list[str]:
    """The first parts of the names by which the headers found each other: ``torch``, ``vector``, ``sys``."""
    asked = run([*toolset.cxx.command, "-E", "-v", "-x", "c++", os.devnull]).errors
    listed = re.search(r"search starts here:\n(.*)End of search list", asked, re.DOTALL)
    roots = [line.strip() for line in listed[1].splitlines()] if listed else []
    roots = [os.path.realpath(root) for root in (*roots, *stamped_directories(header, toolset)) if os.path.isdir(root)]
    roots.sort(key=len, reverse=True)
    names = set()
    for path in map(os.path.realpath, filter(os.path.isabs, parse_depfile(depfile.read_text()))):
        root = next((root for root in roots if path.startswith(root + os.sep)), "/")
        names.add(os.path.relpath(path, root).split(os.sep)[0])
    return sorted(names)


def _obstacle(cache: Cache) -> str:
    if env.ACCEL_CACHE_MAX_MIB.get() << 20 < _DISK_BYTES:
        return "ACCEL_CACHE_MAX_MIB leaves no room for it"
    if available_memory_bytes(HostFiles()) < _MEMORY_BYTES:
        return "memory is short"
    if falls_together(HostFiles()) and memory_limit_bytes(HostFiles()) is not None:
        return "where memory runs out, all processes of this control group are ended, the user's program among them"
    try:
        return "the disk is nearly full" if shutil.disk_usage(cache.root).free < _DISK_BYTES else ""
    except OSError as error:
        return str(error)


def _failure_log(cache: Cache, header: BuildPlan, toolset: Toolset) -> Path:
    return cache.root / "logs" / f"{OP}-{plan_key(header, toolset, cache.memo).digest[:12]}.log"


def _failed_lately(cache: Cache, header: BuildPlan, toolset: Toolset) -> bool:
    try:
        return time.time() - _failure_log(cache, header, toolset).stat().st_mtime < _RETRY_AFTER_S
    except OSError:
        return False


def _is_taken(file: IO[str]) -> bool:
    """Whether another process is at it; where there are no locks the work may be done twice."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def main() -> None:
    """The process that precompiles: one at a time for each key; a failure leaves its log."""
    request = json.loads(sys.argv[1])
    os.nice(_NICENESS)
    with contextlib.suppress(OSError):  # where memory runs out, this ends, and its compiler, and nobody's build
        Path("/proc/self/oom_score_adj").write_text("1000")
    cache = Cache(Path(request["cache"]))
    header = _plan_of(request["flags"], request["text"])
    toolset = find_toolset(header, cache.memo)
    key = plan_key(header, toolset, cache.memo)
    log = _failure_log(cache, header, toolset)
    with (cache.writable_dir("locks") / f"{OP}-{key.digest}.lock").open("a") as file:
        if _is_taken(file) or _is_made(header, toolset, cache):
            return
        cache.writable_dir("logs")
        # Written first, so that an attempt that is killed is not made again after every build.
        log.write_text("torch/extension.h is being precompiled, or that was killed.\n", encoding="utf-8")
        try:
            precompile(header, toolset, cache)
        except Exception:
            log.write_text(traceback.format_exc(), encoding="utf-8")
        else:
            log.unlink(missing_ok=True)
