"""Building the ops of an unpacked wheel: a small package of somebody else's, with ops that really compile."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import sysconfig
import textwrap
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from op_builder import OpBuilder, env
from op_builder.cache.staging import sweep
from op_builder.cache.store import Cache, Entry
from op_builder.catalog.registry import all_builders, find_builder
from op_builder.errors import AccelError, IncompatibleOpError, ToolchainError, UnknownOpError
from op_builder.load.prebuilt import Rejected, find_prebuilt
from op_builder.prebuild import worker
from op_builder.prebuild.order import Order
from op_builder.system import march
from tests.support.compilers import EndlessCompiler, wait_until
from tests.support.small_ops import STABLE_SOURCE

ROOT = Path(__file__).resolve().parents[2]
EVERYTHING = Order(True, {})
HERE = f"cp{sys.version_info.major}{sys.version_info.minor}"

# One op that any machine can build, beside others that are not to be had.
ADD = """
from op_builder import Binding, CPUOpBuilder

class AcmeAddBuilder(CPUOpBuilder):
    NAME = "acme_add"
    BUILD_VAR = "ACCEL_BUILD_ACME_SUM"
    BINDING = Binding.STABLE

    def sources(self):
        return ["kernels/add.cpp"]

    def include_paths(self):
        return ["csrc", "kernels"]
"""

OBJECTS = (
    ADD
    + """
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
)

BROKEN = (
    ADD
    + """
class AcmeBrokenBuilder(AcmeAddBuilder):
    NAME = "acme_broken"
    BUILD_VAR = "ACCEL_BUILD_ACME_BROKEN"

    def sources(self):
        return ["kernels/broken.cpp"]
"""
)

OF_THIS_CPU = (
    ADD
    + """
    def cxx_args(self):
        return [self.cpu_arch()]
"""
)

# A module on CPython's own interface, which fits no other Python.
MODULE = (
    ADD
    + """
class AcmeModuleBuilder(CPUOpBuilder):
    NAME = "acme_module"

    def sources(self):
        return ["kernels/module.cpp"]
"""
)

MODULE_SOURCE = """
#include <Python.h>
static PyModuleDef definition = {PyModuleDef_HEAD_INIT, "acme_module"};
PyMODINIT_FUNC PyInit_acme_module() { return PyModule_Create(&definition); }
"""


