from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from op_builder import env
from op_builder.cache.store import Entry
from op_builder.command_line import REQUIRED
from op_builder.report import doctor
from op_builder.report.__main__ import main
from op_builder.report.collect import find_op
from op_builder.report.machine import environment
from op_builder.report.render import print_explanation
from op_builder.system.torch_install import torch_install
from tests.support.builds import explained, row_of
from tests.support.compilers import needs_gxx
from tests.support.foreign_package import ROOT, importable, output_of, python, write_package
from tests.support.small_ops import ENTRY, OWN_BUILDER, SmallBuilder, replace_content


def test_json_has_the_documented_shape() -> None:
    data = json.loads(python("-m", "op_builder.report", "--json", ACCEL_ACCELERATOR="cpu").stdout)
    assert set(data) == {"accelerator", "ops", "wheels", "registered", "environment"}
    assert data["accelerator"]["name"] == "cpu"
    for op in data["ops"]:
        assert {"name", "builder", "installed", "cached", "compatible", "reason", "remedy", "prebuilt"} <= set(op)
        assert op["compatible"] or (op["reason"] and op["remedy"])
    assert [op["builder"] for op in data["ops"] if op["name"] == "cpu_adam"] == ["CPUAdamBuilder"]
    assert data["environment"]["torch"]["version"] == torch_install().version


def test_the_tables_fit_a_narrow_terminal_and_show_no_healthy_state_in_red(capsys: pytest.CaptureFixture[str]) -> None:
    with env.scope(ACCEL_ACCELERATOR="cpu", COLUMNS="80", FORCE_COLOR="1", TERM="xterm"):
        assert main([]) == 0
    coloured = capsys.readouterr().out
    assert "\x1b[32m" in coloured  # green
    assert "\x1b[31m" not in coloured  # red
    shown = re.sub(r"\x1b\[[\d;]*m", "", coloured)
    for word in ("cpu_adam", "installed", "compatible", "c++", "cuda", "/dev/shm", "cache", "cpu"):
        assert word in shown
    assert max(map(len, shown.splitlines())) <= 80


@pytest.mark.parametrize("arguments", ["report --json", "report cpu_adam", "doctor", "doctor cpu_adam"])
def test_the_exit_status_shows_an_unknown_accelerator(arguments: str) -> None:
    done = python("-m", "op_builder", *arguments.split(), ACCEL_ACCELERATOR="abacus")
    assert done.returncode == (1 if "doctor" in arguments else 2)
    assert "cpu_adam" in done.stdout
    assert "Unknown accelerator 'abacus'" in done.stdout + done.stderr
    if "--json" in arguments:
        data = json.loads(done.stdout)
        assert "abacus" in data["accelerator"]["error"]
        assert data["ops"]


