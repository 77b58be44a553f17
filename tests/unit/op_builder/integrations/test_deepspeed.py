"""Switching DeepSpeed, over a package that has what the switch looks at."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.support.foreign_package import ROOT, python, write_package

ACCELERATOR = """
from importlib import import_module

from accelerator.abstract_accelerator import DeepSpeedAccelerator


class Own:
    def __init__(self, name):
        self.name = name

    def device_name(self):
        return self.name

    def op_builder_dir(self):
        return "deepspeed.ops.op_builder"

    def get_op_builder(self, name):
        try:
            from op_builder import __deepspeed__
        except ImportError:
            pass
        else:
            raise SystemExit("the door is open")
        return getattr(import_module("deepspeed.ops.op_builder.own"), name, None)

    def create_op_builder(self, name):
        return self.get_op_builder(name)()


current = Own("%s")


def get_accelerator():
    return current


def set_accelerator(accelerator):
    global current
    assert isinstance(accelerator, (DeepSpeedAccelerator, Own))
    current = accelerator
"""
OWN = """
class CPUAdamBuilder:
    pass


class FusedAdamBuilder:
    pass
"""
RESOLVE = """
from deepspeed.accelerator.real_accelerator import get_accelerator
import deepspeed.ops.op_builder.own

for name in ("CPUAdamBuilder", "FusedAdamBuilder", "ShareMemCommBuilder", "TransformerBuilder"):
    globals()[name] = get_accelerator().get_op_builder(name)
"""
LISTS = """
try:
    from accelerator import get_accelerator
except ImportError:
    from deepspeed.accelerator.real_accelerator import get_accelerator
asked = type(get_accelerator()).__module__
"""
SHOW = """
import deepspeed.user as user
from deepspeed.accelerator.real_accelerator import get_accelerator
def show():
    from deepspeed.ops.op_builder import all_ops
    print(type(get_accelerator()).__module__.partition(".")[0], user.CPUAdamBuilder.__module__.partition(".")[0],
          user.FusedAdamBuilder.__module__.partition(".")[0], all_ops.asked.partition(".")[0])
show()
import op_builder.integrations.deepspeed as integration
integration.off()
integration.off()
show()
"""

OURS = {"cpu": "accelerator op_builder op_builder accelerator", "cuda": "deepspeed op_builder op_builder deepspeed"}


@pytest.fixture
def device(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The device that DeepSpeed finds, which is the CPU unless a test names another."""
    name = str(getattr(request, "param", "cpu"))
    files = {
        "__init__.py": "import deepspeed.user\n",
        "accelerator/real_accelerator.py": ACCELERATOR % name,
        "ops/op_builder/__init__.py": RESOLVE,
        "ops/op_builder/own.py": OWN,
        "ops/op_builder/all_ops.py": LISTS,
        # What DS_BUILD_OPS compiled; this library's ops replace such, too.
        "git_version_info_installed.py": "installed_ops = {'installed': True, 'cpu_adam': True, 'fused_adam': True}\n",
        "user.py": "from deepspeed.ops.op_builder import CPUAdamBuilder, FusedAdamBuilder\n",
    }
    write_package(tmp_path, "deepspeed", files)
    (tmp_path / "deepspeed-0.19.8.dist-info").mkdir()
    (tmp_path / "deepspeed-0.19.8.dist-info" / "METADATA").write_text("Name: deepspeed\nVersion: 0.19.8\n")
    return name


def run(tmp_path: Path, code: str, **variables: str | None) -> tuple[list[str], str]:
    """The lines that the code prints, and what it logs."""
    begin = 'import logging; logging.basicConfig(level="INFO", format="%(levelname)s %(message)s")\n'
    code = begin + textwrap.dedent(code)
    done = python("-c", code, paths=[tmp_path], **{"ACCEL_ACCELERATOR": "cpu", **variables})
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines(), done.stderr


