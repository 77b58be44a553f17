"""What the project's settings and its documentation repeat of facts that are elsewhere."""

from __future__ import annotations

import ast
import importlib
import os
import re
from pathlib import Path

import pytest
from accel_ops_build.target import TORCH

from op_builder.catalog.index import families
from op_builder.toolchains import oneccl, sycl_runtime

ROOT = Path(__file__).resolve().parents[2]
PROJECT = (ROOT / "pyproject.toml").read_text(encoding="utf-8")


def _sources(package: str, *suffixes: str) -> list[Path]:
    """Not what builds of other tests make and remove meanwhile."""
    found = []
    for directory, below, files in os.walk(ROOT / package):
        below[:] = [name for name in below if name != "build" and not name.endswith(".egg-info")]
        found += [Path(directory, name) for name in files if name.endswith(suffixes)]
    return found


def test_uv_knows_every_variable_that_requests_an_op() -> None:
    switches = {f"ACCEL_BUILD_{family.name.upper()}" for family in families() if family.is_native}
    assert len(switches) > 10
    names = {"ACCEL_BUILD_OPS", "ACCEL_BUILD_TARGET", "ACCEL_BUILD_TORCH", *switches}
    expected = "".join(f'  {{ env = "{name}" }},\n' for name in sorted(names))
    assert set(re.findall(r'env = "(ACCEL_BUILD_\w+)"', PROJECT)) == names, f"[tool.uv] in pyproject.toml:\n{expected}"


def test_the_torch_that_a_build_requests_is_the_one_that_the_project_requires() -> None:
    assert f'\n  "{TORCH}",\n' in PROJECT


# The other uses of sys.executable: what the report prints, a directory to search, the user's program (the ranks), and
# the build backend, which cannot import op_builder.
_OTHER_USES = {
    "op_builder/report/machine.py",
    "op_builder/engine/ninja.py",
    "accelerator/launch/command_line.py",
    "build_tools/accel_ops_build/target.py",
}


def test_only_one_module_makes_commands_that_start_python() -> None:
    """Its children import nothing from the current directory."""
    users = set()
    for package in ("accelerator", "op_builder", "build_tools/accel_ops_build"):
        for path in _sources(package, ".py"):
            nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
            names = {ast.unparse(node) for node in nodes if isinstance(node, (ast.Attribute, ast.ImportFrom))}
            if {"sys.executable", "sys._base_executable", "from multiprocessing import Process"} & names:
                users.add(path.relative_to(ROOT).as_posix())
            first = {ast.unparse(node.elts[0]) for node in nodes if isinstance(node, ast.List) and node.elts}
            assert not {"'python'", "'python3'", "python()"} & first or path.name == "interpreter.py", path
            imported = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
            assert not any(name.startswith(("multiprocessing", "torch.multiprocessing")) for name in imported), path
    assert users == {"op_builder/system/interpreter.py", *_OTHER_USES}


def test_nothing_requests_this_project_from_a_package_index() -> None:
    """The names are not owned there."""
    request = re.compile(r"""(?:install|add|uvx|--with|run) [^\n`#]*(?<![/\w@-])accel-ops(?:-build)?(?=[^\w./-])""")
    places = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "Makefile", "setup.py")]
    for name in ("accelerator", "op_builder", "build_tools", "examples", "benchmarks", "docs", "tests"):
        places += _sources(name, ".py", ".md", ".toml", ".txt", ".yml")
    found = [f"{path}: {line}" for path in places for line in path.read_text().splitlines() if request.search(line)]
    assert found == []
    requirements = re.findall(r'^ *"(accel-ops[^"]*)"|[\[,] *"(accel-ops[^"]*)"', PROJECT, re.MULTILINE)
    assert requirements == []


def test_remedies_name_the_packages_of_the_extras() -> None:
    extras = {"sycl": sycl_runtime.INSTALL_REMEDY, "ccl": oneccl.INSTALL_REMEDY}
    for extra, remedy in extras.items():
        text = re.search(rf"^{extra} = \[\n(.*?)^\]", PROJECT, re.MULTILINE | re.DOTALL)
        assert text is not None
        for requirement in re.findall(r'"([^;"]+);', text[1]):
            assert requirement in remedy


@pytest.mark.parametrize("template", ["my_ops", "acme_accel"])
def test_templates_name_this_project_by_its_place_alone(template: str) -> None:
    """Whoever owns the bare name on a package index would run code in the builds of those who copy them."""
    settings = (ROOT / "examples" / template / "pyproject.toml").read_text(encoding="utf-8")
    named = re.findall(r'"(accel-ops[^"]*)"', settings)
    assert named == ["accel-ops-build @ file:///path/to/accel-ops/build_tools"]


# Documentation --------------------------------------------------------------------------------

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s:]+)\)")
INSTALLED_BY_READERS = {"TwiceBuilder"}  # docs/extending.md builds it, and tests of that page use it


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_blocks_compile_and_their_imports_exist(page: Path) -> None:
    for block in BLOCK.findall(page.read_text(encoding="utf-8")):
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    importlib.import_module(alias.name)
            elif isinstance(node, ast.ImportFrom):
                module = importlib.import_module(node.module or "")
                missing = [alias.name for alias in node.names if alias.name not in INSTALLED_BY_READERS]
                for name in missing:
                    assert hasattr(module, name) or importlib.import_module(f"{module.__name__}.{name}")


@pytest.mark.parametrize("page", [*PAGES, ROOT / "benchmarks" / "RESULTS.md"], ids=lambda page: page.name)
def test_links_name_files_that_exist(page: Path) -> None:
    targets = [link.partition("#")[0] for link in LINK.findall(page.read_text(encoding="utf-8"))]
    assert [target for target in targets if target and not (page.parent / target).exists()] == []


def test_every_page_is_in_the_site() -> None:
    contents = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    names = [page.relative_to(ROOT / "docs").as_posix() for page in PAGES if page.is_relative_to(ROOT / "docs")]
    assert [name for name in names if f": {name}\n" not in contents] == []


def test_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 120
