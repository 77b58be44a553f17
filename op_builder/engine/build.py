"""Building one plan: stage, compile, try, publish."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from op_builder import env
from op_builder.cache.compare import nearest_miss
from op_builder.cache.depfiles import HeaderGoneError
from op_builder.cache.failures import disk_full
from op_builder.cache.key import BuildKey, PlanKey, Roots, plan_key, plan_parts, saved_since
from op_builder.cache.layout import LOGS
from op_builder.cache.store import Cache, Entry, StagingGoneError
from op_builder.engine import precompiled
from op_builder.engine.commands import LINKED_LIST, BuildCommands, CompileStep, build_commands
from op_builder.engine.kernels import compile_kernels
from op_builder.engine.ninja import Progress, find_ninja, finished_outputs, run_ninja, write_file
from op_builder.engine.objects import Objects, key_of_steps
from op_builder.engine.publish import publish
from op_builder.engine.try_load import Inspection, inspect
from op_builder.errors import BuildCancelled, CacheError, CompileError, ToolchainError
from op_builder.messages import counted
from op_builder.plan import BuildPlan
from op_builder.system import ledger
from op_builder.system.file_kinds import kind_of_file
from op_builder.system.file_lock import ANNOUNCE_EVERY_S, SILENT_S, lock_within, owner_written
from op_builder.toolchains.diagnose import Diagnosis, diagnose
from op_builder.toolchains.flags import named_statuses, refuse_output
from op_builder.toolchains.jobs import JobBudget, job_count
from op_builder.toolchains.toolset import Toolset

logger = logging.getLogger(__name__)

_ATTEMPTS = 3
_RECOVERY_S = 1.0  # until the memory and the processes of killed compilers are free again
_LOG = "build.log"
_LITTLE_BYTES = 1 << 20
_MOST_NAMES = 3
_AT_LINE = re.compile(r"(/[^:(]+)[:(]\d+[:)]")  # file:line: error, nvcc's file(line): error
_FILE = re.compile(r"/[^\s:]+")


@dataclass(frozen=True)
class BuildOptions:
    """How a build is run; its result does not depend on it.

    Attributes:
        progress: called at every step.
        force: compile even if the cache has an entry, which is replaced only if it is damaged.
        budget: the compiler jobs that this build shares with others; None: all that are allowed.
        cancel: when set, the compilers are ended and the build raises BuildCancelled.
        on_start: called before anything is compiled, with how the nearest build in the cache differs; not if another
            process was faster.
        timeout_s: for all compilers together, and for waiting for another process's build; None for
            ``ACCEL_COMPILE_TIMEOUT_S``.
        is_shown: whether the caller shows the progress on a terminal; else a build that takes long logs it.
    """

    progress: Progress | None = None
    force: bool = False
    budget: JobBudget | None = None
    cancel: threading.Event = field(default_factory=threading.Event)
    on_start: Callable[[list[str]], object] | None = None
    timeout_s: float | None = None
    is_shown: bool = False


def build(plan: BuildPlan, key: PlanKey, toolset: Toolset, cache: Cache, options: BuildOptions | None = None) -> Entry:
    """The published entry of ``plan``: compiled now, or by another process that was faster.

    Raises:
        CompileError: the compiler or linker failed.
        LoadError: the binary was built but does not load.
        CacheError: the cache directory cannot be written, or the disk is full.
        ToolchainError: ninja is missing, or the build ran out of time.
    """
    options = options or BuildOptions()
    env.ACCEL_CACHE_MAX_MIB.get()  # it is used after the build, which an invalid value must not waste
    with _only_builder(cache, key, plan.op, options):
        # Not only after waiting for the lock: another process may have published the entry, and released the lock,
        # between the caller's look-up and this one.
        ready = None if options.force else cache.find(key, plan.op, Roots.of(plan))
        if ready is not None:
            return ready
        if options.on_start or ledger.mode_and_file() or logger.isEnabledFor(logging.INFO):
            _report_miss(plan, key, cache, options)
        jobs = job_count(plan)
        position = _Position(lambda: list(dict.fromkeys(source.label for source in plan.sources)))
        with _announced_if_long(plan, jobs, options, position) as options:
            attempt = _Build(plan, toolset, cache, options, find_ninja(), jobs, position)
            try:
                return attempt.run(key)
            except StagingGoneError as error:
                logger.warning("%s Building it again.", error.message)
                return attempt.run(key)


def _report_miss(plan: BuildPlan, key: PlanKey, cache: Cache, options: BuildOptions) -> None:
    """Report why no entry is used. Comparing with all entries of the op takes time."""
    nearest, reasons = None, ["it was requested"]
    if not options.force:
        nearest, differences = nearest_miss(cache.entries(plan.op), key, Roots.of(plan), cache.memo)
        reasons = differences or ["the equal entry cannot be used" if nearest else f"the cache contains no '{plan.op}'"]
    ledger.append("missed", plan.op, "; ".join(reasons))
    if nearest is not None:
        logger.info("The cached '%s' is not used: %s.", plan.op, "; ".join(reasons))
    if options.on_start is not None:
        options.on_start(reasons)


@dataclass
class _Position:
    """How far a build is: the steps that are done, and the sources that are not compiled yet."""

    unfinished: Callable[[], list[str]]
    done: str = "0 steps done"

    def __str__(self) -> str:
        names = self.unfinished()
        more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
        return f"{self.done}, not yet compiled: {', '.join(names[:_MOST_NAMES])}{more}" if names else self.done


@dataclass(frozen=True)
class _Build:
    """One build under way."""

    plan: BuildPlan
    toolset: Toolset
    cache: Cache
    options: BuildOptions
    ninja: str
    jobs: int
    position: _Position

    def run(self, key: PlanKey) -> Entry:
        """Compile until the compiled files certainly match the key, then publish the result.

        A file saved during the build may have been read before or after, so its time is checked, and the build
        repeated; the second time, unchanged contents are proof, regardless of file times.
        """
        before: BuildKey | None = None
        saved: list[str] = []
        flags = [*self.plan.compile_flags, *self.plan.link_flags, *self.toolset.cxx.flags]
        for attempt in range(_ATTEMPTS):
            started_ns = time.time_ns()
            with self.cache.staging(self.plan.op) as staging, self.cache.errors_explained():
                objects = Objects(self.cache, self.plan, self.toolset)
                restored = set() if attempt or self.options.force else objects.restore(key, staging)
                commands = self._commands(staging)
                known = _files_in(staging) | commands.outputs | {self.plan.artifact_name, _LOG}
                outputs = [self.plan.artifact_name, *(step.object_name for step in commands.compile_steps)]
                named = named_statuses(flags, staging, outputs)
                steps = [step for step in commands.compile_steps if step.object_name not in restored]
                try:
                    self._compile(commands, steps, staging, known)
                finally:
                    others = sorted(_files_in(staging) - known)
                    present = named_statuses(flags, staging, outputs)
                    saved = [name for name, now in present.items() if named.get(name) != now]
                    finished = finished_outputs(staging)
                    killed = tuple(step.object_name.removesuffix(".o") for step in _unfinished(steps, staging))
                    # A killed compiler leaves files that begin with its object's name.
                    if not saved and all(name.startswith(killed) for name in others) and self._has_same_sources(key):
                        objects.store(key, staging, finished, started_ns)
                self._require_one_output([*others, *(name for name in saved if named.get(name) is None)], staging)
                inspection = self._inspected(staging)
                try:
                    after = self._build_key(key, commands, staging)
                except HeaderGoneError as missing:
                    logger.info("%s vanished while '%s' was built; building again.", missing, self.plan.op)
                    continue
                unchanged = self._has_same_sources(key) and not saved_since(started_ns, self.plan, after)
                if not saved and (unchanged or (before is not None and after.digest == before.digest)):
                    build_s = (time.time_ns() - started_ns) / 1e9
                    logger.info("Built '%s' in %.1f s.", self.plan.op, build_s)
                    artifact = staging / self.plan.artifact_name
                    return publish(self.cache, self.plan, artifact, after, inspection, build_s, keep=[_LOG])
            logger.info("Files of '%s' were saved during its build; building again.", self.plan.op)
            key = plan_key(self.plan, self.toolset, self.cache.memo)
            before = after._replace(plan=key)
        if saved:
            what = f"name {saved[0]}, which changed during each of {_ATTEMPTS} builds"
            refuse_output(self.plan.op, what, "Load the op again if another program is writing the file. ")
        raise CacheError(
            f"The sources of '{self.plan.op}' changed during each of {_ATTEMPTS} builds.",
            "Load it again when its sources are no longer being written.",
        )

    def _commands(self, staging: Path) -> BuildCommands:
        """All commands of the build; writes the sources and the header that they need."""
        for source in self.plan.sources:
            if source.text is not None:
                (staging / source.path).write_text(source.text, encoding="utf-8", errors="surrogateescape")
        has_header = precompiled.offer(self.plan, self.toolset, self.cache, staging)
        return build_commands(self.plan, self.toolset, staging, precompiled=has_header)

    def _compile(self, commands: BuildCommands, steps: Sequence[CompileStep], staging: Path, known: set[str]) -> None:
        """Run ``steps`` of the compile steps, and the others; ``known`` are the files that they may write."""
        write_file(self.plan, commands, steps, staging)
        self.position.unfinished = lambda: [step.label for step in _unfinished(steps, staging)]
        budget = self.options.budget or JobBudget(self.jobs)
        try:
            with budget.take(self.jobs, self.options.cancel) as jobs:
                logger.info("Building %s.", _description(self.plan, jobs))
                if len(steps) < len(commands.compile_steps):
                    logger.info(
                        "Compiling %d of %d objects; earlier builds have compiled the others.",
                        len(steps),
                        len(commands.compile_steps),
                    )
                self._run(steps, staging, jobs, known)
                self.position.unfinished = list
        except ToolchainError as error:  # the build timed out
            waiting = self.position.unfinished()
            at = f"compiling {', '.join(waiting)}" if waiting else "linking"
            message = f"{error.message} It was {at}.\n  Full log: {self._kept_log(staging)}"
            raise ToolchainError(message, error.remedy) from None

    def _run(self, steps: Sequence[CompileStep], staging: Path, jobs: int, known: set[str]) -> None:
        """Run ninja, again with half the jobs if memory, processes or disk space did not suffice for all."""
        while True:
            jobs = max(1, min(jobs, len(_unfinished(steps, staging))))
            command = [self.ninja, "-j", str(jobs)]
            status = run_ninja(
                *(command, staging, staging / _LOG, self.options.cancel, self.options.progress, self.options.timeout_s),
                is_for_target=self.toolset.is_for_target,
            )
            if status == 0:
                return
            ended = f"ninja: fatal: {signal.strsignal(-status)}" if status < 0 else ""
            diagnosis = diagnose((staging / _LOG).read_text(errors="replace") or ended)
            if jobs == 1 or not (status == -signal.SIGKILL or diagnosis.shortage):
                raise self._compile_error(diagnosis, staging)
            jobs = max(1, min(jobs, len(_unfinished(steps, staging))) // 2)
            logger.warning(
                "The machine cannot run so many compilers of '%s' together (%s); resuming with %d at a time.",
                *(self.plan.op, diagnosis.diagnostic.partition("\n")[0], jobs),
            )
            for name in _files_in(staging) - known:  # of killed compilers
                (staging / name).unlink(missing_ok=True)
            self.options.cancel.wait(_RECOVERY_S)

    def _compile_error(self, diagnosis: Diagnosis, staging: Path) -> CompileError | CacheError:
        # On a full disk the log may end before the compiler's message about it.
        cut_short = "error" not in diagnosis.diagnostic and shutil.disk_usage(staging).free < _LITTLE_BYTES
        if diagnosis.disk_full or cut_short:
            return disk_full(self.cache.root)
        log, remedy = self._kept_log(staging), _remedy_of_file(diagnosis.diagnostic) or diagnosis.remedy
        return CompileError(self.plan.op, diagnosis.diagnostic, diagnosis.command, log, remedy)

    def _inspected(self, staging: Path) -> Inspection:
        artifact = staging / self.plan.artifact_name
        inspection = inspect(artifact, self.plan, self.toolset)
        try:
            reason = compile_kernels(artifact, self.plan, self.toolset, self.cache, limit=1, log_path=staging / _LOG)
        except CompileError as error:
            log = self._kept_log(staging)
            raise CompileError(self.plan.op, error.diagnostic, error.command, log, error.remedy) from None
        if reason is None:
            return inspection
        kernels = f"no kernel compiled: {reason}" if reason else "a kernel compiled"
        return replace(inspection, check=f"{inspection.check}; {kernels}")

    def _has_same_sources(self, key: PlanKey) -> bool:
        return all(key.parts.get(name) == text for name, text in plan_parts(self.plan).items())

    def _build_key(self, key: PlanKey, commands: BuildCommands, staging: Path) -> BuildKey:
        missing = [step.depfile for step in commands.compile_steps if not (staging / step.depfile).exists()]
        if missing:
            raise ToolchainError(
                f"The compiler of '{self.plan.op}' wrote no list of the headers it read ({', '.join(missing)}), "
                "so changes of headers would not be noticed.",
                "Use a compiler that supports -MD and -MF.",
            )
        linked = staging / LINKED_LIST
        built = key_of_steps(key, self.plan, self.toolset, staging, commands.compile_steps, linked)
        if built.unlisted:
            inputs = ", ".join(built.unlisted)
            logger.warning("Each process builds '%s' again: no tool lists the inputs of %s.", self.plan.op, inputs)
        return built

    def _require_one_output(self, others: list[str], staging: Path) -> None:
        """Refuse a build whose compilers write ``others``, or whose binary writes into the staging directory."""
        # GCC's profiling writes its counts next to the object when the process ends.
        artifact = staging / self.plan.artifact_name
        is_named = artifact.exists() and os.fsencode(f"{os.path.realpath(staging)}/") in artifact.read_bytes()
        if others or is_named:
            what = f"the file {others[0]}" if others else "files that the op writes when the process ends"
            refuse_output(self.plan.op, f"request {what}")

    def _kept_log(self, staging: Path) -> str:
        """A copy of the log that stays when the staging directory is removed."""
        # Down to the nanosecond: two builds may fail in the same second.
        second, fraction_ns = divmod(time.time_ns(), 1_000_000_000)
        name = f"{self.plan.op}-{time.strftime('%Y%m%d-%H%M%S', time.localtime(second))}-{fraction_ns:09}.log"
        kept = self.cache.writable_dir(LOGS) / name
        shutil.copyfile(staging / _LOG, kept)
        return str(kept)


def _require_not_cancelled(options: BuildOptions) -> None:
    if options.cancel.is_set():
        raise BuildCancelled("The build was cancelled before it began.")


def _remedy_of_file(diagnostic: str) -> str:
    """What to do if a file that a diagnostic names is not what the compiler or linker expects; else empty."""
    text = _AT_LINE.match(diagnostic)
    for name in [text[1]] if text is not None else _FILE.findall(diagnostic):
        if kind := kind_of_file(name, expected="" if text is None else "text"):
            return f"{name} is {kind[0]}. {kind[1]}"
    return ""


def _unfinished(steps: Iterable[CompileStep], staging: Path) -> list[CompileStep]:
    """The steps whose objects are not compiled yet; a source in parts has several."""
    finished = finished_outputs(staging)
    return [step for step in steps if step.object_name not in finished]


def _files_in(staging: Path) -> set[str]:
    """The names of the files, except for ninja's."""
    is_ninjas = ("build.ninja", ".ninja")
    return {path.name for path in staging.iterdir() if path.is_file() and not path.name.startswith(is_ninjas)}


