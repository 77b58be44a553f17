"""The package ziglang: ops where no compiler is, wheels for other platforms, and ``accel-cc`` and ``accel-c++``."""

from __future__ import annotations

import json
import platform
import shutil
import struct
import sys
import sysconfig
from pathlib import Path

import pytest

from op_builder.system import elf, macho
from tests.support.environments import (
    ROOT,
    Environment,
    copy_sources,
    files_in,
    index_of,
    make_environment,
    run,
    shared,
    the_wheel,
)

pytestmark = pytest.mark.slow

PROGRAMS = ROOT / "tests" / "support" / "ziglang_programs.py"


@pytest.fixture(scope="session")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with ziglang; it is not in the environment, where it would serve every test."""

    def install(directory: Path) -> None:
        options = ("--quiet", "--no-deps", "--target", directory, "-c", ROOT / "build_tools" / "constraints.txt")
        run(sys.executable, "-m", "pip", "install", *options, "ziglang", cwd=directory)

    return shared(tmp_path_factory, "ziglang", install)


# Ops -------------------------------------------------------------------------------------


def test_ops_are_compiled_and_those_on_torchs_headers_are_refused(packages: Path, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "sh").symlink_to(shutil.which("sh") or "/bin/sh")
    variables = {
        "PATH": str(tmp_path / "bin"),
        "CXX": None,
        "PYTHONPATH": str(packages),
        "ACCEL_CACHE_DIR": str(tmp_path / "cache"),
        "ACCEL_ACCELERATOR": "cpu",
    }
    output = run(sys.executable, PROGRAMS, "load", cwd=tmp_path, **variables)
    assert output.count("No C++ compiler is on PATH: using") == 1
    lines = [line for line in output.splitlines() if line.startswith("[")]
    assert lines == ["[0.5, 0.5, 0.5]", "[1.0, 1.0]"]
    # An exception of libc++ would end the process in torch, which has libstdc++.
    for name, error in (("boxed", "ValueError"), ("torch_boxed", "ValueError"), ("by_torch", "RuntimeError")):
        assert f"{name} with threads: 9\n" in output
        assert output.count(f"{error} of {name} ") == 2, output
        assert "count is negative" in output
    for refused in output.split("refused:")[1:]:
        assert "it uses libc++" in refused
        assert "declare BINDING = Binding.STABLE" in refused
    assert output.count("refused:") == 2
    report = run(sys.executable, "-m", "op_builder.report", "--json", cwd=tmp_path, **variables)
    toolchains = json.JSONDecoder().raw_decode(report)[0]["environment"]["toolchains"]
    assert str(packages) in json.dumps(toolchains["c++"])


# Other platforms -------------------------------------------------------------------------

OP = "pin_memory"
LOAD_ONE = "from op_builder.cpu import PinMemoryBuilder; PinMemoryBuilder().load()"
ARM64 = 0x100000C  # CPU_TYPE_ARM64


@pytest.fixture
def wheel(request: pytest.FixtureRequest, packages: Path, tmp_path: Path) -> Path:
    """The wheel with the ops for the platform that the test names."""
    target, *ops = request.param.split()
    tree = copy_sources(request.getfixturevalue("tmp_path_factory"), tmp_path / "accel-ops")
    options = ("--target", target, "--wheel", tmp_path / "dist", *(ops or [OP]))
    run(sys.executable, "-m", "op_builder.build", *options, cwd=tree, PYTHONPATH=f"{tree}:{packages}")
    return the_wheel(tmp_path / "dist")


def binary_of(wheel: Path, directory: Path, target: str) -> Path:
    (facts,) = index_of(wheel)["ops"]
    assert facts["check"] == f"undefined symbols only: it is for {target}"
    file = directory / "binary"
    file.write_bytes(files_in(wheel)[f"op_builder/_prebuilt/{facts['binary']}"])
    return file


@pytest.mark.parametrize("wheel", ["linux_x86_64 cpu_adam async_io"], indirect=True)
@pytest.mark.skipif(platform.machine() != "x86_64", reason="needs an x86-64 machine")
def test_a_wheel_for_x86_64_needs_only_glibc_2_17_and_works(wheel: Path, tmp_path: Path) -> None:
    assert wheel.name.endswith("-py3-none-manylinux_2_17_x86_64.whl")
    place = tmp_path / "unpacked"
    run(sys.executable, "-m", "zipfile", "-e", wheel, place, cwd=tmp_path)
    variables = {"PYTHONPATH": str(place), "ACCEL_JIT": "0", "ACCEL_CACHE_DIR": str(tmp_path / "cache")}
    assert run(sys.executable, PROGRAMS, "use", tmp_path / "file", cwd=tmp_path, **variables).strip() == "4851.0"


@pytest.mark.parametrize("wheel", ["linux_aarch64"], indirect=True)
def test_a_wheel_for_aarch64_needs_only_glibc_2_17_and_is_ignored_elsewhere(wheel: Path, tmp_path: Path) -> None:
    assert wheel.name.endswith("-py3-none-manylinux_2_17_aarch64.whl")
    file = binary_of(wheel, tmp_path, "linux_aarch64")
    library = elf.read_library(file)
    assert library.machine == "aarch64"
    assert {*library.needed} >= {"libtorch_cpu.so", "libc.so.6"}
    assert not any("stdc++" in name or "c++" in name for name in library.needed)
    assert "accel_register_library" in library.defined
    assert "aoti_torch_library_def" in library.undefined

    place = tmp_path / "unpacked"
    options = ("--no-deps", "--no-index", "--only-binary", ":all:", "--platform", "manylinux_2_17_aarch64")
    run(sys.executable, "-m", "pip", "install", "-q", "--target", place, *options, wheel, cwd=tmp_path)
    variables = {"PYTHONPATH": str(place), "ACCEL_JIT": "0", "ACCEL_CACHE_DIR": str(tmp_path / "cache")}
    output = run(sys.executable, "-c", LOAD_ONE, cwd=tmp_path, fails=True, **variables)
    assert "The prebuilt 'pin_memory' is ignored. It was built for linux aarch64, this is linux" in output
    assert "Remedy:" in output


@pytest.mark.parametrize("wheel", ["macosx_arm64"], indirect=True)
def test_a_wheel_for_macos_needs_only_torch_and_the_system(wheel: Path, tmp_path: Path) -> None:
    assert wheel.name.endswith("-py3-none-macosx_11_0_arm64.whl")
    file = binary_of(wheel, tmp_path, "macosx_arm64")
    assert struct.unpack_from("<2I", file.read_bytes()) == (0xFEEDFACF, ARM64)
    library = macho.read_library(file)
    assert library.least_macos == "11.0"
    assert "accel_register_library" in library.defined
    of_process = {name for name in library.undefined if "@" not in name}
    assert of_process >= {"aoti_torch_library_def", "torch_library_impl"}
    assert all(name.startswith(("aoti_torch_", "torch_")) for name in of_process)
    assert {name.partition("@")[2] for name in library.undefined - of_process} == {"/usr/lib/libSystem.B.dylib"}


# Programs that take a compiler from CC and CXX --------------------------------------------

# As Triton compiles its launcher: a library of the driver is named by its file.
LAUNCHER = """
#include <Python.h>
int cuInit(unsigned);
static PyObject* start(PyObject* self, PyObject* none) { return PyLong_FromLong(cuInit(0)); }
static PyMethodDef methods[] = {{"start", start, METH_NOARGS, NULL}, {NULL, NULL, 0, NULL}};
static PyModuleDef definition = {PyModuleDef_HEAD_INIT, "launcher", NULL, -1, methods};
PyMODINIT_FUNC PyInit_launcher(void) { return PyModule_Create(&definition); }
"""


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> tuple[Environment, dict[str, str | None]]:
    directory = tmp_path_factory.mktemp("compiler")
    made = make_environment(directory / "environment")
    made.pip("install", "--quiet", "--no-deps", "--no-build-isolation", ROOT)
    missing = made.run("-m", "op_builder", "env", fails=True)
    assert "pip install ziglang" in missing
    pinned = ["-c", ROOT / "build_tools" / "constraints.txt"]
    try:
        made.pip("install", "--quiet", "--no-deps", *pinned, "ziglang")
    except AssertionError as error:
        pytest.skip(f"ziglang cannot be installed: {error}")
    path: dict[str, str | None] = {"PATH": str(directory / "empty")}
    variables = json.loads(made.run("-m", "op_builder", "env", "--json", **path))
    assert Path(variables["CXX"]) == made.programs / "accel-c++"
    return made, {**path, **variables, "TORCHINDUCTOR_CACHE_DIR": str(directory / "inductor")}


def test_inductor_computes_as_eager_torch(machine: tuple[Environment, dict[str, str | None]]) -> None:
    made, variables = machine
    output = made.run(ROOT / "tests" / "support" / "compiled_models.py", **variables)
    assert "compared 9 models; OpenMP: ['libgomp.so.1']" in output


def test_openmp_loops_of_any_schedule_run(machine: tuple[Environment, dict[str, str | None]], tmp_path: Path) -> None:
    variables = machine[1]
    source = ROOT / "tests" / "support" / "native" / "openmp_loops.cpp"
    flags = ("-O2", "-fopenmp", "-Wall", "-Wextra", "-Werror", "-lgomp")
    run(str(variables["CXX"]), source, *flags, "-o", "loops", cwd=tmp_path, **variables)
    assert run("./loops", cwd=tmp_path, **variables) == "0 errors\n"


def test_a_launcher_of_triton_compiles(machine: tuple[Environment, dict[str, str | None]], tmp_path: Path) -> None:
    made, variables = machine
    cc = str(variables["CC"])
    (tmp_path / "cuda.c").write_text("int cuInit(unsigned flags) { return 7; }\n")
    library = ["-shared", "-fPIC", "-O3"]
    run(cc, *library, "cuda.c", "-Wl,-soname,libcuda.so.1", "-o", "libcuda.so.1", cwd=tmp_path, **variables)
    (tmp_path / "main.c").write_text(LAUNCHER)
    where = [f"-L{tmp_path}", f"-I{sysconfig.get_paths()['include']}"]
    words = ["main.c", *library, "-fopenmp", "-Wno-psabi", "-o", "launcher.so", "-l:libcuda.so.1", *where]
    run(cc, *words, cwd=tmp_path, **variables)
    program = "import launcher; print(launcher.start())"
    answer = made.run("-c", program, **variables, PYTHONPATH=str(tmp_path), LD_LIBRARY_PATH=str(tmp_path))
    assert answer == "7\n"
