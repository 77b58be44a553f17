"""Builds and look-ups of a builder's op, step by step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from op_builder.builder import OpBuilder
from op_builder.cache.store import Cache, Entry
from op_builder.engine.build import BuildOptions, build
from op_builder.load.decision import Decision, decide
from op_builder.load.lookup import Lookup
from op_builder.load.resolve import BUILD, CACHED, PREBUILT, Candidate, resolve
from op_builder.prebuild.batch import Batch, OpResult
from op_builder.report.collect import OpRow, explain, op_row
from op_builder.spec import OpSpec
from op_builder.system.outcomes import unavailable


def lookup(builder: OpBuilder) -> Lookup:
    return Lookup(builder.spec(), builder.cache)


def compile_op(builder: OpBuilder, options: BuildOptions | None = None) -> Entry:
    return compile_spec(builder.spec(), builder.cache, options)


def compile_spec(spec: OpSpec, cache: Cache, options: BuildOptions | None = None) -> Entry:
    return build(*Lookup(spec, cache).to_build(), cache, options)


def find_cached(builder: OpBuilder) -> Entry | None:
    """The entry in the cache that was built from what the builder now has, for any device."""
    found = Lookup(builder.spec(), builder.cache, to_load=False)
    return next((each.entry for each in resolve(found, (CACHED,)) if each.rejection is None), None)


def cached_or_built(builder: OpBuilder) -> Entry:
    """The entry in the cache, or what ``load()`` would build; does not open it."""
    found = lookup(builder)
    for candidate in resolve(found, (CACHED, BUILD)):
        if candidate.rejection is None and candidate.entry is not None:
            return candidate.entry
    if candidate.rejection is not None:
        raise unavailable(builder.name, candidate.rejection)
    return compile_op(builder)


def decision(builder: OpBuilder) -> Decision:
    return decide(builder.spec(), lambda: builder.cache)


def prebuilt(builder: OpBuilder) -> Candidate | None:
    """The binary in a wheel that ``load()`` would use, else one that it ignores."""
    return decision(builder).prebuilt


def is_prebuilt(builder: OpBuilder) -> bool:
    return decision(builder).accepted(PREBUILT) is not None


def row_of(builder: OpBuilder) -> OpRow:
    """The report's row."""
    return op_row(builder.spec(), lambda: Cache(builder.cache.root, is_ours=False))


def explained(builder: OpBuilder) -> dict[str, Any]:
    """What the report shows for one op."""
    return explain(builder.spec(), lambda: Cache(builder.cache.root, is_ours=False))


def built_by_command(builders: Sequence[OpBuilder], required: Sequence[str] = (), **options: Any) -> list[OpResult]:
    """The results of ``python -m op_builder.build`` for builders that share a cache."""
    arguments = {"force": False, "progress": lambda *_: None, **options}
    return Batch(builders[0].cache, required, **arguments).build_all([each.spec() for each in builders])
