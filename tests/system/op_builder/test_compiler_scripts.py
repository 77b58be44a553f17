"""``accel-cc``, ``accel-c++`` and ``accel-ops env`` where no compiler and no openssl is on PATH."""

from __future__ import annotations

import json
import sysconfig
from pathlib import Path

import pytest

from tests.support.environments import ROOT, Environment, make_environment, run

pytestmark = pytest.mark.slow

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
    assert "compared 22 models; OpenMP: ['libgomp.so.1']" in output


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
