"""The report as data, from the same functions that ``load()`` calls."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from op_builder.cache.compare import nearest_miss
from op_builder.cache.store import Cache
from op_builder.catalog.named import find_op
from op_builder.catalog.registry import all_specs, registered_packages
from op_builder.device import accelerator_facts, current_accelerator, current_package
from op_builder.engine.commands import build_commands
from op_builder.errors import AccelError
from op_builder.load.decision import Decision, decide
from op_builder.load.lookup import Lookup, Planned
from op_builder.load.prebuilt import INDEX, read_index
from op_builder.load.resolve import CACHED, PREBUILT, Candidate
from op_builder.plan import BuildPlan
from op_builder.report import machine
from op_builder.spec import OpSpec
from op_builder.system.outcomes import Failed, Rejection, facts_of, guarded
from op_builder.system.records import RecordError


@dataclass(frozen=True)
class OpRow:
    """One op in the report; ``reason`` and ``remedy`` are empty if it is compatible."""

    name: str
    builder: str
    installed: bool
    cached: bool
    compatible: bool
    reason: str
    remedy: str
    summary: str
    prebuilt: dict[str, Any] | None


def read_only_cache() -> Cache:
    """The cache, in which damaged entries stay."""
    return Cache(is_ours=False)


def op_row(spec: OpSpec, open_cache: Callable[[], Cache] = read_only_cache) -> OpRow:
    """The report's row for one op."""
    return _row(spec, decide(spec, open_cache))


def _row(spec: OpSpec, found: Decision) -> OpRow:
    reason, remedy = found.rejection or Rejection("")
    notes = []
    plan = guarded("plan", lambda: found.lookup.planned.plan if found.lookup is not None else None)
    if isinstance(plan, BuildPlan) and plan.missing_dirs:
        notes.append(f"Include directories that do not exist are ignored: {', '.join(plan.missing_dirs)}.")
    prebuilt = found.prebuilt
    if prebuilt is not None and prebuilt.rejection is not None:
        notes.append(f"The prebuilt binary is ignored. {prebuilt.rejection}")
    return OpRow(
        name=spec.name,
        builder=spec.builder,
        installed=found.accepted(PREBUILT) is not None,
        cached=found.accepted(CACHED) is not None,
        compatible=found.rejection is None,
        reason=" ".join(filter(None, [reason, *notes])),
        remedy=remedy,
        summary=spec.summary,
        prebuilt=_entry(prebuilt),
    )


def report(progress: Callable[[str], None] = lambda _: None) -> dict[str, Any]:
    """The whole report for JSON: ``accelerator``, ``ops``, ``wheels``, ``registered``, ``environment``.

    Sizes are bytes.

    Args:
        progress: called with the name of each item before it is checked.
    """
    progress("accelerator")
    accelerator, package = _accelerator()
    rows = []
    specs = all_specs(package)
    for spec in specs:
        progress(spec.name)
        rows.append(asdict(op_row(spec)))
    progress("environment")
    return {
        "accelerator": accelerator,
        "ops": rows,
        "wheels": _wheels(specs),
        "registered": _registered(package),
        "environment": machine.environment(),
    }


def diagnosis(ops: Sequence[str] = ()) -> dict[str, Any]:
    """What works and what does not: ``working`` and ``unavailable`` (names of ops; the latter are for other devices),
    and ``rejected`` (``name``, ``reason``, ``remedy``).

    Args:
        ops: only these; empty for every op of the device, and facts about the machine.

    Raises:
        UnknownOpError: an op does not exist.
    """
    specs = [find_op(name) for name in ops] if ops else all_specs(_accelerator()[1])
    unavailable = [] if ops else [spec.name for spec in specs if spec.unavailable is not None and spec.owner is None]
    rows = [op_row(spec) for spec in specs if spec.name not in unavailable]
    error = accelerator_error()
    rejected = [] if error is None else [{"name": "accelerator", "reason": error.message, "remedy": error.remedy}]
    rejected += [{"name": row.name, "reason": row.reason, "remedy": row.remedy} for row in rows if not row.compatible]
    if not ops:
        parts = machine.parts()
        rejected += [
            {"name": name, "reason": part["error"], "remedy": part["remedy"]}
            for name, part in parts.items()
            if "error" in part
        ]
    return {"working": [row.name for row in rows if row.compatible], "unavailable": unavailable, "rejected": rejected}


