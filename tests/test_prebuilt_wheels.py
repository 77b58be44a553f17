"""Ops built into the wheel: ``ACCEL_BUILD_OPS=1 pip install .``, for real, and what it installs."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from op_builder.catalog.registry import all_builders
from op_builder.catalog.unavailable import UnavailableOpBuilder
from op_builder.toolchains.oneccl import find_oneccl
from tests.support.environments import (
    Environment,
    bare_environment,
    binaries_in,
    copy_sources,
    files_in,
    index_of,
    make_environment,
    ops_wheel,
    run,
    shared,
    the_wheel,
)

pytestmark = pytest.mark.slow

BUILDERS = {
    name: type(builder)
    for name, builder in all_builders("op_builder.cpu").items()
    if not isinstance(builder, UnavailableOpBuilder) and type(builder).__module__.startswith("op_builder.")
}
if find_oneccl() is None:  # then it cannot be built, and a wheel leaves it out
    del BUILDERS["ccl_comm"]
HOST_OPS = sorted(BUILDERS)
NOT_OF_THE_CPU = "rms_norm"


@pytest.fixture
def tree(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_sources(tmp_path_factory, tmp_path / "accel-ops")


@pytest.fixture
def environment(tmp_path: Path) -> Environment:
    """It has torch, and accel-ops is not installed."""
    return make_environment(tmp_path / "venv")


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return ops_wheel(tmp_path_factory)


@pytest.fixture
def installed(wheel: Path, environment: Environment) -> Environment:
    """An environment of this test's own, with the wheel installed."""
    environment.pip("install", "--no-deps", wheel)
    return environment


@pytest.fixture(scope="session")
def from_source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment made by ``ACCEL_BUILD_OPS=1 pip install .``, and ``log``; not to be changed."""

    def build(directory: Path) -> None:
        tree = copy_sources(tmp_path_factory, directory / "accel-ops")
        environment = make_environment(directory / "environment")
        # On a machine without CUDA devices nobody has to name the accelerator.
        named = None if torch.version.cuda is None else "cpu"
        log = environment.pip("install", "-v", tree, ACCEL_BUILD_OPS="1", ACCEL_ACCELERATOR=named)
        (directory / "log").write_text(log)
        shutil.rmtree(tree)

    return shared(tmp_path_factory, "installed-from-source", build)


LOAD = """
import json, sys
from op_builder.catalog.registry import find_builder
for name in json.loads(sys.argv[1]):
    find_builder(name, "op_builder.cpu")().load()
