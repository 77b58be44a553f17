from __future__ import annotations

import hashlib
import io
import json
import os
import platform
import re
import shutil
import sys
import sysconfig
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

import op_builder
from op_builder import OpBuilder, env
from op_builder.cache.store import Cache, Entry
from op_builder.catalog.registry import find_builder
from op_builder.errors import AccelError, IncompatibleOpError, ToolchainError
from op_builder.prebuild import worker
from op_builder.prebuild.request import BuildRequest
from op_builder.report.collect import report
from op_builder.report.render import print_report
from tests.support.compilers import needs_gxx
from tests.support.foreign_package import install
from tests.support.small_ops import ACME_ADD, STABLE_SOURCE

ROOT = Path(op_builder.__file__).parents[1]
EVERYTHING = BuildRequest(True, {})
ADD_ALONE = BuildRequest(False, {"ACCEL_BUILD_ACME_SUM": True})
FOREIGN_ALONE = BuildRequest(False, {"ACCEL_BUILD_CPU_ADAM": True})
HERE = f"cp{sys.version_info.major}{sys.version_info.minor}"

OBJECTS = f"""{ACME_ADD}
class AcmeMoonBuilder(AcmeAddBuilder):
    NAME = "acme_moon"
    BUILD_VAR = ""

    def is_compatible(self, verbose=False):
        self.warning("It needs the moon.")
        return False

class AcmeUnmadeBuilder(AcmeAddBuilder):
    NAME = "acme_unmade"

    def __init__(self):
        raise RuntimeError("no luck")
"""

# A module on CPython's own interface, which fits no other Python.
MODULE = f"""{ACME_ADD}
class AcmeModuleBuilder(CPUOpBuilder):
    NAME = "acme_module"

    def sources(self):
        return ["kernels/module.cpp"]
"""

MODULE_SOURCE = """
#include <Python.h>
static PyModuleDef definition = {PyModuleDef_HEAD_INIT, "acme_module"};
PyMODINIT_FUNC PyInit_acme_module() { return PyModule_Create(&definition); }
"""


class Tree:
    """An unpacked wheel of a package that registers ops, on the path."""

    def __init__(self, directory: Path, builders: str = ACME_ADD) -> None:
        self.root = directory.resolve()
        self.name = f"acme_{uuid.uuid4().hex}"
        self.prebuilt = self.root / self.name / "_prebuilt"
        # Unique content: no test finds another's binary in the cache.
        files = {
            "__init__.py": "",
            "builders.py": builders,
            "kernels/add.cpp": f"{STABLE_SOURCE}\n// {self.name}\n",
            "kernels/amount.h": "#define AMOUNT 3.0f\n",
            "kernels/module.cpp": f"{MODULE_SOURCE}\n// {self.name}\n",
        }
        entry_points = f"[op_builder.ops]\nacme = {self.name}.builders\n"
        install(self.root, self.name, {f"{self.name}/{path}": text for path, text in files.items()}, entry_points)
        sys.path.insert(0, str(self.root))

    @property
    def index(self) -> dict[str, Any]:
        return dict(json.loads((self.prebuilt / "wheel.json").read_text()))

    @property
    def left_out(self) -> dict[str, str]:
        return {left["op"]: left["reason"] for left in self.index["left_out"]}

    @property
    def entries(self) -> list[Entry]:
        return Cache(self.prebuilt, in_package=True).entries()