def explain(spec: OpSpec, open_cache: Callable[[], Cache] = read_only_cache) -> dict[str, Any]:
    """One op in full: its row, checks, cache entry, plan, key and commands."""
    found = decide(spec, open_cache)
    lookup, cached = found.lookup, found.accepted(CACHED)
    checks = [*lookup.build_checks, *lookup.load_checks] if lookup is not None else []
    explained: dict[str, Any] = {
        **asdict(_row(spec, found)),
        "checks": [{"passed": not isinstance(outcome, Failed), **facts_of(outcome)} for outcome in checks],
        "cache_entry": _entry(cached),
    }
    planned = guarded("key", lambda: lookup.planned) if lookup is not None else None
    if lookup is None or not isinstance(planned, Planned):
        return {**explained, "miss": None, "plan": None, "key": None, "commands": []}
    plan, toolset, key, _ = planned
    explained["miss"] = _miss(lookup) if cached is None else None
    explained["plan"] = {
        "binding": plan.binding.value,
        "artifact": plan.artifact_name,
        "sources": [
            {"label": source.label, "path": str(source.path), "flags": list(source.flags)} for source in plan.sources
        ],
        "include_dirs": [str(path) for path in plan.include_dirs],
        **{name: list(getattr(plan, name)) for name in ("cxx_flags", "nvcc_flags", "cuda_archs", "link_flags")},
    }
    explained["key"] = {"digest": key.digest, "parts": dict(key.parts)}
    commands: list[str] = []
    if toolset is not None:
        built = build_commands(plan, toolset)
        steps = [*(step.command for step in built.compile_steps), built.device_link]
        steps += [*built.stand_ins.values(), built.link]
        commands = [shlex.join(step) for step in steps if step]
    return {**explained, "commands": commands}


def accelerator_error() -> AccelError | None:
    """Why no accelerator can be used, such as an unknown ``ACCEL_ACCELERATOR``; None if one can."""
    try:
        current_accelerator()
    except AccelError as error:
        return error
    return None


def _accelerator() -> tuple[dict[str, Any], str]:
    """The facts about the accelerator, and the package of its builders."""
    error = accelerator_error()
    if error is not None:  # the rest of the report does not depend on the accelerator
        return {"name": None, "error": str(error)}, "op_builder.host"
    accelerator = current_accelerator()
    return {"name": accelerator.device_name(), "error": None, **accelerator_facts(accelerator)}, current_package()


def _registered(package: str) -> list[dict[str, Any]]:
    """The ops that other packages register, and why others are missing."""
    return [
        {
            "label": other.label,
            "module": other.module,
            "ops": list(dict.fromkeys(cls.NAME for cls in other.classes.values())),
            "reasons": list(other.reasons),
        }
        for other in registered_packages(package)
    ]


def _miss(lookup: Lookup) -> dict[str, Any]:
    """Why no entry of the cache matches: it is damaged, or it differs from what would be built."""
    cache = lookup.cache
    for directory, rejection in cache.damaged.items():
        return {"nearest": str(directory), "differences": [f"{rejection.reason} It will be moved away and rebuilt."]}
    plan, _, key, roots = lookup.planned
    nearest, differences = nearest_miss(cache.entries(plan.op), key, roots, cache.memo)
    return {"nearest": None if nearest is None else str(nearest.directory), "differences": differences}


def _wheels(specs: Iterable[OpSpec]) -> list[dict[str, Any]]:
    """The index of each wheel with prebuilt ops, or why it cannot be read."""
    wheels = []
    for root in dict.fromkeys(root for spec in specs for root in spec.prebuilt_roots):
        try:
            index = read_index(root)
        except RecordError as error:
            index = {"reason": f"{INDEX} cannot be read: {error}. Reinstall the package."}
        if index is not None:
            wheels.append({"package": root.parent.name, "directory": str(root), **index})
    return wheels


def _entry(found: Candidate | None) -> dict[str, Any] | None:
    if found is None:
        return None
    entry, reason = found.entry, None if found.rejection is None else found.rejection.reason
    facts: dict[str, Any] = {"directory": str(found.directory), "rejected": reason}
    if entry is None:
        return facts
    manifest = entry.manifest
    return {
        **facts,
        "size_bytes": manifest.size_bytes,
        "built_at": manifest.built_at,
        "build_s": manifest.build_s,
        "torch": manifest.torch,
        "torch_needed": manifest.torch_needed,
        "python_needed": manifest.python_needed,
        "platform": manifest.key_parts.get("platform"),
        "cuda_archs": manifest.cuda_archs,
        "compilers": manifest.compilers,
        "sha256": manifest.sha256,
        "check": manifest.check,
        "headers": len(manifest.headers),
    }
