"""What a prebuild is asked for, the torch it is made against, the wheel's tag, and the wheel itself."""

from __future__ import annotations

import base64
import csv
import dataclasses
import hashlib
import importlib.util
import io
import json
import os
import re
import subprocess
import sys
import sysconfig
import venv
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

import op_builder
from op_builder import env
from op_builder.cpu import CPUAdamBuilder, CPULionBuilder
from op_builder.errors import AccelError, EnvironmentValueError, UnknownOpError
from op_builder.prebuild import backend, tags, wheel
from op_builder.prebuild.order import Order, variable_of
from op_builder.prebuild.tags import platform_tag, wheel_tag
from op_builder.prebuild.target import PATH_PROGRAM, Target, find_target
from tests.support.entries import manifest
from tests.support.small_ops import SmallBuilder


@pytest.fixture(autouse=True)
def nothing_asked_for() -> Iterator[None]:
    with env.scope(**{name: None for name in os.environ if name.startswith("ACCEL_BUILD_")}):
        yield


# The order -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("variables", "order"),
    [
        ({}, Order(False, {})),
        ({"ACCEL_BUILD_OPS": "1"}, Order(True, {})),
        ({"ACCEL_BUILD_OPS": ""}, Order(False, {})),
        ({"ACCEL_BUILD_OPS": "0"}, Order(False, {})),
        ({"ACCEL_BUILD_TORCH": "/usr"}, Order(False, {})),
        ({"ACCEL_BUILD_CPU_SGD": "on"}, Order(False, {"ACCEL_BUILD_CPU_SGD": True})),
        ({"ACCEL_BUILD_CPU_SGD": ""}, Order(False, {})),
        (
            {"ACCEL_BUILD_OPS": "True", "ACCEL_BUILD_CPU_SGD": "off", "ACCEL_BUILD_CPU_ADAM": "1"},
            Order(True, {"ACCEL_BUILD_CPU_SGD": False, "ACCEL_BUILD_CPU_ADAM": True}),
        ),
    ],
)
def test_the_environment_says_what_is_to_be_built(variables: dict[str, str], order: Order) -> None:
    with env.scope(**variables):
        assert Order.of_environment() == order
    assert order.is_empty == (not order.everything and True not in order.ops.values())


@pytest.mark.parametrize("name", ["ACCEL_BUILD_OPS", "ACCEL_BUILD_CPU_ADAM"])
@pytest.mark.parametrize("value", ["yes", "2", "cpu_adam"])
def test_a_switch_that_is_neither_0_nor_1_is_refused(name: str, value: str) -> None:
    with env.scope(**{name: value}), pytest.raises(EnvironmentValueError) as refused:
        Order.of_environment()
    assert str(refused.value) == (
        f"{name}={value!r} is not valid: expected 0 or 1.\n  Remedy: Correct or unset {name}."
    )


@pytest.mark.parametrize(
    ("everything", "switches", "wanted", "insisted_on"),
    [
        (False, {}, False, False),
        (True, {}, True, False),
        (False, {"ACCEL_BUILD_CPU_ADAM": True}, True, True),
        (True, {"ACCEL_BUILD_CPU_ADAM": True}, True, True),
        (True, {"ACCEL_BUILD_CPU_ADAM": False}, False, False),
        (True, {"ACCEL_BUILD_CPU_LION": False}, True, False),
    ],
)
def test_an_ops_own_variable_goes_before_the_general_one(
    everything: bool, switches: dict[str, bool], wanted: bool, insisted_on: bool
) -> None:
    order = Order(everything, switches)
    assert order.wants(CPUAdamBuilder()) == wanted
    assert order.insists_on(CPUAdamBuilder()) == insisted_on
    assert order.variables == ["ACCEL_BUILD_OPS", *switches]


@pytest.mark.parametrize(
    ("named", "variable"),
    [("ACCEL_BUILD_OTHER", "ACCEL_BUILD_OTHER"), ("", "ACCEL_BUILD_MINE"), ("DS_BUILD_MINE", "ACCEL_BUILD_MINE")],
)
def test_an_op_whose_builder_names_no_such_variable_has_one_after_its_name(
    small: SmallBuilder, named: str, variable: str
) -> None:
    mine = type("MineBuilder", (SmallBuilder,), {"NAME": "mine", "BUILD_VAR": named})(small.directory, small.cache)
    assert variable_of(mine) == variable


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("ACCEL_BUILD_CPU_ADM", "Did you mean ACCEL_BUILD_CPU_ADAM?"),
        ("ACCEL_BUILD_WARP_DRIVE", "Unset it. The variables are: ACCEL_BUILD_CPU_ADAM, ACCEL_BUILD_CPU_LION."),
    ],
)
def test_a_switch_of_no_op_is_refused_with_the_nearest_names(name: str, remedy: str) -> None:
    ops = [CPULionBuilder(), CPUAdamBuilder()]
    Order(True, {"ACCEL_BUILD_CPU_ADAM": False}).refuse_unknown(ops)
    with pytest.raises(UnknownOpError) as refused:
        Order(False, {name: True}).refuse_unknown(ops)
    assert refused.value.message == f"{name} is set, and there is no op of that name."
    assert refused.value.remedy == remedy


