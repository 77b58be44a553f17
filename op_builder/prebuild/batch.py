"""Build many ops into the cache, in parallel."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Container, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TypeVar

from op_builder.cache.store import Cache, Entry
from op_builder.engine.build import BuildOptions, build
from op_builder.engine.kernels import compile_kernels
from op_builder.errors import AccelError, BuildCancelled
from op_builder.load.lookup import Lookup
from op_builder.load.resolve import BUILD, CACHED, PYTHON, resolve
from op_builder.spec import OpSpec
from op_builder.system.target import Target
from op_builder.toolchains.jobs import JobBudget, allowed_jobs, job_bytes

OpProgress = Callable[[str, int, int, str], None]
"""Called with (op, finished steps, all steps or 0 if unknown, the last step)."""

T = TypeVar("T")
U = TypeVar("U")


@dataclass(frozen=True)
class OpResult:
    """One op's result: ``built``, ``cached``, ``skipped`` (incompatible with this machine), ``failed``, ``cancelled``.

    ``message`` is the reason, or for an available op what it lacks, such as SYCL kernels without a device.
    """

    op: str
    status: str
    seconds: float = 0.0
    message: str = ""
    path: str = ""


@dataclass(frozen=True)
class Batch:
    """Builds into the cache that run in parallel.

    Attributes:
        required: names of the ops that fail if they are incompatible with this machine; other ops are skipped.
        force: compile ops that are in the cache, too.
        progress: called at every step, from several threads.
        with_kernels: also compile all kernels of SYCL ops; otherwise a build compiles one of them.
        target: the platform to build for; None for this machine.
        namespace: torch namespace in which the library registers its ops when it is opened.
    """

    cache: Cache
    required: Container[str]
    force: bool
    progress: OpProgress
    with_kernels: bool = False
    target: Target | None = None
    namespace: str | None = None
    cancel: threading.Event = field(default_factory=threading.Event)

    def build_all(self, specs: Sequence[OpSpec]) -> list[OpResult]:
        """Build the ops; a failure of one does not affect the others."""
        for spec in specs:
            self.progress(spec.name, 0, 0, "checking")
        try:
            jobs = allowed_jobs([])  # checks compile small programs
        except AccelError:
            jobs = 1  # a variable cannot be parsed, and each op's checks report it
        prepared = self.run_parallel(self.prepare, specs, jobs)
        lookups = [found for found in prepared if isinstance(found, Lookup)]
        needs = [job_bytes(each.planned.plan) for each in lookups]
        total = allowed_jobs(needs) if needs else 1
        built = iter(self.run_parallel(functools.partial(self.build, budget=JobBudget(total)), lookups, total))
        return [found if isinstance(found, OpResult) else next(built) for found in prepared]

    def run_parallel(self, task: Callable[[T], U], items: Sequence[T], jobs: int) -> list[U]:
        """The task's result for each item, in order."""
        with ThreadPoolExecutor(max(1, min(len(items), jobs)), thread_name_prefix="build") as pool:
            try:
                return list(pool.map(task, items))
            except BaseException:  # Ctrl-C
                self.cancel.set()
                pool.shutdown(wait=True, cancel_futures=True)
                raise

    def prepare(self, spec: OpSpec) -> OpResult | Lookup:
        """The result of an op that need not be compiled, or what is needed to compile it."""
        found = self._guarded(spec.name, lambda: self._prepare(spec))
        self.progress(spec.name, 0, 0, found.status if isinstance(found, OpResult) else "waiting")
        return found

    def _prepare(self, spec: OpSpec) -> OpResult | Lookup:
        lookup = Lookup(spec, self.cache, target=self.target, namespace=self.namespace, to_load=False)
        candidates = resolve(lookup, (BUILD,) if self.force else (CACHED, BUILD))
        chosen = next(each for each in candidates if each.rejection is None or each.way in (BUILD, PYTHON))
        if chosen.rejection is not None:
            status = "failed" if spec.name in self.required else "skipped"
            return OpResult(spec.name, status, message=str(chosen.rejection))
        if chosen.way == PYTHON:
            return OpResult(spec.name, "skipped", message="It is Python code; nothing is compiled.")
        if chosen.entry is None:
            return lookup
        lookup.cache.note_use(chosen.entry)
        return self._done(lookup, chosen.entry, "cached")

    def build(self, lookup: Lookup, budget: JobBudget) -> OpResult:
        """Build one op; returns a failure as a result."""
        op = lookup.spec.name
        options = BuildOptions(functools.partial(self.progress, op), self.force, budget, self.cancel, is_shown=True)

        def compiled() -> OpResult:
            entry = build(*lookup.to_build(), lookup.cache, options)
            return self._done(lookup, entry, "built")

        result = self._guarded(op, compiled)
        self.progress(op, 0, 0, result.status)
        return result

    def _done(self, lookup: Lookup, entry: Entry, status: str) -> OpResult:
        """The result of an op with an entry; compiles its SYCL kernels if requested."""
        note = ""
        plan, toolset, *_ = lookup.planned
        if self.with_kernels and plan.sycl is not None and toolset is not None:
            self.progress(plan.op, 0, 0, "compiling kernels")
            reason = compile_kernels(entry.artifact, plan, toolset, lookup.cache)
            note = f"kernels not compiled: {reason}" if reason else ""
        return OpResult(plan.op, status, message=note, path=str(entry.artifact))

    def _guarded(self, op: str, step: Callable[[], T]) -> T | OpResult:
        """The result of ``step()``; it also gets its duration, an error becomes a ``failed`` one."""
        started = time.monotonic()
        result: T | OpResult
        try:
            result = step()
        except BuildCancelled as error:
            result = OpResult(op, "cancelled", message=str(error))
        except AccelError as error:
            result = OpResult(op, "failed", message=str(error))
        except Exception as error:  # another package's builder may raise anything
            result = OpResult(op, "failed", message=f"{type(error).__name__}: {error}")
        if isinstance(result, OpResult):
            return replace(result, seconds=round(time.monotonic() - started, 2))
        return result
