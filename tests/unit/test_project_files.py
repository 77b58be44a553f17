"""What pyproject.toml and CITATION.cff repeat of facts that are elsewhere."""

from __future__ import annotations

import importlib
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from accel_ops_build.target import TORCH

ROOT = Path(__file__).resolve().parents[2]
PROJECT = (ROOT / "pyproject.toml").read_text(encoding="utf-8")


def test_uv_knows_every_variable_that_requests_an_op() -> None:
    modules = [importlib.import_module(f"op_builder.{device}") for device in ("cpu", "cuda", "xpu")]
    builders = [getattr(module, name) for module in modules for name in module.__all__ if name.endswith("Builder")]
    switches = {builder.BUILD_VAR for builder in builders if getattr(builder, "NAME", "")}
    assert len(switches) > 10
    names = {"ACCEL_BUILD_OPS", "ACCEL_BUILD_TORCH", *switches}
    expected = "".join(f'  {{ env = "{name}" }},\n' for name in sorted(names))
    assert set(re.findall(r'env = "(ACCEL_BUILD_\w+)"', PROJECT)) == names, f"[tool.uv] in pyproject.toml:\n{expected}"


def test_the_torch_that_a_build_requests_is_the_one_that_the_project_requires() -> None:
    assert f'\n  "{TORCH}",\n' in PROJECT


def test_the_citation_has_what_its_format_requires_and_no_second_version() -> None:
    lines = (ROOT / "CITATION.cff").read_text(encoding="utf-8").splitlines()
    keys = dict(line.split(":", 1) for line in lines if line[:1].isalpha())
    assert {"cff-version", "message", "title", "authors"} <= set(keys)
    assert (keys["cff-version"].strip(), keys["license"].strip()) == ("1.2.0", "Apache-2.0")
    assert "version" not in keys  # op_builder/_version.py has it


def test_git_ignores_prebuilt_ops_in_a_checkout() -> None:
    if not (ROOT / ".git").exists() or shutil.which("git") is None:
        pytest.skip("this is no git checkout")
    for name in ("wheel.json", "ops/cpu_adam/a/b/manifest.json", "ops/cpu_adam/a/b/cpu_adam.so"):
        subprocess.run(["git", "check-ignore", "-q", f"op_builder/_prebuilt/{name}"], cwd=ROOT, check=True)


@pytest.mark.parametrize("template", ["my_ops", "acme_accel"])
def test_templates_name_this_project_by_its_place_alone(template: str) -> None:
    """Whoever owns the bare name on a package index would run code in the builds of those who copy them."""
    settings = (ROOT / "examples" / template / "pyproject.toml").read_text(encoding="utf-8")
    named = re.findall(r'"(accel-ops[^"]*)"', settings)
    assert named == ["accel-ops-build @ file:///path/to/accel-ops/build_tools"]
