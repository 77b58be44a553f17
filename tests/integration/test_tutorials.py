"""The tutorials: a test writes the files that a page shows, runs its commands, and compares their output."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tests.support.compilers import needs_gxx
from tests.support.environments import Environment, copy_sources, run, torch_environment

ROOT = Path(__file__).resolve().parents[2]
TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.md"))
END = "-- end of the output --"
# ```LANGUAGE title="FILE" is a file, ```sh a list of commands, ```text the whole standard output of the commands before
# it; " ..." stands for the rest of a line, and a line "..." for any lines.
BLOCK = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """An environment with torch and accel-ops, installed from a copy of this checkout as a reader installs it.

    No package of this environment is in it but torch and what torch requires: a page installs what else it needs.
    """
    directory = tmp_path_factory.mktemp("tutorials")
    made = torch_environment(directory / "environment")
    made.add_pip()
    made.pip("install", "numpy", copy_sources(tmp_path_factory, directory / "checkout"))
    assert "No module named 'pytest'" in made.run("-c", "import pytest", fails=True)
    return made


@pytest.mark.slow
@needs_gxx
@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.stem)
def test_the_commands_of_a_tutorial_work(page: Path, installed: Environment, tmp_path: Path) -> None:
    directory, output = tmp_path, ""
    path = f"{installed.programs}{os.pathsep}{os.environ['PATH']}"
    shown = page.read_text(encoding="utf-8").replace("/path/to/accel-ops", f"{installed.directory.parent}/checkout")
    for language, title, text in BLOCK.findall(shown):
        if title:
            file = directory / title
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
        elif language == "sh":
            script = f"{text}\npwd > {tmp_path}/where\necho {END}"
            output = run("bash", "-e", "-c", script, cwd=directory, PATH=path).partition(f"{END}\n")[0]
            directory = Path((tmp_path / "where").read_text().strip())
        elif language == "text":
            pattern = re.escape(text).replace(r"\ \.\.\.", " .*").replace(r"\.\.\." + "\\\n", "(.*\n)*")
            assert re.fullmatch(pattern, output), f"{page.name} shows\n{text}; the commands print\n{output[-4000:]}"
