"""Builds and look-ups of a builder's op, step by step."""

from __future__ import annotations

from op_builder.builder import OpBuilder
from op_builder.cache.store import Entry
from op_builder.engine.build import BuildOptions
from op_builder.load.decision import Decision, decide
from op_builder.load.load import build, require_compatible
from op_builder.load.lookup import Lookup
from op_builder.load.resolve import Candidate


def lookup(builder: OpBuilder) -> Lookup:
    return Lookup(builder.spec(), builder.cache)


def compile_op(builder: OpBuilder, options: BuildOptions | None = None) -> Entry:
    return build(lookup(builder), options)


def cached_or_built(builder: OpBuilder) -> Entry:
    """The entry in the cache, or what ``load()`` would build; does not open it."""
    found = lookup(builder)
    return found.find_cached() or build(found, BuildOptions(precondition=lambda: require_compatible(found)))


def decision(builder: OpBuilder) -> Decision:
    return decide(builder.spec(), lambda: builder.cache)


def prebuilt(builder: OpBuilder) -> Candidate | None:
    """The binary in a wheel that ``load()`` would use, else one that it ignores."""
    return decision(builder).prebuilt


def is_prebuilt(builder: OpBuilder) -> bool:
    return decision(builder).is_installed