@pytest.fixture(autouse=True)
def surroundings(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(sys, "path", [*sys.path])
    switches = {name: None for name in os.environ if name.startswith("ACCEL_BUILD_")}
    with env.scope(ACCEL_ACCELERATOR="cpu", DS_ACCELERATOR=None, **switches):
        yield
    for module in [module for module in sys.modules if module.startswith("acme_")]:
        del sys.modules[module]


def the_op(name: str = "AcmeAddBuilder") -> OpBuilder:
    return find_builder(name, "op_builder.cpu")()


def test_the_binary_and_the_index_are_in_the_ops_package(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    tree = Tree(tmp_path / "site", MODULE)
    tag = worker.prebuild(tree.root, ADD_ALONE)
    assert tag.startswith("py3-none-")
    assert tag.endswith(f"_{platform.machine()}")
    (facts,) = tree.index["ops"]
    content = (tree.prebuilt / facts["binary"]).read_bytes()
    (entry,) = tree.entries
    assert entry.artifact == tree.prebuilt / facts["binary"]
    assert (tree.index["tag"], tree.index["accelerator"], tree.index["distribution"]) == (tag, "cpu", tree.name)
    assert tree.left_out == {}, "an op that was not requested is not listed"
    assert (facts["op"], facts["torch"], facts["python"], facts["cuda_archs"]) == ("acme_add", ">=2.10", "any", [])
    assert facts["platform"] == f"{sys.platform} {platform.machine()}"
    assert (facts["sha256"], facts["size_bytes"]) == (hashlib.sha256(content).hexdigest(), len(content))
    assert facts["compilers"] == entry.manifest.compilers != []
    assert facts["needs"] == entry.manifest.needs
    assert "loaded in a child process" in facts["check"]
    steps = capfd.readouterr().err
    assert "op_builder: acme_add: [4/4] link acme_add.so\n" in steps
    assert "left out" not in steps
    # Loaded without a compiler, and without a cache.
    (tmp_path / "bin").mkdir()
    with env.scope(ACCEL_JIT="0", ACCEL_CACHE_DIR=str(tmp_path / "cache"), PATH=str(tmp_path / "bin"), CXX=None):
        x = torch.zeros(3)
        the_op().load().add_(x)
    assert x.tolist() == [3.0, 3.0, 3.0]
    assert not (tmp_path / "cache").exists()


def test_what_is_left_out_is_reported_with_the_reason(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    tree = Tree(tmp_path, f"{OBJECTS}\n{MODULE.removeprefix(ACME_ADD)}")
    worker.prebuild(tree.root, BuildRequest(True, {"ACCEL_BUILD_ACME_MODULE": False}))
    assert [entry.manifest.op for entry in tree.entries] == ["acme_add"]
    assert tree.left_out["acme_unmade"] == "Its builder cannot be created: RuntimeError: no luck."
    output = capfd.readouterr().err
    assert "op_builder: left out acme_moon: It needs the moon. " in output
    assert "op_builder: left out acme_module: ACCEL_BUILD_ACME_MODULE=0\n" in output
    text = io.StringIO()
    print_report(report(), Console(file=text, width=200))
    rows = rf"^ {tree.name} +py3-none-.*\n( +without .*\n){{3}} +with +acme_add: for torch"
    assert re.search(rows, text.getvalue(), re.MULTILINE)


# The builders, what is requested, the error and its remedy.
UNBUILDABLE = {
    "incompatible": (
        *(OBJECTS, BuildRequest(True, {"ACCEL_BUILD_ACME_MOON": True})),
        *("acme_moon cannot be built: It needs the moon.", "ACCEL_BUILD_ACME_MOON=0"),
    ),
    "no builder": (
        *(OBJECTS, BuildRequest(False, {"ACCEL_BUILD_ACME_UNMADE": True})),
        *("acme_unmade cannot be built: Its builder cannot be created: RuntimeError", "ACCEL_BUILD_ACME_UNMADE=0"),
    ),
    "module cannot be imported": (
        *(f"import no_such_module\n{ACME_ADD}", EVERYTHING),
        *("No module named 'no_such_module'", "unset the variables ACCEL_BUILD_*"),
    ),
    "does not compile": (
        *(f'{MODULE}\n    def cxx_args(self):\n        return ["-DPyInit_acme_module=0"]\n', EVERYTHING),
        *("module.cpp:4:", "ACCEL_BUILD_ACME_MODULE=0"),
    ),
    "unknown op": (
        *(ACME_ADD, BuildRequest(True, {"ACCEL_BUILD_ACME_SUN": False})),
        *("ACCEL_BUILD_ACME_SUN is set, but no op has that name.", "Did you mean ACCEL_BUILD_ACME_SUM?"),
    ),
}


@needs_gxx
@pytest.mark.parametrize(("builders", "request_", "message", "remedy"), UNBUILDABLE.values(), ids=UNBUILDABLE)
def test_an_op_that_cannot_be_built_is_an_error(
    tmp_path: Path, builders: str, request_: BuildRequest, message: str, remedy: str
) -> None:
    tree = Tree(tmp_path, builders)
    with pytest.raises(AccelError) as failed:
        worker.prebuild(tree.root, request_)
    assert message in failed.value.message
    assert "acme_add" not in failed.value.message
    assert remedy in failed.value.remedy
    assert not tree.prebuilt.exists()


@needs_gxx
@pytest.mark.parametrize("request_", [EVERYTHING, ADD_ALONE], ids=["everything", "one"])
def test_a_missing_compiler_is_an_error(tmp_path: Path, request_: BuildRequest) -> None:
    tree = Tree(tmp_path / "site")
    (tmp_path / "bin").mkdir()
    with (
        env.scope(PATH=str(tmp_path / "bin"), CXX=None),
        pytest.raises(AccelError, match=r"acme_add[\s\S]*No C\+\+ compiler") as failed,
    ):
        worker.prebuild(tree.root, request_)
    assert isinstance(failed.value, IncompatibleOpError) == (request_ is EVERYTHING)
    assert not tree.prebuilt.exists()


@needs_gxx
@pytest.mark.parametrize("word", ["-march=x86-64-v4", "-mcpu=native"])
def test_a_compiler_with_march_is_refused(tmp_path: Path, word: str) -> None:
    tree = Tree(tmp_path)
    with env.scope(CXX=f"g++ {word}"), pytest.raises(ToolchainError, match=word):
        worker.prebuild(tree.root, EVERYTHING)
    assert not tree.prebuilt.exists()


def test_an_op_of_another_package_is_not_built_into_this_one(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    Tree(tmp_path / "other")
    tree = Tree(tmp_path / "this", ACME_ADD.replace("Acme", "Zack").replace("acme", "zack").replace("ACME", "ZACK"))
    worker.prebuild(tree.root, EVERYTHING)
    assert [entry.manifest.op for entry in tree.entries] == ["zack_add"]
    shutil.rmtree(tree.prebuilt)
    assert worker.prebuild(tree.root, FOREIGN_ALONE) == ""
    assert "no op of this project is requested; the wheel has none" in capfd.readouterr().err
    assert tree.entries == []


def test_a_python_module_gives_the_wheel_this_pythons_tag(tmp_path: Path) -> None:
    tree = Tree(tmp_path, MODULE)
    tag = worker.prebuild(tree.root, EVERYTHING)
    assert tag.startswith(f"{HERE}-{HERE}-")
    facts = {op["op"]: op for op in tree.index["ops"]}
    assert facts["acme_module"]["python"] == sysconfig.get_config_var("EXT_SUFFIX")
    assert facts["acme_module"]["torch"] == torch.__version__
    assert facts["acme_add"]["python"] == "any"


def test_an_unwritable_cache_directory_is_not_used(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    tree = Tree(tmp_path / "site")
    (tmp_path / "file").touch()
    with env.scope(ACCEL_CACHE_DIR=str(tmp_path / "file" / "cache"), TMPDIR=str(tmp_path)):
        worker.prebuild(tree.root, EVERYTHING)
    (entry,) = tree.entries
    assert entry.is_intact()
    assert f"The cache directory {tmp_path}/file/cache cannot be written: " in capfd.readouterr().err
    assert {path.name for path in tmp_path.iterdir()} == {"site", "file"}, "the temporary cache is removed"


# Another platform ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("op", "reason"),
    [
        pytest.param("SHM_COMM", r"shm_comm cannot be built: it needs memfd_create.*macosx_arm64", id="Linux's"),
        pytest.param("CPU_ADAM", "needs the package ziglang", id="no compiler"),
    ],
)
def test_an_op_that_cannot_be_built_for_the_platform_is_an_error(
    monkeypatch: pytest.MonkeyPatch, op: str, reason: str
) -> None:
    monkeypatch.setattr("op_builder.toolchains.packaged.packaged_command", lambda *_: None)
    with env.scope(ACCEL_BUILD_TARGET="macosx_arm64"), pytest.raises(AccelError, match=reason):
        worker.prebuild(ROOT, BuildRequest(False, {f"ACCEL_BUILD_{op}": True}))
