"""Building one plan: stage, compile, try, publish."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import logging
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO

from op_builder import env
from op_builder.cache.fingerprint import BuildKey, PlanKey, build_key, plan_key, saved_since
from op_builder.cache.headers import HeaderGoneError, Roots
from op_builder.cache.staging import process_lives
from op_builder.cache.store import Cache, Entry, disk_full
from op_builder.engine import precompiled
from op_builder.engine.commands import LINKED_LIST, BuildCommands, build_commands, stamped_directories
from op_builder.engine.jobs import JobBudget, job_count
from op_builder.engine.kernels import try_kernels
from op_builder.engine.ninja import Limits, Progress, find_ninja, run_ninja, write_file
from op_builder.engine.publish import publish
from op_builder.engine.try_load import Inspection, inspect
from op_builder.errors import BuildCancelled, CacheError, CompileError, ToolchainError
from op_builder.plan import BuildPlan
from op_builder.toolchains.diagnose import diagnose
from op_builder.toolchains.toolset import Toolset

logger = logging.getLogger(__name__)

# A build that takes longer is told of once; those that wait for it say so at these times, then every minute.
_SILENT_S = 3.0
_ANNOUNCE_WAIT_S = 3.0
_ANNOUNCE_AGAIN_S = (10.0, 30.0)
_ANNOUNCE_EVERY_S = 60.0
_POLL_S = 0.05
_ATTEMPTS = 3
_LOG = "build.log"
_LITTLE_BYTES = 1 << 20


@dataclass(frozen=True)
class BuildOptions:
    """How to go about a build; what comes out does not depend on it.

    Attributes:
        progress: told of every step.
        force: compile even if the cache has it; its entry is the same, unless that was damaged.
        budget: the compiler jobs that this build shares with others; None: it has all that are allowed.
        cancel: when set, the compilers are ended and the build raises BuildCancelled.
        precondition: called before anything is compiled; raises if the op cannot be built.
    """

    progress: Progress | None = None
    force: bool = False
    budget: JobBudget | None = None
    cancel: threading.Event = field(default_factory=threading.Event)
    precondition: Callable[[], None] = lambda: None


def build(plan: BuildPlan, key: PlanKey, toolset: Toolset, cache: Cache, options: BuildOptions | None = None) -> Entry:
    """The published entry of ``plan``: compiled now, or by another process that was faster.

    Raises:
        CompileError: the compiler or linker failed.
        LoadError: the binary was built but does not load.
        CacheError: the cache directory cannot be written, or the disk is full.
        ToolchainError: ninja is missing, or the build ran out of time.
    """
    options = options or BuildOptions()
    with _only_builder(cache, key, plan.op, options.cancel):
        ready = None if options.force else cache.find(key, plan.op, Roots.of(plan))
        if ready is not None:
            return ready
        options.precondition()
        jobs = job_count(plan)
        with _announced(plan, jobs, options):
            return _Build(plan, toolset, cache, find_ninja(), options, jobs).run(key)


@dataclass
class _Build:
    """One build under way."""

    plan: BuildPlan
    toolset: Toolset
    cache: Cache
    ninja: str
    options: BuildOptions
    jobs: int

    def run(self, key: PlanKey) -> Entry:
        """Compile until what was compiled is surely what the key says, then publish it.

        A file saved during the build may have been read before or after: its time tells. Then the
        build is done again; the second time, unchanged contents are proof whatever the clocks say.
        """
        before: BuildKey | None = None
        for _ in range(_ATTEMPTS):
            started_ns = time.time_ns()
            with self.cache.staging(self.plan.op) as staging, self.cache.errors_explained():
                commands = self._compile(staging)
                inspection = self._inspected(staging, staging / _LOG)
                try:
                    after = self._key(commands, staging)
                except HeaderGoneError as gone:
                    logger.info("%s vanished while '%s' was built; building again.", gone, self.plan.op)
                    continue
                settled = after.plan.digest == key.digest and not saved_since(started_ns, self.plan, after)
                if settled or (before is not None and after.digest == before.digest):
                    build_s = (time.time_ns() - started_ns) / 1e9
                    logger.info("Built '%s' in %.1f s.", self.plan.op, build_s)
                    artifact = staging / self.plan.artifact_name
                    return publish(self.cache, self.plan, artifact, after, inspection, build_s, keep=[_LOG])
            logger.info("Files of '%s' were saved during its build; building again.", self.plan.op)
            key, before = after.plan, after
        raise CacheError(
            f"The sources of '{self.plan.op}' changed during each of {_ATTEMPTS} builds.",
            "Load it again when nothing writes to its sources any more.",
        )

    def _compile(self, staging: Path) -> BuildCommands:
        for source in self.plan.sources:
            if source.text is not None:
                (staging / source.path).write_text(source.text, encoding="utf-8")
        log_path = staging / _LOG
        has_header = precompiled.offer(self.plan, self.toolset, self.cache, staging)
        commands = build_commands(self.plan, self.toolset, staging, precompiled=has_header)
        write_file(self.plan, commands, staging)
        if not self._run_ninja(commands, staging, log_path):
            raise _compile_error(self.plan, self.cache, log_path)
        return commands

    def _run_ninja(self, commands: BuildCommands, staging: Path, log_path: Path) -> bool:
        budget = self.options.budget or JobBudget(self.jobs)
        try:
            with budget.take(self.jobs, self.options.cancel) as jobs:
                logger.info("Building '%s': %d files, %d at a time.", self.plan.op, len(self.plan.sources), jobs)
                limits = Limits(jobs, env.ACCEL_COMPILE_TIMEOUT_S.get(), self.options.cancel)
                return run_ninja(self.ninja, staging, log_path, limits, self.options.progress)
        except ToolchainError as error:  # its time was up
            waiting = [
                step.source.label for step in commands.compile_steps if not (staging / step.object_name).exists()
            ]
            at = f"compiling {', '.join(waiting)}" if waiting else "linking"
            kept = _kept_log(self.plan, self.cache, log_path)
            raise ToolchainError(f"{error.message} It was {at}.\n  Full log: {kept}", error.remedy) from None

    def _inspected(self, staging: Path, log_path: Path) -> Inspection:
        artifact = staging / self.plan.artifact_name
        inspection = inspect(artifact, self.plan, self.toolset)
        try:
            kernels = try_kernels(artifact, self.plan, self.toolset, self.cache, log_path)
        except CompileError as error:
            kept = str(_kept_log(self.plan, self.cache, log_path))
            raise CompileError(self.plan.op, error.diagnostic, error.command, kept, error.remedy) from None
        return replace(inspection, check=f"{inspection.check}; {kernels}") if kernels else inspection

    def _key(self, commands: BuildCommands, staging: Path) -> BuildKey:
        key = plan_key(self.plan, self.toolset, self.cache.memo)
        depfiles = [staging / step.depfile for step in commands.compile_steps]
        missing = [path.name for path in depfiles if not path.exists()]
        if missing:
            raise ToolchainError(
                f"The compiler of '{self.plan.op}' wrote no list of the headers it read ({', '.join(missing)}), "
                "by which a changed header would be noticed.",
                "Use a compiler that knows -MD and -MF.",
            )
        linked = staging / LINKED_LIST
        return build_key(
            key,
            self.plan,
            depfiles,
            stamped_directories(self.plan, self.toolset),
            linked=linked if linked.exists() else None,
        )


def _compile_error(plan: BuildPlan, cache: Cache, log_path: Path) -> CompileError | CacheError:
    log = log_path.read_text(errors="replace")
    diagnosis = diagnose(log)
    # On a full disk the log itself may be cut before the compiler's complaint of it.
    cut_short = "error" not in diagnosis.diagnostic and shutil.disk_usage(log_path.parent).free < _LITTLE_BYTES
    if diagnosis.disk_full or cut_short:
        return disk_full(cache.root)
    kept = _kept_log(plan, cache, log_path)
    return CompileError(plan.op, diagnosis.diagnostic, diagnosis.command, str(kept), diagnosis.remedy)


def _kept_log(plan: BuildPlan, cache: Cache, log_path: Path) -> Path:
    """The log where it stays when the staging directory is gone."""
    kept = cache.writable_dir("logs") / f"{plan.op}-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.log"
    shutil.copyfile(log_path, kept)
    return kept


@contextmanager
def _announced(plan: BuildPlan, jobs: int, options: BuildOptions) -> Iterator[None]:
    """Tell once, if the build takes long, what is being done; unless somebody is told of every step."""
    if options.progress is not None:
        yield
        return
    count = len(plan.sources)
    files = f"{count} files, {jobs} at a time" if count > 1 else "1 file"
    message = f"Compiling '{plan.op}' ({files}), {_SILENT_S:.0f} s so far ..."
    later = threading.Timer(_SILENT_S, logger.warning, (message,))
    later.daemon = True
    later.start()
    try:
        yield
    finally:
        later.cancel()


@contextmanager
def _only_builder(cache: Cache, key: PlanKey, op: str, cancel: threading.Event) -> Iterator[None]:
    """Hold the lock of ``key`` so that ranks starting together compile once.

    The lock only saves double work. It dies with its process; where the file system knows no locks,
    or its holder does not end, the build goes on without: publishing is correct either way.

    Raises:
        BuildCancelled: it was told to stop while it waited.
    """
    path = cache.writable_dir("locks") / f"{op}-{key.digest}.lock"
    owner = path.with_suffix(".owner")
    with contextlib.ExitStack() as held:
        try:
            is_ours = _wait_for(held.enter_context(path.open("a")), owner, op, cancel)
        except OSError as error:
            logger.debug("no lock at %s: %s", path, error)
            is_ours = False
        if is_ours:
            held.callback(_write, owner, "")
            _write(owner, f"process {os.getpid()} on {os.uname().nodename}")
        yield


def _wait_for(file: IO[str], owner: Path, op: str, cancel: threading.Event) -> bool:
    """Take the lock of ``file``, saying now and then for whom that waits; False when that took too long.

    The lock is the kernel's alone: one that is a file's mere presence would outlive a killed process.

    Raises:
        OSError: the file system knows no locks.
    """
    started = time.monotonic()
    # Longer no build may take, so its process was stopped, or its host is gone and the lock was not let go.
    longest_s = env.ACCEL_COMPILE_TIMEOUT_S.get()
    announcements = _announcement_times()
    next_s = next(announcements)
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            waited_s = time.monotonic() - started
        if cancel.is_set():
            raise BuildCancelled("The build was stopped before it began.")
        if waited_s >= longest_s:
            logger.warning(
                "Op '%s' is not waited for any longer than %.0f s; it is compiled here, too. It was being built by %s.",
                *(op, waited_s, _read(owner)),
            )
            return False
        if waited_s >= next_s:
            next_s = next(announcements)
            logger.warning("Waiting since %.0f s for op '%s', built by %s.", waited_s, op, _read(owner))
        time.sleep(_POLL_S)


def _announcement_times() -> Iterator[float]:
    """Seconds of waiting after which it is told: ever more seldom, as every rank of a host does so."""
    yield _ANNOUNCE_WAIT_S
    yield from _ANNOUNCE_AGAIN_S
    yield from itertools.count(_ANNOUNCE_AGAIN_S[-1] + _ANNOUNCE_EVERY_S, _ANNOUNCE_EVERY_S)


def _read(path: Path) -> str:
    """Who holds the lock; what a killed process has written does not count."""
    with contextlib.suppress(OSError, ValueError):
        owner = path.read_text()
        _, pid, _, host = owner.split(" ", 3)
        if host != os.uname().nodename or process_lives(pid):
            return owner
    return "another process"


def _write(path: Path, text: str) -> None:
    with contextlib.suppress(OSError):
        path.write_text(text)
