"""The documentation: Python blocks compile, and what they import exists; links and the site's contents are complete."""

from __future__ import annotations

import ast
import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s:]+)\)")
INSTALLED_BY_READERS = {"TwiceBuilder"}  # docs/extending.md builds it, and tests of that page use it


def page_blocks(page: Path) -> list[str]:
    return BLOCK.findall(page.read_text(encoding="utf-8"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_blocks_compile_and_their_imports_exist(page: Path) -> None:
    for block in page_blocks(page):
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    importlib.import_module(alias.name)
            elif isinstance(node, ast.ImportFrom):
                module = importlib.import_module(node.module or "")
                missing = [alias.name for alias in node.names if alias.name not in INSTALLED_BY_READERS]
                assert [name for name in missing if not hasattr(module, name)] == []


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