@pytest.mark.parametrize(
    ("device", "how"),
    [("cpu", "before"), ("cpu", "after"), ("cpu", "inside"), ("cpu", "variable"), ("cuda", "after")],
    indirect=["device"],
)
def test_deepspeed_gets_our_builders_and_its_own_back(tmp_path: Path, device: str, how: str) -> None:
    line, begin = "import op_builder.integrations.deepspeed\n", "import deepspeed\n"
    if how == "inside":  # while DeepSpeed is being imported
        start = tmp_path / "deepspeed" / "__init__.py"
        start.write_text(line + start.read_text())
    code = {"before": line, "after": begin + line}.get(how, begin) + SHOW
    again = "print('again')\nintegration.on()\nshow()\n"
    lines, log = run(tmp_path, code + again, ACCEL_DEEPSPEED="1" if how == "variable" else None)
    assert lines[0].startswith(OURS[device])
    assert lines[1:3] == ["deepspeed deepspeed deepspeed deepspeed", "again"]
    assert lines[3] == lines[0]
    assert log.count("uses accel-ops") == 2


@pytest.mark.usefixtures("device")
def test_nothing_changes_without_the_switch(tmp_path: Path) -> None:
    lines, log = run(tmp_path, "from accelerator import get_accelerator; get_accelerator()\nimport deepspeed\n" + SHOW)
    assert lines[0] == "deepspeed deepspeed deepspeed deepspeed"
    assert "uses accel-ops" in log  # the import in SHOW, for its off()


@pytest.mark.usefixtures("device")
def test_a_value_that_the_variable_does_not_take_is_a_warning(tmp_path: Path) -> None:
    lines, log = run(tmp_path, "import deepspeed; print('imported')", ACCEL_DEEPSPEED="perhaps")
    assert lines == ["imported"]
    assert log.count("WARNING DeepSpeed keeps its own ops") == 1


def test_without_deepspeed_the_line_says_how_to_get_it() -> None:
    done = python("-c", "import sys; sys.modules['deepspeed'] = None\nimport op_builder.integrations.deepspeed")
    assert done.returncode != 0
    assert "DeepSpeed cannot be imported" in done.stderr
    assert "pip install deepspeed" in done.stderr


@pytest.mark.usefixtures("device")
def test_a_version_that_was_not_tested_is_a_warning(tmp_path: Path) -> None:
    (tmp_path / "deepspeed-0.19.8.dist-info" / "METADATA").write_text("Name: deepspeed\nVersion: 0.19.9\n")
    _, log = run(tmp_path, "import op_builder.integrations.deepspeed")
    assert "WARNING accel-ops was tested with DeepSpeed 0.18 to 0.19.8, not with 0.19.9." in log


OTHER = """
from .builder import CPUOpBuilder


class TransformerBuilder(CPUOpBuilder):
    NAME = "transformer"

    def sources(self):
        import dskernels


class InferenceBuilder(CPUOpBuilder):
    NAME = "installed"

    def sources(self):
        return []
"""


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("how", ["before", "after"])
def test_builders_that_we_do_not_have_run_on_the_engine_until_switched_off(tmp_path: Path, how: str) -> None:
    directory = tmp_path / "deepspeed" / "ops" / "op_builder"
    (directory / "transformer.py").write_text(OTHER)
    (directory / "of_another_release.py").write_text("from .builder import missing\n")
    code = """
        from deepspeed.accelerator.real_accelerator import get_accelerator
        from deepspeed.ops import op_builder as builders
        def show():
            accelerator = get_accelerator()
            found = [builders.TransformerBuilder, *map(accelerator.get_op_builder, ["TransformerBuilder"] * 2)]
            print(*{getattr(each, "__module__", None) for each in found})
            print(getattr(accelerator.get_op_builder("InferenceBuilder"), "__module__", None))
        show()
        builder = get_accelerator().create_op_builder("TransformerBuilder")
        from op_builder.errors import IncompatibleOpError
        print(builder.name, isinstance(builder, builders.TransformerBuilder), builder.is_compatible())
        try:
            builder.load()
        except IncompatibleOpError as error:
            print(error.message, error.remedy)
        import op_builder.integrations.deepspeed as integration
        integration.off()
        show()
        print(cpp_extension.CUDA_HOME == home)
    """
    line = "import op_builder.integrations.deepspeed\n"
    home = "from torch.utils import cpp_extension\nhome = cpp_extension.CUDA_HOME\n"
    begin = f"{line}import deepspeed\n" if how == "before" else f"import deepspeed.user\n{line}"
    lines, log = run(tmp_path, home + begin + textwrap.dedent(code))
    # The class of an op that is installed is as without the engine.
    assert lines[:2] == ["deepspeed_on_accel_ops.transformer", "op_builder.cpu"]
    assert lines[2] == "transformer True False"
    assert "No module named 'dskernels'. Install the package that provides 'dskernels'" in lines[3]
    assert lines[4:] == ["None", "None", "True"]
    assert "WARNING The builders of DeepSpeed's module of_another_release stay its own: cannot import" in log