class Tree:
    """An unpacked wheel of a package that registers ops."""

    def __init__(self, root: Path, builders: str) -> None:
        self.root = root
        self.name = f"acme_{uuid.uuid4().hex}"
        self.package = root / self.name
        self.prebuilt = self.package / "_prebuilt"
        kernels = self.package / "kernels"
        kernels.mkdir(parents=True)
        (self.package / "__init__.py").touch()
        (self.package / "builders.py").write_text(builders)
        # A content of its own for each: what this run built for another test is not taken.
        (kernels / "add.cpp").write_text(f"{STABLE_SOURCE}\n// {self.name}\n")
        (kernels / "amount.h").write_text("#define AMOUNT 3.0f\n")
        (kernels / "module.cpp").write_text(f"{MODULE_SOURCE}\n// {self.name}\n")
        (kernels / "broken.cpp").write_text("#error broken on purpose\n")
        record = root / f"{self.name}-1.0.dist-info"
        record.mkdir()
        (record / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {self.name}\nVersion: 1.0\n")
        (record / "entry_points.txt").write_text(f"[op_builder.ops]\nacme = {self.name}.builders\n")

    @property
    def index(self) -> dict[str, Any]:
        return dict(json.loads((self.prebuilt / "wheel.json").read_text()))

    @property
    def left_out(self) -> dict[str, str]:
        return {left["op"]: left["reason"] for left in self.index["left_out"]}

    @property
    def entries(self) -> list[Entry]:
        return Cache(self.prebuilt, is_ours=False).entries()


@pytest.fixture(autouse=True)
def surroundings(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(sys, "path", [*sys.path])
    switches = {name: None for name in os.environ if name.startswith("ACCEL_BUILD_")}
    with env.scope(ACCEL_ACCELERATOR="cpu", DS_ACCELERATOR=None, **switches):
        yield
    for module in [module for module in sys.modules if module.startswith("acme_")]:
        del sys.modules[module]


def make_tree(directory: Path, builders: str = ADD) -> Tree:
    tree = Tree(directory.resolve(), builders)
    sys.path.insert(0, str(tree.root))
    return tree


def the_op(name: str = "AcmeAddBuilder") -> OpBuilder:
    return find_builder(name, "op_builder.cpu")()


def test_the_binary_and_its_facts_lie_in_the_package_that_declares_the_op(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    tree = make_tree(tmp_path)
    tag = worker.prebuild(tree.root, Order(False, {"ACCEL_BUILD_ACME_SUM": True}))
    assert tag.startswith("py3-none-")
    assert tag.endswith(f"_{platform.machine()}")
    (facts,) = tree.index["ops"]
    binary = tree.prebuilt / facts["binary"]
    content = binary.read_bytes()
    (entry,) = tree.entries
    assert entry.artifact == binary
    assert tree.index["tag"] == tag
    assert tree.index["accelerator"] == "cpu"
    assert tree.index["left_out"] == []
    assert (facts["op"], facts["torch"], facts["python"], facts["cuda_archs"]) == ("acme_add", ">=2.10", "any", [])
    assert facts["platform"] == f"{sys.platform} {platform.machine()}"
    assert (facts["sha256"], facts["size_bytes"]) == (hashlib.sha256(content).hexdigest(), len(content))
    assert facts["compilers"] == entry.manifest.compilers != []
    assert facts["needs"] == entry.manifest.needs
    assert "loaded in a child process" in facts["check"]
    steps = capfd.readouterr().err
    assert "op_builder: acme_add: [4/4] link acme_add.so\n" in steps
    assert "left out" not in steps


def test_what_was_built_is_loaded_without_a_compiler_and_without_a_cache(tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "site")
    worker.prebuild(tree.root, EVERYTHING)
    (tmp_path / "bin").mkdir()
    with env.scope(ACCEL_JIT="0", ACCEL_CACHE_DIR=str(tmp_path / "cache"), PATH=str(tmp_path / "bin"), CXX=None):
        x = torch.zeros(3)
        the_op().load().add_(x)
    assert x.tolist() == [3.0, 3.0, 3.0]
    assert not (tmp_path / "cache").exists()


def test_only_what_was_asked_for_is_built(tmp_path: Path) -> None:
    tree = make_tree(tmp_path, MODULE)
    worker.prebuild(tree.root, Order(False, {"ACCEL_BUILD_ACME_SUM": True}))
    assert [entry.manifest.op for entry in tree.entries] == ["acme_add"]
    assert tree.left_out == {}, "what nobody asked for was not left out"


def test_what_is_left_out_is_told_with_the_reason(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    tree = make_tree(tmp_path, f"{OBJECTS}\n{MODULE.removeprefix(ADD)}")
    worker.prebuild(tree.root, Order(True, {"ACCEL_BUILD_ACME_MODULE": False}))
    assert [entry.manifest.op for entry in tree.entries] == ["acme_add"]
    assert tree.left_out["acme_moon"] == "It needs the moon."
    assert tree.left_out["acme_module"] == "ACCEL_BUILD_ACME_MODULE=0"
    assert tree.left_out["acme_unmade"] == "Its builder cannot be made: RuntimeError: no luck"
    told = capfd.readouterr().err
    assert "op_builder: left out acme_moon: It needs the moon.\n" in told
    assert "op_builder: left out acme_module: ACCEL_BUILD_ACME_MODULE=0\n" in told


def test_an_op_that_is_insisted_on_and_cannot_be_built_is_an_error(tmp_path: Path) -> None:
    tree = make_tree(tmp_path, OBJECTS)
    with pytest.raises(AccelError) as failed:
        worker.prebuild(tree.root, Order(True, {"ACCEL_BUILD_ACME_MOON": True}))
    assert failed.value.message == "acme_moon cannot be built: It needs the moon."
    assert "ACCEL_BUILD_ACME_MOON=0" in failed.value.remedy
    assert not tree.prebuilt.exists()


def test_an_op_that_is_insisted_on_and_whose_builder_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    tree = make_tree(tmp_path, OBJECTS)
    with pytest.raises(
        AccelError, match="acme_unmade cannot be built: Its builder cannot be made: RuntimeError: no luck"
    ):
        worker.prebuild(tree.root, Order(False, {"ACCEL_BUILD_ACME_UNMADE": True}))
    assert not tree.prebuilt.exists()


def test_a_project_whose_builders_cannot_be_imported_is_an_error_where_its_ops_are_asked_for(tmp_path: Path) -> None:
    tree = make_tree(tmp_path, "import no_such_module\n" + ADD)
    with pytest.raises(IncompatibleOpError, match="No module named 'no_such_module'"):
        worker.prebuild(tree.root, EVERYTHING)
    assert worker.prebuild(tree.root, Order(False, {"ACCEL_BUILD_CPU_ADAM": True})) == ""


def test_what_another_device_has_is_no_obstacle_to_what_this_one_builds() -> None:
    builders = [*all_builders("op_builder.xpu").values(), *all_builders("op_builder.cpu").values()]
    chosen, left_out = worker._choose(builders, Order(False, {"ACCEL_BUILD_RMS_NORM": True}), "xpu")
    assert [(builder.name, type(builder).__module__) for builder in chosen] == [("rms_norm", "op_builder.xpu.kernels")]
    chosen, left_out = worker._choose(builders, EVERYTHING, "xpu")
    assert {builder.name for builder in chosen}.isdisjoint(left.op for left in left_out)


@pytest.mark.parametrize("word", ["-march=x86-64-v4", "-mcpu=native"])
def test_a_compiler_that_ties_all_binaries_to_a_cpu_is_refused(tmp_path: Path, word: str) -> None:
    tree = make_tree(tmp_path)
    with env.scope(CXX=f"g++ {word}"), pytest.raises(ToolchainError, match=word):
        worker.prebuild(tree.root, EVERYTHING)
    assert not tree.prebuilt.exists()


@pytest.mark.parametrize("order", [EVERYTHING, Order(False, {"ACCEL_BUILD_ACME_SUM": True})])
def test_without_a_compiler_nothing_is_made(tmp_path: Path, order: Order) -> None:
    tree = make_tree(tmp_path / "site")
    (tmp_path / "bin").mkdir()
    with env.scope(PATH=str(tmp_path / "bin"), CXX=None), pytest.raises(AccelError) as failed:
        worker.prebuild(tree.root, order)
    assert "acme_add" in failed.value.message
    assert "No C++ compiler" in failed.value.message
    assert not tree.prebuilt.exists()
    if order.insists_on(the_op()):
        assert "ACCEL_BUILD_ACME_SUM=0" in failed.value.remedy, "the variable that its builder names"
    else:
        assert isinstance(failed.value, IncompatibleOpError)


def test_an_op_that_does_not_compile_fails_all(tmp_path: Path) -> None:
    tree = make_tree(tmp_path, BROKEN)
    with pytest.raises(AccelError) as failed:
        worker.prebuild(tree.root, EVERYTHING)
    assert "acme_broken cannot be built" in failed.value.message
    assert "broken.cpp:1:2: error: #error broken on purpose" in failed.value.message
    assert "acme_add" not in failed.value.message
    assert "ACCEL_BUILD_ACME_BROKEN=0" in failed.value.remedy
    assert not tree.prebuilt.exists()


def test_a_switch_of_no_op_is_refused_before_anything_is_built(tmp_path: Path) -> None:
    tree = make_tree(tmp_path)
    with pytest.raises(UnknownOpError, match=r"Did you mean ACCEL_BUILD_ACME_SUM\?"):
        worker.prebuild(tree.root, Order(True, {"ACCEL_BUILD_ACME_SUN": False}))
    assert not tree.prebuilt.exists()


def test_an_op_of_another_package_is_not_built_into_this_one(tmp_path: Path) -> None:
    make_tree(tmp_path / "other")
    tree = make_tree(tmp_path / "this", MODULE.replace("Acme", "Zack").replace("acme", "zack").replace("ACME", "ZACK"))
    (tree.package / "kernels" / "module.cpp").write_text(MODULE_SOURCE.replace("acme", "zack"))
    worker.prebuild(tree.root, EVERYTHING)
    assert sorted(entry.manifest.op for entry in tree.entries) == ["zack_add", "zack_module"]


def test_where_other_packages_ops_alone_are_asked_for_nothing_is_built(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    tree = make_tree(tmp_path)
    assert worker.prebuild(tree.root, Order(False, {"ACCEL_BUILD_CPU_ADAM": True})) == ""
    assert "none of this project's ops is asked for; the wheel holds none" in capfd.readouterr().err
    assert tree.entries == []


def test_one_op_on_pythons_own_interface_ties_the_wheel_to_this_python(tmp_path: Path) -> None:
    tree = make_tree(tmp_path, MODULE)
    tag = worker.prebuild(tree.root, EVERYTHING)
    assert tag.startswith(f"{HERE}-{HERE}-")
    facts = {op["op"]: op for op in tree.index["ops"]}
    assert facts["acme_module"]["python"] == sysconfig.get_config_var("EXT_SUFFIX")
    assert facts["acme_module"]["torch"] == torch.__version__
    assert facts["acme_add"]["python"] == "any"


def test_a_binary_for_one_kind_of_cpu_is_passed_over_on_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = make_tree(tmp_path, OF_THIS_CPU)
    worker.prebuild(tree.root, EVERYTHING)
    assert isinstance(find_prebuilt(the_op()), Entry)
    monkeypatch.setattr(march, "architecture_flag", lambda: "-march=i486")
    found = find_prebuilt(the_op())
    assert isinstance(found, Rejected)
    assert found.reason == "it was built from another recipe (c++ flags)"


def test_a_binary_for_this_very_cpu_is_passed_over_on_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = make_tree(tmp_path, OF_THIS_CPU.replace("self.cpu_arch()", '"-march=native"'))
    worker.prebuild(tree.root, EVERYTHING)
    assert isinstance(find_prebuilt(the_op()), Entry)
    monkeypatch.setattr("op_builder.load.prebuilt.cpu_digest", lambda: "another")
    found = find_prebuilt(the_op())
    assert isinstance(found, Rejected)
    assert found.reason == "it was compiled for the very CPU of another machine (-march=native)"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"format": 99}', "its manifest is of another version of accel-ops"),
        (None, "its manifest cannot be read"),
        ("{", "its manifest cannot be read"),
    ],
    ids=["format", "gone", "torn"],
)
def test_a_prebuilt_whose_manifest_tells_nothing_is_passed_over_with_the_reason(
    tmp_path: Path, text: str | None, reason: str
) -> None:
    tree = make_tree(tmp_path)
    worker.prebuild(tree.root, EVERYTHING)
    (entry,) = tree.entries
    manifest = entry.directory / "manifest.json"
    if text is None:
        manifest.unlink()
    else:
        manifest.write_text(text)
    found = find_prebuilt(the_op())
    assert isinstance(found, Rejected)
    assert found.reason == f"{reason}; reinstall the package"
    assert entry.artifact.exists()


def test_a_cache_directory_that_cannot_be_written_is_done_without(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    tree = make_tree(tmp_path / "site")
    (tmp_path / "file").touch()
    with env.scope(ACCEL_CACHE_DIR=str(tmp_path / "file" / "cache"), TMPDIR=str(tmp_path)):
        worker.prebuild(tree.root, EVERYTHING)
    (entry,) = tree.entries
    assert entry.is_intact()
    assert f"the cache {tmp_path}/file/cache cannot be written" in capfd.readouterr().err
    assert {path.name for path in tmp_path.iterdir()} == {"site", "file"}, "what it built in is gone"


def test_the_same_tree_in_another_place_gives_the_same_files(tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "a")
    shutil.copytree(tree.root, tmp_path / "b")

    def built(root: Path, cache: str) -> dict[str, bytes]:
        with env.scope(ACCEL_CACHE_DIR=str(tmp_path / cache)):
            sys.path.insert(0, str(root))
            for module in [module for module in sys.modules if module.startswith("acme_")]:
                del sys.modules[module]
            worker.prebuild(root, EVERYTHING)
        return {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*.so")}

    first, again = built(tree.root, "one"), built(tmp_path / "b", "two")
    assert len(first) == 1
    assert first == again


def test_run_by_the_backend_it_leaves_the_tag_or_ends_with_the_reason(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    tree = make_tree(tmp_path / "site", OBJECTS)
    answer = tmp_path / "tag"
    moon = json.dumps([False, {"ACCEL_BUILD_ACME_MOON": True}])
    assert worker.main([str(tree.root), moon, str(answer)]) == worker.REFUSED
    assert not answer.exists()
    told = capfd.readouterr().err.splitlines()
    assert "op_builder: error: acme_moon cannot be built: It needs the moon." in told
    assert worker.main([str(tree.root), json.dumps([True, {}]), str(answer)]) == 0
    assert answer.read_text() == tree.index["tag"]


def test_ctrl_c_leaves_no_compiler_running_and_nothing_half_written(tmp_path: Path) -> None:
    compiler = EndlessCompiler.make(tmp_path)
    tree = Tree(tmp_path / "project", ADD)
    (tree.root / "pyproject.toml").write_text(
        textwrap.dedent(f"""
        [project]
        name = "acme"
        version = "1.0"
        [project.entry-points."op_builder.ops"]
        acme = "{tree.name}.builders"
        [tool.setuptools]
        packages = ["{tree.name}"]
        package-data = {{ "*" = ["kernels/*"] }}
        """)
    )
    for place in ("tmp", "out"):
        (tmp_path / place).mkdir()
    process = subprocess.Popen(
        [
            sys.executable,
            "-c",
            f"from op_builder.prebuild import backend; backend.build_wheel({str(tmp_path / 'out')!r})",
        ],
        cwd=tree.root,
        env=env.child_environment(
            PYTHONPATH=str(ROOT),
            CXX=str(compiler.path),
            ACCEL_CACHE_DIR=str(tmp_path / "cache"),
            TMPDIR=str(tmp_path / "tmp"),
            ACCEL_BUILD_OPS="1",
        ),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    wait_until(lambda: bool(compiler.processes()) or process.poll() is not None)
    assert process.poll() is None, process.communicate()
    os.killpg(process.pid, signal.SIGINT)  # as a terminal sends it: to all of the group
    told, _ = process.communicate(timeout=60)
    assert process.returncode != 0
    assert "acme_add: [" not in told
    wait_until(compiler.ended)
    assert list((tmp_path / "out").iterdir()) == []
    assert list((tmp_path / "tmp").iterdir()) == []
    assert not tree.prebuilt.exists()
    assert Cache(tmp_path / "cache").entries() == []
    sweep(tmp_path / "cache" / "staging")
    assert list((tmp_path / "cache" / "staging").iterdir()) == []