print("loaded all")
"""


def load(*ops: str) -> list[str]:
    return ["-c", LOAD, json.dumps([BUILDERS[op].__name__ for op in ops])]


# Installing ------------------------------------------------------------------------------


def test_pip_builds_every_host_op_against_the_torch_that_is_there(from_source: Path) -> None:
    environment, log = Environment(from_source / "environment"), (from_source / "log").read_text()
    place = environment.site / "torch"
    assert f"in {place}, that of the environment that is installed into, {environment.directory}" in log
    assert not re.search(r"(Collecting|Downloading|Processing|Using cached|Obtaining) \S*torch\b", log)
    assert place.is_symlink(), "torch is as it was"
    assert len(list(environment.site.glob("torch-*.dist-info"))) == 1
    for op in HOST_OPS:
        assert re.search(rf"op_builder: {op}: (cached|\[\d+/\d+\] )", log), f"{op} was built, visibly"
    assert re.search(rf"op_builder: left out .*\b{NOT_OF_THE_CPU}\b.*: Not in accel-ops", log)
    assert sorted(path.stem for path in environment.ops.rglob("*.so")) == HOST_OPS
    if torch.version.cuda is None:
        assert "accelerator cpu (detected; ACCEL_ACCELERATOR names another" in log


def listing(site: Path) -> dict[str, tuple[int, int]]:
    """The files of a directory of packages with size and time; what links lead to is left out."""
    return {
        path: (status.st_size, status.st_mtime_ns)
        for parent, _, names in os.walk(site)
        # Bytecode beside the packages is of linked modules of one file: Python's, for any test that imports torch.
        if Path(parent) != site / "__pycache__"
        for path in (os.path.join(parent, name) for name in names)
        for status in (os.lstat(path),)
    }


def read_only(directory: Path) -> list[str]:
    """What to put before a command, so that it finds ``directory`` read-only; nothing where that cannot be done."""
    mount = 'mount --bind "$0" "$0" && mount -o remount,ro,bind "$0" && ! touch "$0/x" 2>/dev/null && exec "$@"'
    for how in (["unshare", "-m"], ["unshare", "-rm"]):
        command = [*how, "sh", "-c", mount, str(directory)]
        if shutil.which("unshare") and subprocess.run([*command, "true"], capture_output=True).returncode == 0:
            return command
    return []


def test_every_host_op_loads_from_a_read_only_installation_where_no_compiler_is(
    from_source: Path, tmp_path: Path
) -> None:
    environment = Environment(from_source / "environment")
    mounted, before = read_only(environment.site), listing(environment.site)
    variables = environment.without_compilers(tmp_path / "cache")
    # sh and mount lie where compilers do: they are found by PATH, the Python after them is not given it.
    command = [*mounted, "env", f"PATH={environment.programs}", environment.python, *load(*HOST_OPS)]
    told = run(*command, cwd=tmp_path, **{**variables, "PATH": os.environ["PATH"], "ACCEL_JIT": "0"})
    assert "loaded all" in told
    assert "is ignored" not in told
    assert listing(environment.site) == before
    # The one thing kept is that oneCCL can be opened, which a process was started to see.
    assert [path.name for path in (tmp_path / "cache").glob("*")] in ([], ["memo"])
    if not mounted:
        pytest.skip("nothing was written; no read-only mount can be made here to see that nothing was tried")


def test_the_report_says_installed_with_the_facts_of_the_manifest(from_source: Path, tmp_path: Path) -> None:
    environment = Environment(from_source / "environment")
    rows = environment.report(**environment.without_compilers(tmp_path / "cache"))
    assert [name for name, row in rows.items() if row["installed"]] == [name for name in rows if name in HOST_OPS]
    index = {op["op"]: op for op in json.loads((environment.ops / "wheel.json").read_text())["ops"]}
    for op in HOST_OPS:
        row = rows[op]
        assert (row["compatible"], row["cached"], row["reason"]) == (True, False, "")
        binary = environment.ops / index[op]["binary"]
        assert Path(row["prebuilt"]["directory"]) == binary.parent
        assert hashlib.sha256(binary.read_bytes()).hexdigest() == index[op]["sha256"] == row["prebuilt"]["sha256"]
        assert (row["prebuilt"]["torch_needed"], row["prebuilt"]["python_needed"]) == (">=2.10", "any")
        assert row["prebuilt"]["platform"] == f"{sys.platform} {platform.machine()}"
        assert row["prebuilt"]["compilers"] == index[op]["compilers"]
    table = environment.run("-m", "op_builder.report", COLUMNS="200")
    assert re.search(r"\bcpu_adam\b[^:]*: for torch >=2\.10,\s+any\s+CPython", table)
    assert re.search(rf"without +.*\b{NOT_OF_THE_CPU}\b.*: Not in accel-ops", table)


# What is asked for -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("switches", "ops"),
    [
        ({"ACCEL_BUILD_CPU_SGD": "1"}, ["cpu_sgd"]),
        (
            {"ACCEL_BUILD_OPS": "1", "ACCEL_BUILD_CPU_LION": "0", "ACCEL_BUILD_CPU_ADAM": "1"},
            [op for op in HOST_OPS if op != "cpu_lion"],
        ),
    ],
)
@pytest.mark.usefixtures("wheel")  # which has the ops built
def test_the_wheel_holds_the_ops_that_were_asked_for(
    tree: Path, environment: Environment, tmp_path: Path, switches: dict[str, str], ops: list[str]
) -> None:
    environment.pip("wheel", "--no-deps", "-w", tmp_path, tree, **switches)
    made = the_wheel(tmp_path)
    assert binaries_in(made) == ops
    index = index_of(made)
    assert sorted(op["op"] for op in index["ops"]) == ops
    left_out = {left["op"]: left["reason"] for left in index["left_out"]}
    if "ACCEL_BUILD_OPS" in switches:
        assert left_out["cpu_lion"] == "ACCEL_BUILD_CPU_LION=0"
        assert NOT_OF_THE_CPU in left_out
    else:
        assert left_out == {}, "what nobody asked for was not left out"


@pytest.mark.parametrize(
    ("switches", "reason"),
    [
        pytest.param(
            {"ACCEL_BUILD_OPS": "yes"},
            "op_builder: error: ACCEL_BUILD_OPS='yes' is not valid: expected 0 or 1.",
            id="neither 0 nor 1",
        ),
        pytest.param(
            {"ACCEL_BUILD_OPS": "1", "ACCEL_BUILD_CPU_ADM": "1"},
            "op_builder: error: ACCEL_BUILD_CPU_ADM is set, and there is no op of that name.",
            id="unknown op",
        ),
        pytest.param(
            {f"ACCEL_BUILD_{NOT_OF_THE_CPU.upper()}": "1"},
            f"op_builder: error: {NOT_OF_THE_CPU} cannot be built: Not in accel-ops",
            id="unavailable op",
        ),
        pytest.param(
            {"ACCEL_BUILD_CPU_SGD": "1", "PATH": "{programs}", "ACCEL_CACHE_DIR": "{directory}/cache"},
            "op_builder: error: cpu_sgd cannot be built: No C++ compiler",
            id="no compiler",
        ),
        pytest.param(
            {"ACCEL_BUILD_OPS": "1", "ACCEL_BUILD_TORCH": "{directory}/nowhere"},
            "nowhere is neither a Python that can be run nor a directory",
            id="no such torch",
        ),
    ],
)
def test_what_cannot_be_built_fails_the_install_with_the_reason(
    tree: Path, environment: Environment, switches: dict[str, str], reason: str
) -> None:
    before = listing(environment.site)
    places = {"programs": environment.programs, "directory": environment.directory}
    told = environment.pip(
        "install", tree, fails=True, **{name: value.format(**places) for name, value in switches.items()}
    )
    assert reason in told
    assert "Remedy: " in told
    assert "Traceback" not in told
    assert listing(environment.site) == before


def test_an_op_that_does_not_compile_fails_the_install_with_the_compilers_words(
    tree: Path, environment: Environment, tmp_path: Path
) -> None:
    binding = tree / "csrc" / "bindings" / "cpu_sgd.cpp"
    binding.write_text(f"{binding.read_text()}\nthis is no C++;\n")
    before = listing(environment.site)
    told = environment.pip(
        "install", tree, fails=True, ACCEL_BUILD_CPU_SGD="1", ACCEL_CACHE_DIR=str(tmp_path / "cache")
    )
    assert re.search(r"cpu_sgd\.cpp:\d+:\d+: error: ", told)
    assert "ACCEL_BUILD_CPU_SGD=0" in told
    assert listing(environment.site) == before


def test_where_there_is_no_torch_one_is_requested_and_the_log_says_so(tree: Path, tmp_path: Path) -> None:
    bare = bare_environment(tmp_path / "venv")
    # No index has this one, so that nothing is downloaded: a torch would take minutes.
    (tmp_path / "constraints").write_text("torch==0.0.1\n")
    constraints = str(tmp_path / "constraints")
    told = bare.pip(
        "install",
        "-v",
        tree,
        fails=True,
        ACCEL_BUILD_OPS="1",
        PIP_CONSTRAINT=constraints,
        PIP_BUILD_CONSTRAINT=constraints,
    )
    assert f"no torch in {bare.directory}, so torch>=2.10 is requested for this build" in told
    assert "ACCEL_BUILD_TORCH=<python or site-packages>" in told
    assert "torch==0.0.1" in told
    assert not (bare.site / "op_builder").exists()


# What does not fit here ------------------------------------------------------------------


def test_pip_refuses_the_wheel_of_another_architecture(wheel: Path, environment: Environment, tmp_path: Path) -> None:
    other = "aarch64" if platform.machine() != "aarch64" else "x86_64"
    renamed = tmp_path / wheel.name.replace(platform.machine(), other)
    shutil.copy(wheel, renamed)
    assert "is not a supported wheel on this platform" in environment.pip("install", "--no-deps", renamed, fails=True)
    assert not (environment.site / "op_builder").exists()


def of_another_architecture(directory: Path) -> str:
    manifest = json.loads((directory / "manifest.json").read_text())
    manifest["key_parts"]["platform"] = "linux riscv128"
    (directory / "manifest.json").write_text(json.dumps(manifest))
    return f"it was built for linux riscv128, this is {sys.platform} {platform.machine()}"


def deleted(directory: Path) -> str:
    (directory / "cpu_sgd.so").unlink()
    return "its binary cpu_sgd.so is missing; reinstall the package"


def altered(directory: Path) -> str:
    binary = directory / "cpu_sgd.so"
    content = bytearray(binary.read_bytes())
    content[len(content) // 2] ^= 1
    binary.write_bytes(content)
    return "its binary does not match its manifest (altered or truncated); reinstall the package"


def truncated(directory: Path) -> str:
    os.truncate(directory / "cpu_sgd.so", 5000)
    return "its binary does not match its manifest (altered or truncated); reinstall the package"


@pytest.mark.parametrize("change", [of_another_architecture, deleted, altered, truncated])
def test_an_installed_op_that_does_not_fit_is_passed_over_with_the_reason(
    installed: Environment, tmp_path: Path, change: Callable[[Path], str]
) -> None:
    (binary,) = installed.ops.rglob("cpu_sgd.so")
    reason = change(binary.parent)
    without = installed.without_compilers(tmp_path / "empty")
    row = installed.report(**without)["cpu_sgd"]
    assert not row["installed"]
    assert f"the prebuilt binary is ignored: {reason}" in row["reason"]
    assert "No C++ compiler" in row["reason"]
    warning = f"The prebuilt 'cpu_sgd' is ignored: {reason}."
    told = installed.run(*load("cpu_sgd"), fails=True, **without)
    assert warning in told
    assert "IncompatibleOpError: Op 'cpu_sgd' is not available here." in told
    assert "No C++ compiler" in told
    told = installed.run(*load("cpu_adam", "cpu_sgd"))  # with the compilers, and what they made in this run
    assert warning in told
    assert "cpu_adam' is ignored" not in told
    assert "loaded all" in told
    row = installed.report()["cpu_sgd"]
    assert (row["compatible"], row["installed"]) == (True, False)
    assert reason in row["reason"]


# The tag ---------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def audit(wheel: Path) -> dict[str, Any]:
    """What auditwheel finds in the wheel."""
    if importlib.util.find_spec("auditwheel") is None:
        pytest.skip("auditwheel is not installed")
    told = run(sys.executable, "-m", "auditwheel", "show", "--json", wheel, cwd=wheel.parent)
    return dict(json.JSONDecoder().raw_decode(told)[0])


def test_auditwheel_finds_no_library_but_torchs_own_and_oneccls(audit: dict[str, Any]) -> None:
    assert not audit["pure"]
    assert audit["external_libs"], "torch's, at least"
    others = {name for name in audit["external_libs"] if not re.fullmatch(r"lib(torch|c10)\w*\.so", name)}
    assert others == ({"libccl.so.1"} if "ccl_comm" in HOST_OPS else set()), "oneCCL's is for the op that is made of it"
    assert not audit["unsupported_isa"], "nothing is compiled for one CPU alone"
    for upgrade in audit["policy_upgrades"].values():
        assert "blacklisted_symbols" not in upgrade


def numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version)))


def test_the_tag_promises_no_older_c_library_than_auditwheel_finds(audit: dict[str, Any], wheel: Path) -> None:
    match = re.search(rf"-py3-none-manylinux_(\d+)_(\d+)_{platform.machine()}\.whl$", wheel.name)
    assert match is not None
    promised = (int(match[1]), int(match[2]))
    versions = [version for symbols in audit["versioned_symbols"].values() for version in symbols]
    needed = {
        family: max(numbers(v) for v in versions if v.startswith(f"{family}_")) for family in ("GLIBC", "GLIBCXX")
    }
    assert needed["GLIBC"] <= promised
    policies = Path(str(importlib.util.find_spec("auditwheel").origin)).with_name("policy")  # type: ignore[union-attr]
    of_promised = [
        policy["symbol_versions"][platform.machine()]
        for policy in json.loads((policies / "manylinux-policy.json").read_text())
        if policy["name"].startswith("manylinux") and numbers(policy["name"]) <= promised
    ]
    # The newest C++ library that systems with so old a C library have.
    assert needed["GLIBCXX"] <= max(numbers(version) for policy in of_promised for version in policy["GLIBCXX"])
    # Nor is the tag newer than need be: auditwheel knows fewer C libraries, and names the next of them.
    assert promised <= numbers(audit["sym_tag"].removesuffix(platform.machine()))[:2]


def test_the_wheel_brings_its_licence_and_the_notices(wheel: Path) -> None:
    licences = {name.partition(".dist-info/licenses/")[2] for name in files_in(wheel)} - {""}
    assert licences == {"LICENSE", "THIRD_PARTY_NOTICES.md"}


def test_the_wheel_says_its_tag_and_is_small(wheel: Path) -> None:
    files = files_in(wheel)
    (name,) = [name for name in files if name.endswith(".dist-info/WHEEL")]
    tag = "-".join(wheel.stem.split("-")[-3:])
    assert re.findall(r"^Tag: (.*)$", files[name].decode(), re.MULTILINE) == [tag] == [index_of(wheel)["tag"]]
    assert "Root-Is-Purelib: false" in files[name].decode()
    assert binaries_in(wheel) == HOST_OPS
    assert not [name for name in files if name.endswith(".pyc")]
    assert wheel.stat().st_size < 5 << 20


# CUDA, from a machine that has a toolkit and no device ---------------------------------------


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not on PATH")
def test_cuda_ops_are_built_where_no_device_is_beside_those_of_the_cpu(
    tree: Path, environment: Environment, tmp_path: Path
) -> None:
    log = environment.pip(
        "wheel",
        "-v",
        "--no-deps",
        "-w",
        tmp_path,
        tree,
        ACCEL_ACCELERATOR="cuda",
        ACCEL_BUILD_FUSED_LION="1",
        TORCH_CUDA_ARCH_LIST="8.0;9.0+PTX",
        CUDA_VISIBLE_DEVICES="",
    )
    assert "accelerator cuda (named)" in log
    made = the_wheel(tmp_path)
    assert binaries_in(made) == ["fused_lion", "fused_lion"]
    index = index_of(made)
    assert index["accelerator"] == "cuda"
    archs = {tuple(op["cuda_archs"]): op for op in index["ops"]}
    assert set(archs) == {("8.0", "9.0+PTX"), ()}
    assert len(archs["8.0", "9.0+PTX"]["compilers"]) == 2, "nvcc and its host compiler"
    cuda = files_in(made)[f"op_builder/_prebuilt/{archs['8.0', '9.0+PTX']['binary']}"]
    for code in (b"sm_80", b"sm_90"):
        assert code in cuda
    assert made.stat().st_size < 5 << 20

    environment.pip("install", "--no-deps", made)
    without = {**environment.without_compilers(tmp_path / "empty"), "CUDA_VISIBLE_DEVICES": ""}
    row = environment.report(**without)["fused_lion"]
    assert row["installed"]
    assert row["prebuilt"]["cuda_archs"] == []
    assert row["reason"] == ""
    told = environment.run(*load("fused_lion"), ACCEL_JIT="0", **without)
    assert "loaded all" in told
    assert "is ignored" not in told
    if torch.version.cuda is None:
        # For CUDA itself it is installed, too, and this torch cannot use it.
        row = environment.report(**{**without, "ACCEL_ACCELERATOR": "cuda"})["fused_lion"]
        assert not row["compatible"]
        assert "CUDA" in row["reason"]