# The tag ---------------------------------------------------------------------------------


def needing(kind: str = "accel", **needs: str) -> tags.Manifest:
    return dataclasses.replace(manifest(), kind=kind, needs=needs)


@pytest.fixture
def on_glibc_2_36(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tags.platform, "libc_ver", lambda: ("glibc", "2.36"))
    monkeypatch.setattr(tags.platform, "machine", lambda: "aarch64")


@pytest.mark.parametrize(
    ("needs", "expected"),
    [
        pytest.param([{}], "2_17", id="nothing"),
        pytest.param([{"GLIBC": "2.2.5"}], "2_17", id="less than anybody has"),
        pytest.param([{"GLIBC": "2.32", "GLIBCXX": "3.4.21", "CXXABI": "1.3.9"}], "2_32", id="glibc says more"),
        pytest.param([{"GLIBC": "2.14", "GLIBCXX": "3.4.29"}], "2_34", id="GLIBCXX says more"),
        pytest.param([{"GLIBC": "2.14", "GLIBCXX": "3.4.30"}], "2_35", id="GLIBCXX of GCC 12"),
        pytest.param([{"GLIBC": "2.14", "GLIBCXX": "3.4.21", "CXXABI": "1.3.11"}], "2_27", id="CXXABI says more"),
        pytest.param([{"GLIBC": "2.28"}, {"GLIBC": "2.31"}, {"GLIBC": "2.9"}], "2_31", id="the most of several"),
        pytest.param([{"GLIBC": "2.28"}, {"GLIBCXX": "3.4.28"}], "2_31", id="the most, of different kinds"),
        pytest.param([{"GLIBC": "2.14", "GLIBCXX": "3.4.32"}], "2_36", id="no more than the C library here"),
        pytest.param([{"GLIBC": "2.14", "GLIBCXX": "3.4.99"}], "2_36", id="GLIBCXX of the future"),
        pytest.param([{"GCC": "14.0.0"}], "2_17", id="libgcc does not count"),
    ],
)
@pytest.mark.usefixtures("on_glibc_2_36")
def test_the_platform_is_the_oldest_c_library_that_has_what_all_need(
    needs: list[dict[str, str]], expected: str
) -> None:
    assert platform_tag([needing(**each) for each in needs]) == f"manylinux_{expected}_aarch64"


@pytest.mark.usefixtures("on_glibc_2_36")
def test_only_torchs_cxx_api_ties_a_wheel_to_a_python() -> None:
    here = f"cp{sys.version_info.major}{sys.version_info.minor}"
    assert wheel_tag([needing(), needing()]) == "py3-none-manylinux_2_17_aarch64"
    for kind in ("python", "torch_library"):
        assert wheel_tag([needing(), needing(kind)]) == f"{here}-{here}-manylinux_2_17_aarch64"


def test_where_the_c_library_is_another_the_platform_is_what_pip_calls_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tags.platform, "libc_ver", lambda: ("", ""))
    monkeypatch.setattr("packaging.tags.platform_tags", lambda: iter(["musllinux_1_2_x86_64", "linux_x86_64"]))
    assert wheel_tag([needing()]) == "py3-none-musllinux_1_2_x86_64"


def test_gccs_libraries_are_as_old_as_the_manylinux_policies_say() -> None:
    found = importlib.util.find_spec("auditwheel")
    if found is None or found.origin is None:
        pytest.skip("auditwheel is not installed")
    file = Path(found.origin).with_name("policy") / "manylinux-policy.json"
    policies = {
        tuple(map(int, policy["name"].split("_")[1:])): policy["symbol_versions"]["x86_64"]
        for policy in json.loads(file.read_text())
        if policy["name"].startswith("manylinux")
    }
    compared = 0
    for glibc, glibcxx, cxxabi in tags._GCC_LIBRARIES:
        if glibc in policies:
            allowed = policies[glibc]
            assert ".".join(map(str, glibcxx)) in allowed["GLIBCXX"], glibc
            assert ".".join(map(str, cxxabi)) in allowed["CXXABI"], glibc
            compared += 1
    assert compared >= 4


