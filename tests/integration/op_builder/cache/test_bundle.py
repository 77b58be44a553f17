"""``python -m op_builder.cache`` export and import."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

from op_builder import env
from op_builder.cache.__main__ import main
from op_builder.cache.store import Cache
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


def of_another_machine(filled: Cache, parts: dict[str, str]) -> Path:
    """A bundle of ``small`` as a machine with other parts of the key has built it."""
    (entry,) = filled.entries("small")
    manifest = entry.manifest._replace(key_parts={**entry.manifest.key_parts, **parts})
    base = f"small/{manifest.key.plan.digest}/{manifest.key.digest}"
    bundle = filled.root.with_name("foreign.zip")
    with zipfile.ZipFile(bundle, "w") as file:
        file.writestr(f"{base}/manifest.json", manifest.to_json())
        file.write(entry.artifact, f"{base}/{manifest.artifact}")
    return bundle


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
    assert command(capsys, filled, "export", bundle)["entries"] == 2


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
def test_import_says_why_an_entry_does_not_fit_this_machine(
    capsys: pytest.CaptureFixture[str], filled: Cache, elsewhere: Cache, part: str
) -> None:
    other = of_another_machine(filled, FOREIGN[part])
    (entry,) = command(capsys, elsewhere, "import", other)["entries"]
    assert not entry["fits"]
    assert any(line.startswith(f"{part}: built for {FOREIGN[part][part]}, here") for line in entry["differences"])
    assert main(["import", str(other), "--directory", str(elsewhere.root)]) == 0
    text = capsys.readouterr().out
    assert "will not be used on this machine" in text
    assert "1 of them for another machine" in text


@needs_gxx
def test_without_a_compiler_here_an_entry_of_any_compiler_fits(
    capsys: pytest.CaptureFixture[str], filled: Cache, elsewhere: Cache, tmp_path: Path
) -> None:
    other = of_another_machine(filled, FOREIGN["c++ compiler"])
    with env.scope(PATH=str(tmp_path), CXX=None):
        (entry,) = command(capsys, elsewhere, "import", other)["entries"]
    assert entry["fits"]


def test_export_of_a_missing_op_says_how_to_build_it(
    capsys: pytest.CaptureFixture[str], filled: Cache, tmp_path: Path
) -> None:
    assert main(["--directory", str(filled.root), "export", str(tmp_path / "x.zip"), "absent"]) == 2
    assert "op_builder.build absent" in capsys.readouterr().err
    assert not (tmp_path / "x.zip").exists()
