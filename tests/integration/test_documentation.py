"""The Python blocks of the documentation run, page by page, each page in one process."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.foreign_package import ROOT, output_of
from tests.support.launching import free_port

BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# extending.md has tests of its own, which build and install what it shows. oneCCL and transformers are optional.
PAGES = [
    page
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
    if page.name != "extending.md" and BLOCK.search(page.read_text(encoding="utf-8"))
]
OPTIONAL = re.compile("CCLCommBuilder|TrainingArguments")


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_blocks_of_a_page_run(page: Path, tmp_path: Path) -> None:
    blocks = [block for block in BLOCK.findall(page.read_text(encoding="utf-8")) if not OPTIONAL.search(block)]
    group = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    output = output_of("-c", "\n".join(blocks), cwd=tmp_path, ACCEL_ACCELERATOR="cpu", **group)
    for shown in re.findall(r"^print\(f.*\)  # (.+)$", "\n".join(blocks), re.MULTILINE):
        assert shown in output.splitlines()