@pytest.mark.usefixtures("device")
def test_the_line_inside_of_deepspeeds_accelerator_is_an_error(tmp_path: Path) -> None:
    module = tmp_path / "deepspeed" / "accelerator" / "real_accelerator.py"
    module.write_text("import op_builder.integrations.deepspeed\n" + module.read_text())
    done = python("-c", "import deepspeed", paths=[tmp_path])
    assert done.returncode != 0
    assert "DeepSpeed's accelerator is being imported." in done.stderr


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("op_builder.integrations", "accel-ops has op_builder.integrations, but {place} hides it. Start Python in"),
        ("op_builder.missing", "No module named 'op_builder.missing'"),
    ],
)
def test_a_checkout_of_deepspeed_that_hides_our_packages_is_named(tmp_path: Path, name: str, message: str) -> None:
    place = write_package(tmp_path, "op_builder", {"all_ops.py": ""})
    start = (ROOT / "build_tools" / "accel_ops.pth").read_text()
    code = f"{start}sys.path.insert(0, {str(tmp_path)!r})\nimport {name}"
    command = [sys.executable, "-S", "-c", code]  # without an editable install, which mixes the packages
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert f"ModuleNotFoundError: {message.format(place=place)}" in done.stderr


@pytest.mark.usefixtures("device")
def test_reductions_find_their_op_once(tmp_path: Path) -> None:
    code = """
        import torch, op_builder.integrations.deepspeed
        from op_builder.cpu import ShareMemCommBuilder
        loads = []
        class Loaded:
            inference_all_reduce_ = torch.Tensor.zero_
        ShareMemCommBuilder.load = lambda self, verbose=True: loads.append(self) or Loaded
        tensor = torch.ones(3)
        for _ in range(3):
            torch.ops.deepspeed.inference_all_reduce_(tensor)
        print(tensor.tolist(), len(loads))
    """
    assert run(tmp_path, code)[0] == ["[0.0, 0.0, 0.0] 1"]


@pytest.mark.usefixtures("device")
def test_a_builder_of_deepspeed_runs_on_the_engine(tmp_path: Path) -> None:
    directory = tmp_path / "deepspeed" / "ops" / "op_builder"
    (directory / "cpu").mkdir()
    for name in ("wide", "cpu/narrow", "both", "cpu/both"):
        class_name = f"{Path(name).name.capitalize()}Builder"
        text = f"from .builder import CPUOpBuilder\n\n\nclass {class_name}(CPUOpBuilder):\n    NAME = {name!r}\n"
        (directory / f"{name}.py").write_text(text)
    code = """
        from op_builder.builder import OpBuilder
        from op_builder.integrations.deepspeed import engine_builder
        for name in ("WideBuilder", "NarrowBuilder", "BothBuilder"):
            print(engine_builder(name).__module__, issubclass(engine_builder(name), OpBuilder))
        engine_builder("TallBuilder")
    """
    begin = "import logging; logging.disable()\n"
    done = python("-c", begin + textwrap.dedent(code), paths=[tmp_path], ACCEL_ACCELERATOR="cpu")
    places = ["wide", "cpu.narrow", "cpu.both"]
    assert done.stdout.splitlines() == [f"deepspeed_on_accel_ops.{place} True" for place in places]
    assert "DeepSpeed has no builder 'TallBuilder'" in done.stderr
    assert "Use one of BothBuilder, NarrowBuilder, WideBuilder." in done.stderr
