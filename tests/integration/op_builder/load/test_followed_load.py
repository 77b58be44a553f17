"""What one ``load()`` does: how often it plans, computes a key and looks up, and which modules it imports."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from op_builder.cache.store import Cache
from op_builder.load.lookup import Lookup
from op_builder.load.resolve import BINARIES, resolve
from op_builder.plan import BuildPlan, PlanFacts
from tests.support.compilers import needs_gxx
from tests.support.entries import publish
from tests.support.foreign_package import output_of
from tests.support.small_ops import make_small

# docs/architecture.md gives the reasons.
NOT_FOR_A_WARM_LOAD = (
    "op_builder.engine.",
    "op_builder.report",
    "op_builder.prebuild",
    "op_builder.builder.cuda",
    "op_builder.builder.sycl",
    "op_builder.builder.inline",
    "op_builder.builder.extension",
    "op_builder.catalog.gpu_builders",
    "op_builder.catalog.registered_ops",
    "op_builder.load.decision",
    "op_builder.load.prebuilt",
    *(f"op_builder.cache.{name}" for name in ("bundle", "compare", "depfiles", "eviction", "removal", "staging")),
    *(f"op_builder.toolchains.{name}" for name in ("checks", "compiler_probe", "cuda", "diagnose", "probes", "sycl")),
)


def followed(builder: str, **variables: str) -> dict[str, Any]:
    return dict(json.loads(output_of("-m", "tests.support.followed_load", builder, **variables)))


# Files and functions of this project; docs/architecture.md has the figures.
MOST = {"load": (27, 128), "sentence": (43, 192)}


@needs_gxx
def test_the_whole_sentence_plans_once_computes_one_key_and_looks_up_once(tmp_path: Path) -> None:
    cold = followed("CPUAdamBuilder", ACCEL_CACHE_DIR=str(tmp_path / "cache"))
    # The engine looks once more, under its lock: another process may have built the op since.
    assert cold["counts"] == {"plan": 1, "key": 1, "look-up": 2}
    warm = followed("CPUAdamBuilder", ACCEL_CACHE_DIR=str(tmp_path / "cache"), ACCEL_JIT="0")
    assert warm["counts"] == {"plan": 1, "key": 1, "look-up": 1}
    for part, (files, functions) in MOST.items():
        assert len(warm[part]["files"]) <= files, warm[part]["files"]
        assert len(warm[part]["functions"]) <= functions, warm[part]["functions"]
    assert [name for name in warm["modules"] if name.startswith(NOT_FOR_A_WARM_LOAD)] == []


def test_binaries_in_wheels_cost_no_further_plan(tmp_path: Path, cache: Cache) -> None:
    small = make_small(tmp_path / "op", cache)
    made: list[PlanFacts] = []

    def plan(facts: PlanFacts) -> BuildPlan:
        made.append(facts)
        return small.plan_for(facts)

    root = tmp_path / "wheel" / "_prebuilt"
    for content in (b"one", b"another"):  # of other plans
        entry = publish(cache, content, **{"source 0 small.cpp": content.hex()})
        shutil.move(entry.directory.parent, root / "ops" / "small" / entry.directory.parent.name)
    lookup = Lookup(small.spec()._replace(plan=plan, prebuilt_roots=(root,)), cache)
    ways = [each.way for each in resolve(lookup, BINARIES)]
    assert ways.count("prebuilt") == 2
    assert len(made) == 1