# The wheel -------------------------------------------------------------------------------


def make_wheel(directory: Path, files: Mapping[str, str]) -> Path:
    """A wheel as setuptools makes it: pure, for any platform."""
    path = directory / "acme_ops-1.2-py3-none-any.whl"
    information = {
        "acme_ops-1.2.dist-info/METADATA": "Metadata-Version: 2.4\nName: acme-ops\nVersion: 1.2\n",
        "acme_ops-1.2.dist-info/WHEEL": (
            "Wheel-Version: 1.0\nGenerator: setuptools (84.2.1)\nRoot-Is-Purelib: true\nTag: py2-none-any\n"
            "Tag: py3-none-any\n\n"
        ),
        "acme_ops-1.2.dist-info/RECORD": "acme_ops/__init__.py,sha256=of-another-time,1\n",
    }
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in {**files, **information}.items():
            archive.writestr(name, text)
    return path


def test_binaries_of_an_earlier_build_are_not_taken_over(tmp_path: Path) -> None:
    files = {
        "acme_ops/__init__.py": "",
        "acme_ops/_prebuilt/wheel.json": "{}",
        "acme_ops/_prebuilt/ops/old/a/b/old.so": "old",
        "acme_ops/deep/_prebuilt/ops/old/a/b/old.so": "old",
        "acme_ops/_prebuilt_notes.txt": "kept",
    }
    wheel.unpack(make_wheel(tmp_path, files), tmp_path / "tree")
    left = {path.relative_to(tmp_path / "tree").as_posix() for path in (tmp_path / "tree").rglob("*") if path.is_file()}
    assert {name for name in left if "dist-info" not in name} == {
        "acme_ops/__init__.py",
        "acme_ops/_prebuilt_notes.txt",
    }


def test_a_packed_wheel_says_its_tag_and_records_every_file(tmp_path: Path) -> None:
    pytest.importorskip("wheel")
    tree = tmp_path / "tree"
    wheel.unpack(make_wheel(tmp_path, {"acme_ops/__init__.py": "", "acme_ops/odd, name.txt": "comma"}), tree)
    (tree / "acme_ops" / "_prebuilt").mkdir()
    (tree / "acme_ops" / "_prebuilt" / "new.so").write_bytes(b"\x7fELF" + bytes(1000))
    name = wheel.pack(tree, tmp_path / "not there yet", "py3-none-manylinux_2_28_x86_64")
    assert name == "acme_ops-1.2-py3-none-manylinux_2_28_x86_64.whl"
    with zipfile.ZipFile(tmp_path / "not there yet" / name) as packed:
        contents = {each: packed.read(each) for each in packed.namelist()}
    facts = contents["acme_ops-1.2.dist-info/WHEEL"].decode().splitlines()
    assert [line for line in facts if line.startswith("Tag:")] == ["Tag: py3-none-manylinux_2_28_x86_64"]
    assert "Root-Is-Purelib: false" in facts
    assert not [line for line in facts if "true" in line]
    record = "acme_ops-1.2.dist-info/RECORD"
    rows = {row[0]: row[1:] for row in csv.reader(io.StringIO(contents[record].decode()))}
    assert set(rows) == set(contents)
    assert rows.pop(record) == ["", ""]
    for each, (digest, size) in rows.items():
        expected = base64.urlsafe_b64encode(hashlib.sha256(contents[each]).digest()).rstrip(b"=").decode()
        assert (digest, size) == (f"sha256={expected}", str(len(contents[each]))), each
    assert "acme_ops/_prebuilt/new.so" in rows


def test_without_the_package_wheel_packing_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "wheel.wheelfile", None)
    with pytest.raises(AccelError, match="Remedy: Install it: pip install wheel"):
        wheel.pack(tmp_path, tmp_path, "py3-none-any")


# Editable installs -----------------------------------------------------------------------

PROJECT = """[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"
[project]
name = "acme-ops"
version = "1.2"
[tool.setuptools]
packages = ["acme_ops"]
"""


def prebuilt_below(package: Path, index: str) -> Path:
    place = package / "_prebuilt"
    place.mkdir(parents=True)
    (place / "wheel.json").write_text(index)
    return place