def test_one_op_is_explained_with_plan_commands_and_checks(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--json", "cpu_adam"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert any("cpu/adam.cpp" in source["label"] for source in data["plan"]["sources"])
    stand_ins_and_link = 3
    assert len(data["commands"]) == len(data["plan"]["sources"]) + stand_ins_and_link
    assert all(check["passed"] for check in data["checks"])
    assert data["key"]["parts"]["op"] == "cpu_adam"
    assert main(["CPUAdamBuilder"]) == 0
    shown = capsys.readouterr().out
    assert "cpu/adam.cpp" in shown
    assert "-shared" in shown


def test_doctor_lists_only_what_does_not_work_and_fails_for_a_named_op(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ACCEL_ACCELERATOR", "cpu")
    # Other tests may have loaded it: it then works whatever its checks say.
    monkeypatch.setattr("op_builder.load.lookup.opened_entries", lambda _: [])
    assert doctor.main(["cpu_adam"]) == 0
    assert capsys.readouterr().out == "Working: cpu_adam.\nNo problems found.\n"
    monkeypatch.setenv("ACCEL_CPU_ISA", "mmx")
    assert doctor.main(["cpu_adam", "async_io"]) == 1
    out = capsys.readouterr().out
    assert "Working: async_io.\n\ncpu_adam: " in out
    assert "ACCEL_CPU_ISA='mmx'" in out
    assert "\n  Remedy: " in out
    assert doctor.main(["--json"]) == 0  # no op was named
    rejected = {one["name"] for one in json.loads(capsys.readouterr().out)["rejected"]}
    assert {"cpu_adam", "cpu"} <= rejected
    assert "rms_norm" not in rejected  # the device has none
    assert doctor.main(["no_such_op"]) == 2


def test_the_summary_states_that_an_ops_sycl_kernels_are_shown() -> None:
    assert "SYCL kernels of op_builder.xpu" in find_op("rms_norm", "op_builder.cpu").summary
    assert "SYCL" not in find_op("rms_norm", "op_builder.xpu").summary


def altered(entry: Entry) -> None:
    replace_content(entry.artifact, b"altered")


def torn(entry: Entry) -> None:
    (entry.directory / "manifest.json").write_text("{")


@pytest.mark.parametrize("damage", [altered, torn])
def test_a_damaged_entry_is_reported_and_not_moved(small: SmallBuilder, damage: Callable[[Entry], None]) -> None:
    small.load()
    assert row_of(small).cached
    (entry,) = small.cache.entries()
    damage(entry)
    with env.scope(ACCEL_CACHE_DIR=str(small.cache.root)):
        environment()
    row, explanation = row_of(small), explained(small)
    assert (row.cached, row.compatible) == (False, True)
    assert explanation["miss"]["nearest"] == str(entry.directory)
    assert "It will be moved away and rebuilt" in explanation["miss"]["differences"][0]
    console = Console(file=io.StringIO(), width=200)
    print_explanation(explanation, console)
    assert "It will be moved away" in console.file.getvalue()  # type: ignore[attr-defined]
    assert entry.directory.is_dir()
    assert not (small.cache.home / "rejected").exists()


# Builders of other packages, and command lines -----------------------------------------------------


OTHERS = """
class Greedy(OwnBuilder):
    def __init__(self, more):
        super().__init__()

number = 7
"""


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A directory with another package."""
    write_package(tmp_path, "report_own", {"ops.py": OWN_BUILDER + OTHERS, "broken.py": "1 / 0", "own.cpp": ENTRY})
    return tmp_path


def test_an_op_of_another_package_is_built_by_module_and_class(own: Path) -> None:
    command = ("-m", "op_builder.build", "--json", "report_own.ops:OwnBuilder")
    output = output_of(*command, cwd=own, ACCEL_CACHE_DIR=str(own / "cache"))
    assert [(op["op"], op["status"]) for op in json.loads(output)["ops"]] == [("own", "built")]


@pytest.mark.parametrize(
    ("name", "cause", "remedy"),
    [
        ("report_absent.ops:OwnBuilder", "No module named 'report_absent'", "PYTHONPATH"),
        (":OwnBuilder", "the module '' cannot be imported", "PYTHONPATH"),
        ("report_own.broken:OwnBuilder", "ZeroDivisionError", "PYTHONPATH"),
        ("report_own.ops:Absent", "'Absent' does not exist", "Use one of OwnBuilder, Greedy"),
        ("report_own.ops:number", "'number' is not an OpBuilder", "Use one of OwnBuilder, Greedy"),
        ("report_own.ops:Greedy", "missing 1 required positional argument", "needs no arguments"),
        ("op_builder:OpBuilder", "cannot be created", "sources()"),
    ],
)
def test_an_unusable_builder_is_an_error(
    own: Path, name: str, cause: str, remedy: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with importable(own, "report_own"):
        assert main([name]) == 2
    errors = capsys.readouterr().err
    assert all(text in errors for text in (repr(name), cause, remedy))


@needs_gxx
@pytest.mark.parametrize(
    "arguments", ["op_builder.report --json", "accelerator.report --json", "op_builder.cache list"]
)
def test_a_closed_pipe_ends_a_command_without_a_traceback(arguments: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    environment = env.child_environment(ACCEL_ACCELERATOR="cpu")
    command = [sys.executable, "-m", *arguments.split()]
    done = subprocess.run(command, env=environment, stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    assert done.stderr == ""
    assert done.returncode == 128 + signal.SIGPIPE


@pytest.mark.parametrize("arguments", ["op_builder.report", "accelerator.report", "accelerator.launch --show_topology"])
def test_a_missing_requirement_is_an_error_with_a_remedy(arguments: str) -> None:
    # -S: without the directory of installed packages
    done = python("-S", "-m", *arguments.split(), ACCEL_ACCELERATOR=None)
    assert done.returncode == 1
    assert "is not installed in" in done.stderr
    assert re.search(r"Remedy: `pip install (torch|psutil|packaging|rich)`", done.stderr)
    assert "Traceback" not in done.stderr


def test_all_requirements_are_listed_for_that_error() -> None:
    project = (ROOT / "pyproject.toml").read_text()
    listed = project.partition("\ndependencies = [")[2].partition("]")[0]
    assert sorted(re.findall(r'"([a-z0-9]+)', listed)) == sorted(REQUIRED)


def test_the_report_writes_only_memos_and_their_locks(tmp_path: Path) -> None:
    with env.scope(ACCEL_CACHE_DIR=str(tmp_path / "cache")):
        environment()
    assert {path.name for path in (tmp_path / "cache").glob("v1/*/")} <= {"memo", "locks"}
    assert os.environ["ACCEL_CACHE_DIR"] != str(tmp_path / "cache")
