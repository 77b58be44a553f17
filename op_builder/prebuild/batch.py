"""Build many ops into the cache, in parallel."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Container, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TypeVar

from op_builder.builder.base import OpBuilder
from op_builder.cache.store import Entry
from op_builder.engine.build import BuildOptions
from op_builder.engine.kernels import compile_kernels
from op_builder.errors import AccelError, BuildCancelled
from op_builder.load.load import build
from op_builder.load.lookup import Lookup
from op_builder.system.outcomes import failures
from op_builder.system.target import Target
from op_builder.toolchains.jobs import JobBudget, allowed_jobs, job_bytes

Report = Callable[[str, int, int, str], None]
"""Called with (op, finished steps, all steps or 0 if unknown, the last step)."""

T = TypeVar("T")
U = TypeVar("U")


@dataclass(frozen=True)
class Outcome:
    """One op's result: ``built``, ``cached``, ``skipped`` (incompatible with this machine), ``failed``, ``cancelled``.

    ``message`` is the reason, or for an available op what it lacks, such as SYCL kernels without a device.
    """

    op: str
    status: str
    seconds: float = 0.0
    message: str = ""
    path: str = ""


def build_all(
    builders: Sequence[OpBuilder],
    *,
    required: Container[str],
    force: bool,
    report: Report,
    with_kernels: bool = False,
    target: Target | None = None,
    namespace: str | None = None,
) -> list[Outcome]:
    """Build the ops into the cache in parallel; a failure of one does not affect the others.

    Args:
        required: names of the ops that fail if they are incompatible with this machine; other ops are skipped.
        force: compile ops that are in the cache, too.
        report: called at every step, from several threads.
        with_kernels: also compile all kernels of SYCL ops; otherwise a build compiles one of them.
        target: the platform to build for; None for this machine.
        namespace: torch namespace in which the library registers its ops when it is opened.
    """
    batch = _Batch(required, force, report, with_kernels, target, namespace)
    for builder in builders:
        report(builder.name, 0, 0, "checking")
    try:
        jobs = allowed_jobs([])  # checks compile small programs
    except AccelError:
        jobs = 1  # a variable cannot be parsed, and each op's checks report it
    prepared = batch.run_parallel(batch.prepare, builders, jobs)
    lookups = [found for found in prepared if isinstance(found, Lookup)]
    needs = [job_bytes(each.plan) for each in lookups]
    total = allowed_jobs(needs) if needs else 1
    built = iter(batch.run_parallel(functools.partial(batch.build, budget=JobBudget(total)), lookups, total))
    return [found if isinstance(found, Outcome) else next(built) for found in prepared]


@dataclass(frozen=True)
class _Batch:
    """Builds that run in parallel."""

    required: Container[str]
    force: bool
    report: Report
    with_kernels: bool
    target: Target | None
    namespace: str | None
    cancel: threading.Event = field(default_factory=threading.Event)

    def run_parallel(self, task: Callable[[T], U], items: Sequence[T], jobs: int) -> list[U]:
        """The task's result for each item, in order."""
        with ThreadPoolExecutor(max(1, min(len(items), jobs)), thread_name_prefix="build") as pool:
            try:
                return list(pool.map(task, items))
            except BaseException:  # Ctrl-C
                self.cancel.set()
                pool.shutdown(wait=True, cancel_futures=True)
                raise

    def prepare(self, builder: OpBuilder) -> Outcome | Lookup:
        """The outcome of an op that need not be compiled, or what is needed to compile it."""
        found = self._guarded(builder.name, lambda: self._prepare(builder))
        self.report(builder.name, 0, 0, found.status if isinstance(found, Outcome) else "waiting")
        return found

    def _prepare(self, builder: OpBuilder) -> Outcome | Lookup:
        spec, cache = builder.spec(), builder.cache
        lookup = Lookup(spec, cache, target=self.target, namespace=self.namespace)
        missing = failures(spec.build_checks(cache, lambda: lookup.plan))
        reasons = "; ".join(f"{failure.reason} {failure.remedy}" for failure in missing)
        if spec.unavailable is not None:
            reasons = f"{spec.unavailable.reason} {spec.unavailable.remedy}"
        reasons = reasons or spec.own_rejection() or ""
        if reasons:
            return Outcome(builder.name, "failed" if builder.name in self.required else "skipped", message=reasons)
        if spec.python is not None:
            return Outcome(builder.name, "skipped", message="It is Python code; nothing is compiled.")
        cached = None if self.force else lookup.find_cached()
        return lookup if cached is None else self._done(lookup, cached, "cached")

    def build(self, lookup: Lookup, budget: JobBudget) -> Outcome:
        """Build one op; returns a failure as an outcome."""
        op = lookup.plan.op
        options = BuildOptions(functools.partial(self.report, op), self.force, budget, self.cancel, is_shown=True)
        outcome = self._guarded(op, lambda: self._done(lookup, build(lookup, options), "built"))
        self.report(op, 0, 0, outcome.status)
        return outcome

    def _done(self, lookup: Lookup, entry: Entry, status: str) -> Outcome:
        """The outcome of an op with an entry; compiles its SYCL kernels if requested."""
        note = ""
        plan = lookup.plan
        if self.with_kernels and plan.sycl is not None and lookup.toolset is not None:
            self.report(plan.op, 0, 0, "compiling kernels")
            reason = compile_kernels(entry.artifact, plan, lookup.toolset, lookup.cache)
            note = f"kernels not compiled: {reason}" if reason else ""
        return Outcome(plan.op, status, message=note, path=str(entry.artifact))

    def _guarded(self, op: str, step: Callable[[], T]) -> T | Outcome:
        """The result of ``step()``; an outcome also gets its duration, an error becomes a ``failed`` one."""
        started = time.monotonic()
        result: T | Outcome
        try:
            result = step()
        except BuildCancelled as error:
            result = Outcome(op, "cancelled", message=str(error))
        except AccelError as error:
            result = Outcome(op, "failed", message=str(error))
        except Exception as error:  # another package's builder may raise anything
            result = Outcome(op, "failed", message=f"{type(error).__name__}: {error}")
        if isinstance(result, Outcome):
            return replace(result, seconds=round(time.monotonic() - started, 2))
        return result