def test_an_editable_install_takes_away_the_ops_of_its_own_project_alone(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(PROJECT)
    (tmp_path / "acme_ops").mkdir()
    (tmp_path / "acme_ops" / "__init__.py").touch()
    mine, other = (json.dumps({"format": 1, "distribution": name}) for name in ("acme_ops", "accel_ops"))
    own = [prebuilt_below(tmp_path / name, mine) for name in ("acme_ops", "src/acme_ops", "a/b/acme_ops")]
    others = [prebuilt_below(tmp_path / "accel-ops" / "op_builder", other)]
    others += [prebuilt_below(tmp_path / f"odd{number}", text) for number, text in enumerate(["", "[]", "{}"])]
    out = tmp_path / "out"
    out.mkdir()
    program = "import sys; from op_builder.prebuild import backend; backend.build_editable(sys.argv[1])"
    subprocess.run(
        [sys.executable, "-c", program, str(out)],
        cwd=tmp_path,
        env=env.child_environment(PYTHONPATH=str(Path(op_builder.__file__).parents[1])),
        check=True,
        capture_output=True,
    )
    assert [place.exists() for place in own] == [False] * 3
    assert [place.exists() for place in others] == [True] * 4
    assert len(list(out.glob("acme_ops-1.2*.whl"))) == 1


def test_ops_are_put_in_the_place_of_whatever_lies_there(tmp_path: Path) -> None:
    built = prebuilt_below(tmp_path / "tree" / "acme_ops", "new")
    place = prebuilt_below(tmp_path / "acme_ops", "old")
    (place / "wheel.json").rename(place / "half")
    backend._put(built, place)
    assert [path.name for path in place.iterdir()] == ["wheel.json"]
    assert [path.name for path in place.parent.iterdir()] == ["_prebuilt"]


def test_a_place_for_ops_that_cannot_be_changed_is_an_error_with_a_remedy(tmp_path: Path) -> None:
    built = prebuilt_below(tmp_path / "tree" / "acme_ops", "new")
    (tmp_path / "acme_ops").touch()
    with pytest.raises(AccelError, match=r"keeps its ops in .*_prebuilt, and that cannot be changed: ") as refused:
        backend._put(built, tmp_path / "acme_ops" / "_prebuilt")
    assert refused.value.remedy == "Make it writable, or install without -e."


# Caches ----------------------------------------------------------------------------------

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("project", [".", "examples/my_ops", "examples/acme_accel"])
def test_uv_is_told_every_variable_that_decides_what_is_in_the_wheel(project: str) -> None:
    places = [ROOT / "op_builder"] if project == "." else [ROOT / project]
    texts = [path.read_text() for place in places for path in place.rglob("*.py") if "build_tools" not in path.parts]
    switches = {found for text in texts for found in re.findall(r'^    BUILD_VAR = "(\w+)"', text, re.MULTILINE)}
    keys = set(re.findall(r'env = "(ACCEL_BUILD_\w+)"', (ROOT / project / "pyproject.toml").read_text()))
    assert switches
    assert keys == {*switches, "ACCEL_BUILD_OPS", "ACCEL_BUILD_TORCH"}


# The target ------------------------------------------------------------------------------


def made_up_torch(site: Path, extension: str = str(sysconfig.get_config_var("EXT_SUFFIX"))) -> Path:
    """A directory with what looks like an installed torch 2.99; nothing here imports it."""
    (site / "torch").mkdir(parents=True)
    (site / "torch" / "__init__.py").touch()
    (site / "torch" / f"_C{extension}").touch()
    (site / "torch-2.99.0.dist-info").mkdir()
    (site / "torch-2.99.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.4\nName: torch\nVersion: 2.99.0\n")
    return site


@pytest.fixture
def bare_venv(tmp_path: Path) -> Path:
    """A virtual environment with no package at all."""
    venv.create(tmp_path / "venv", with_pip=False)
    return tmp_path / "venv"


def purelib(environment: Path) -> Path:
    return Path(sysconfig.get_path("purelib", vars={"base": str(environment)}))


def named(place: object) -> Target:
    with env.scope(ACCEL_BUILD_TORCH=str(place)):
        found = find_target()
    assert found is not None
    return found


@pytest.mark.parametrize("how", ["python", "directory"])
def test_a_virtual_environment_is_named_by_its_python_or_its_directory(bare_venv: Path, how: str) -> None:
    made_up_torch(purelib(bare_venv))
    place = bare_venv / "bin" / "python" if how == "python" else bare_venv
    found = named(place)
    assert Path(found.python) == bare_venv / "bin" / "python"
    assert Path(found.torch_dir) == purelib(bare_venv) / "torch"
    assert found.torch_version == "2.99.0"
    assert found.reason == f"ACCEL_BUILD_TORCH={place}"


def test_installed_packages_are_named_by_their_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made_up_torch(tmp_path / "site")
    monkeypatch.chdir(tmp_path)
    found = named("site")
    assert found.python == sys.executable
    assert Path(found.torch_dir) == tmp_path / "site" / "torch"
    program = f"{PATH_PROGRAM}\nimport importlib.util as u; print(u.find_spec('torch').origin)"
    seen = subprocess.check_output(found.command(program), text=True).strip()
    assert Path(seen) == tmp_path / "site" / "torch" / "__init__.py", "before the torch of this environment"


def test_the_torch_of_this_environment_is_taken_where_none_is_named() -> None:
    found = find_target()
    assert found is not None
    assert found.python == sys.executable
    assert Path(found.torch_dir) == Path(str(importlib.util.find_spec("torch").origin)).parent  # type: ignore[union-attr]
    assert found.reason == f"the environment of this build, {sys.prefix}"


def test_no_torch_anywhere_is_no_error_unless_one_was_named(bare_venv: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.setattr(sys, "executable", str(bare_venv / "bin" / "python"))
    assert find_target() is None


def test_a_target_sees_its_own_packages_before_the_build_environments(bare_venv: Path, tmp_path: Path) -> None:
    for place in ("first", "last"):
        (tmp_path / place).mkdir()
        (tmp_path / place / "both.py").write_text(f"where = {place!r}\n")
        (tmp_path / place / f"only_{place}.py").touch()
    (purelib(bare_venv) / "json.py").write_text("raise SystemExit('shadows the standard library')\n")
    (purelib(bare_venv) / "both.py").write_text("where = 'own'\n")
    python = str(bare_venv / "bin" / "python")
    found = Target(python, (), (str(tmp_path / "last"),), "", "", "")
    program = f"{PATH_PROGRAM}\nimport both, only_last; print(both.where, *sys.argv[1:])"

    def said(first: list[str]) -> str:
        return subprocess.check_output(found.command(program, first, "a", "b"), text=True, cwd=tmp_path / "first")

    assert said([]).split() == ["own", "a", "b"]
    assert said([str(tmp_path / "first")]).split() == ["first", "a", "b"]


def refusal(place: object) -> AccelError:
    with env.scope(ACCEL_BUILD_TORCH=str(place)), pytest.raises(AccelError) as refused:
        find_target()
    assert str(place) in refused.value.message
    assert "ACCEL_BUILD_TORCH" in str(refused.value)
    assert refused.value.remedy
    return refused.value


def test_a_named_place_that_is_not_there_is_refused(tmp_path: Path) -> None:
    error = refusal(tmp_path / "nowhere")
    assert "is neither a Python that can be run nor a directory" in error.message
    assert f"unset it to use the torch of this environment ({sys.prefix})" in error.remedy


def test_a_relative_name_is_told_with_the_directory_it_is_relative_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    error = refusal(Path("venv"))
    assert f"ACCEL_BUILD_TORCH=venv, from {tmp_path}, is neither" in error.message
    assert "absolute path" in error.remedy


def test_a_named_file_that_cannot_be_run_is_refused(tmp_path: Path) -> None:
    (tmp_path / "python").write_text("#!/bin/sh\n")
    assert "is neither a Python that can be run nor a directory" in refusal(tmp_path / "python").message


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("#!/bin/sh\necho I am no snake >&2; exit 1\n", "does not answer as a Python does: 'I am no snake'"),
        ("#!/bin/sh\n", "does not answer as a Python does: ''"),
        ("#!/nowhere/at/all\n", "does not run"),
    ],
)
def test_a_named_program_that_is_no_python_is_refused(tmp_path: Path, script: str, said: str) -> None:
    (tmp_path / "python").write_text(script)
    (tmp_path / "python").chmod(0o755)
    assert said in refusal(tmp_path / "python").message


def test_a_named_directory_without_torch_is_refused(tmp_path: Path) -> None:
    error = refusal(tmp_path)
    assert error.message.endswith("has no torch.")
    assert error.remedy == "Name the Python, or the site-packages, of one that has."


def test_a_named_python_without_torch_is_refused_even_if_the_build_environment_has_one(bare_venv: Path) -> None:
    assert importlib.util.find_spec("torch") is not None
    assert refusal(bare_venv / "bin" / "python").message.endswith("has no torch.")


def test_the_installed_packages_of_another_python_are_refused(tmp_path: Path) -> None:
    made_up_torch(tmp_path / "site", ".cpython-307-somewhere.so")
    error = refusal(tmp_path / "site")
    assert "torch for another Python: it has _C.cpython-307-somewhere.so" in error.message
    assert sys.executable in error.message
    assert error.remedy == "Name the Python that this torch belongs to instead."
