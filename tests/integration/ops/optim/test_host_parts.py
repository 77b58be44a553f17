"""The objects of which a host optimizer's kernel consists, one for each instruction set."""

from __future__ import annotations

import platform
import re
import subprocess
from pathlib import Path

import pytest

from op_builder.cache.store import Cache
from op_builder.engine.commands import compile_steps
from op_builder.ops.declare import optimizer_recipe
from op_builder.plan import PlanFacts
from op_builder.recipe import Recipe, plan_of
from op_builder.toolchains.toolset import find_toolset
from tests.support.compilers import needs_gxx


def functions_of_objects(recipe: Recipe, kernel: str, cache: Cache, directory: Path) -> list[set[str]]:
    """The functions that each object of a kernel defines; compiled without optimization, which takes a second."""
    plan = plan_of(recipe, PlanFacts(cache.memo))
    found = []
    for step in compile_steps(plan, find_toolset(plan, cache.memo)):
        if step.source.path.name == kernel:
            subprocess.run([*step.command, "-O0"], cwd=directory, check=True)
            command = ["nm", "--defined-only", step.object_name]
            listed = subprocess.run(command, cwd=directory, check=True, capture_output=True, text=True).stdout
            found.append(set(re.findall(r" T (\S+)", listed)))
    return found


@needs_gxx
@pytest.mark.skipif(platform.machine() != "x86_64", reason="other machines have fewer instruction sets")
def test_each_object_has_the_functions_of_one_instruction_set_and_all_are_those_of_one_file(tmp_path: Path) -> None:
    recipe, cache = optimizer_recipe("cpu_sgd"), Cache(tmp_path / "cache")
    parts = functions_of_objects(recipe, "sgd.cpp", cache, tmp_path)
    (whole,) = functions_of_objects(recipe._replace(parts={}), "sgd.cpp", cache, tmp_path)
    for part, isa in zip(parts, ("baseline", "avx2", "avx512"), strict=True):
        assert part == {name for name in whole if isa in name} != set()
    assert set().union(*parts) == whole