def _description(plan: BuildPlan, jobs: int) -> str:
    count = len({source.path for source in plan.sources})
    return f"'{plan.op}' ({counted(count, 'file')}{f', {jobs} compilers at a time' if len(plan.sources) > 1 else ''})"


@contextmanager
def _announced_if_long(
    plan: BuildPlan, jobs: int, options: BuildOptions, position: _Position
) -> Iterator[BuildOptions]:
    """Options with which a long build logs its progress now and then, unless the caller shows it."""
    if options.is_shown:
        yield options
        return
    what = _description(plan, jobs)
    ended = threading.Event()

    def note(done: int, total: int, step: str) -> None:
        position.done = f"{done} of {total} steps done" if done < total else "trying to load the new library"
        if options.progress is not None:
            options.progress(done, total, step)

    def report() -> None:
        started, wait_s = time.monotonic(), SILENT_S
        while not ended.wait(wait_s):
            logger.warning("Still building %s: %s (%.0f s).", what, position, time.monotonic() - started)
            wait_s = min(3 * wait_s, ANNOUNCE_EVERY_S)

    reporter = threading.Thread(target=report, name="accel-ops build", daemon=True)
    with contextlib.suppress(RuntimeError):  # no thread may start here, but perhaps a compiler
        reporter.start()
    try:
        yield replace(options, progress=note)
    finally:
        ended.set()
        if reporter.is_alive():
            reporter.join()


@contextmanager
def _only_builder(cache: Cache, key: PlanKey, op: str, options: BuildOptions) -> Iterator[None]:
    """Hold the lock of ``key`` so that ranks starting together compile once.

    The lock only saves double work. The kernel releases it when its process ends. Where the file system has no
    locks, or the holder takes too long, the build proceeds without it: publishing is correct either way.

    Raises:
        BuildCancelled: it was cancelled while it waited.
    """
    name = f"{op}-{key.digest}.lock"
    # No build may take longer: its process was stopped, or its host is down and the lock was not released.
    longest_s = env.ACCEL_COMPILE_TIMEOUT_S.get() if options.timeout_s is None else options.timeout_s
    with contextlib.ExitStack() as stack:
        try:
            file = stack.enter_context(cache.lock_file(name))
            if lock_within(file, longest_s, f"builds op '{op}'", lambda: _require_not_cancelled(options)):
                stack.enter_context(owner_written(file))
        except CacheError:
            raise
        except OSError as error:
            logger.debug("no lock %s: %s", name, error)
        yield
