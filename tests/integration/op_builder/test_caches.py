"""``accel-ops caches``: where the caches of JIT compilers are, and that the variables move them."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from op_builder import env
from op_builder.commands.caches import CACHES, find_caches, main, variables
from tests.support.foreign_package import ROOT, output_of


def caches(*words: str, **changes: str | None) -> str:
    return output_of("-m", "op_builder", "caches", *words, **changes)


def rows(**changes: str | None) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in json.loads(caches("--json", **changes))}


UNSET = dict.fromkeys(cache.variable for cache in CACHES)


def test_a_cache_is_found_at_its_default_place_and_where_its_variable_says(tmp_path: Path) -> None:
    ours = tmp_path / ".cache" / "accel-ops"
    ours.mkdir(parents=True)
    (ours / "file").write_bytes(bytes(2048))
    (tmp_path / "deep" / ".cache" / "flashinfer").mkdir(parents=True)
    changes = {**UNSET, "HOME": str(tmp_path), "XDG_CACHE_HOME": None, "TMPDIR": str(tmp_path)}
    found = rows(**{**changes, "FLASHINFER_WORKSPACE_BASE": str(tmp_path / "deep")})
    mine = found["accel-ops"]
    assert (mine["directory"], mine["size_bytes"], mine["files"]) == (str(ours), 2048, 1)
    assert (mine["exists"], mine["is_set"], mine["on_network"]) == (True, False, False)
    assert found["FlashInfer"]["directory"] == str(tmp_path / "deep" / ".cache" / "flashinfer")
    assert [name for name, row in found.items() if row["exists"]] == ["accel-ops", "FlashInfer"]
    table = caches(**changes)
    assert f"{ours}  2 KiB" in table
    assert "Not found: Inductor, cpp_extension" in table


def test_the_home_of_triton_contains_its_cache(tmp_path: Path) -> None:
    found = rows(**{**UNSET, "TRITON_HOME": str(tmp_path)})["Triton"]
    assert (found["directory"], found["is_set"]) == (str(tmp_path / ".triton" / "cache"), False)


@pytest.mark.parametrize("root", ["", " ", __file__, "/dev/null"])
def test_variables_need_a_directory(root: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["env", root])
    written = capsys.readouterr()
    assert (written.out, "argument ROOT" in written.err) == ("", True)


def test_a_user_without_a_home_has_a_list(tmp_path: Path) -> None:
    assert not rows(**UNSET, HOME="relative", XDG_CACHE_HOME=None, TMPDIR=str(tmp_path))["accel-ops"]["exists"]


def test_a_user_without_a_name_and_a_home_has_a_list(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "accel-ops").mkdir()

    def fail(*_: object) -> None:
        raise KeyError("uid not found")

    monkeypatch.setattr("pwd.getpwuid", fail)
    for name in ("HOME", "LOGNAME", "USER", "LNAME", "USERNAME", *UNSET):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    found = {each.cache.name: each.directory for each in find_caches()}
    assert (found["accel-ops"], found["Inductor"], found["Triton"]) == (tmp_path / "accel-ops", None, None)


def test_a_shell_reads_the_variables(tmp_path: Path) -> None:
    root = tmp_path / "it's a place"
    command = f'eval "$({shlex.quote(sys.executable)} -m op_builder caches env {shlex.quote(str(root))})"; env -0'
    environment = env.child_environment(PYTHONPATH=str(ROOT))
    words = subprocess.run(["sh", "-c", command], env=environment, check=True, capture_output=True).stdout
    set_variables = dict(word.split("=", 1) for word in os.fsdecode(words).split("\0") if word)
    expected = variables(root)
    assert len(set(expected.values())) == len(expected) == len(CACHES) + 1
    assert set_variables.items() >= expected.items()
    assert {expected[name] for name in ("PYTORCH_KERNEL_CACHE_PATH", "NEO_CACHE_DIR")} == set(map(str, root.iterdir()))
    assert json.loads(caches("env", "--json", str(root))) == expected
