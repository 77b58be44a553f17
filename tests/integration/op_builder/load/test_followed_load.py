"""What one ``load()`` does: how often it plans, computes a key and looks up, and which modules it imports."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from op_builder.cache.key import plan_parts
from op_builder.cache.store import Cache
from op_builder.catalog.registry import find_builder
from op_builder.load.lookup import Lookup
from op_builder.load.resolve import BINARIES, resolve
from op_builder.plan import PlanFacts
from op_builder.spec import OpSpec
from tests.support.compilers import needs_gxx
from tests.support.entries import publish
from tests.support.followed_load import Follower
from tests.support.foreign_package import output_of

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
MOST = {"load": (27, 151), "sentence": (43, 213)}


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


def fused_adam(device: str) -> OpSpec:
    return find_builder("FusedAdamBuilder", f"op_builder.{device}")().spec()


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_binaries_in_wheels_cost_no_further_plan(device: str, tmp_path: Path, cache: Cache) -> None:
    root = tmp_path / "wheel" / "_prebuilt"
    # Flags may depend on the architectures, which are not those of this machine.
    for archs, flags in (("", {}), ("8.0;9.9", {"nvcc flags": '["-DBF16_AVAILABLE"]'})):
        parts = plan_parts(fused_adam("cuda" if archs else "cpu").plan(PlanFacts(cache.memo))) | flags
        entry = publish(cache, parts.pop("op").encode(), "fused_adam", **parts, **{"cuda archs": archs})
        shutil.move(entry.directory.parent, root / "ops" / "fused_adam" / entry.directory.parent.name)
    spec = fused_adam(device)._replace(prebuilt_roots=(root,), load_checks=lambda _: [])
    with Follower() as follower:
        found = [each for each in resolve(Lookup(spec, cache), BINARIES) if each.way == "prebuilt"]
    assert follower.counts == {"plan": 1, "key": 1, "look-up": 1}
    accepted = [each.entry.manifest.cuda_archs for each in found if each.entry is not None and each.rejection is None]
    assert (len(found), accepted) == (2, [["8.0", "9.9"]] if device == "cuda" else [[]])
