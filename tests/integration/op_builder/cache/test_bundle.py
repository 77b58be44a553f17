"""``python -m op_builder.cache`` export and import."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from op_builder import env
from op_builder.cache.bundle import differences_here
from op_builder.cache.store import Cache, Manifest
from op_builder.commands.cache import main
from tests.support.compilers import needs_gxx
from tests.support.entries import publish
from tests.support.small_ops import SmallBuilder, added, copied


@pytest.fixture
def filled(built: Path, tmp_path: Path) -> Cache:
    """A copy of a cache in which ``small`` is built, with another entry."""
    _, cache = copied(built, tmp_path / "filled")
    (small,) = cache.entries()
    publish(cache, small.artifact.read_bytes(), op="other")
    return cache


@pytest.fixture
def elsewhere(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "elsewhere")


def command(capsys: pytest.CaptureFixture[str], cache: Cache, *arguments: str | Path) -> Any:
    assert main(["--json", "--directory", str(cache.root), *map(str, arguments)]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.usefixtures("new_process")
def test_a_bundle_loads_on_a_machine_without_a_compiler(
    capsys: pytest.CaptureFixture[str], filled: Cache, elsewhere: Cache, built: Path, tmp_path: Path
) -> None:
    bundle = tmp_path / "ops.zip"
    assert command(capsys, filled, "export", bundle, "small")["entries"] == 1
    for _ in range(2):  # twice does no harm
        (entry,) = command(capsys, elsewhere, "import", bundle)["entries"]
        assert (entry["op"], entry["fits"], entry["differences"]) == ("small", True, [])
    with env.scope(PATH=str(tmp_path), CXX=None, ACCEL_JIT="0"):
        assert added(SmallBuilder(built / "op", elsewhere).jit_load()) == 1.0


def test_import_names_the_entries_that_do_not_fit_this_machine(
    capsys: pytest.CaptureFixture[str], filled: Cache, elsewhere: Cache, tmp_path: Path
) -> None:
    assert command(capsys, filled, "export", tmp_path / "ops.zip")["entries"] == 2
    assert main(["import", str(tmp_path / "ops.zip"), "--directory", str(elsewhere.root)]) == 0
    text = capsys.readouterr().out
    assert re.search(r"^small \w+: fits this machine$", text, re.MULTILINE)
    assert re.search(r"^other \w+: will not be used on this machine\n    format: built for none", text, re.MULTILINE)
    assert "1 of them for another machine" in text


def of_another_machine(filled: Cache, part: str) -> Manifest:
    (entry,) = filled.entries("small")
    return entry.manifest._replace(key_parts={**entry.manifest.key_parts, **FOREIGN[part]})


FOREIGN = {
    "platform": {"platform": "linux riscv128"},
    "torch headers": {"binding": "torch", "torch headers": "of another torch"},
    "c++ compiler": {"c++ compiler": "g++ of long ago"},
    "format": {"format": "0"},
    "cpu": {"cpu": "of another kind"},
    "cuda compiler": {"cuda compiler": "nvcc of long ago"},
    "python abi": {"binding": "torch", "torch c++ abi": "cxx11=1", "python abi": ".cpython-307-somewhere.so"},
}


@pytest.mark.parametrize("part", FOREIGN)
def test_what_does_not_fit_this_machine_is_named(filled: Cache, part: str) -> None:
    found = differences_here(of_another_machine(filled, part), filled.memo)
    assert any(line.startswith(f"{part}: built for {FOREIGN[part][part]}, here") for line in found)


@needs_gxx
def test_without_a_compiler_here_an_entry_of_any_compiler_fits(filled: Cache, tmp_path: Path) -> None:
    with env.scope(PATH=str(tmp_path), CXX=None):
        assert differences_here(of_another_machine(filled, "c++ compiler"), filled.memo) == []


def test_export_of_a_missing_op_says_how_to_build_it(
    capsys: pytest.CaptureFixture[str], filled: Cache, tmp_path: Path
) -> None:
    assert main(["--directory", str(filled.root), "export", str(tmp_path / "x.zip"), "absent"]) == 2
    assert "accel-ops build absent" in capsys.readouterr().err
    assert not (tmp_path / "x.zip").exists()
