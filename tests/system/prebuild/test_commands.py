"""The commands in the documentation, and those that commands print, work in a fresh environment."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from tests.support.environments import ROOT, Environment, run, the_wheel

pytestmark = pytest.mark.slow

PAGES = {
    "pages": [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))],
    "acme_accel": [ROOT / "examples" / "acme_accel" / "README.md"],
}
BLOCK = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"(?:[A-Z_]+=\S* )*(?:accel-ops|accel-launch|python|pip|make|cp|sed|mkdir|cd|eval|export) ")
INLINE = re.compile(
    r"`((?:[A-Z_]+=[^\s`]+ )*(?:accel-ops|accel-launch|python -m (?:accelerator|op_builder)[\w.]*) [^`\n]+)`"
)
# Commands that this test does not run, and why.
NOT_RUN = {
    r"\b(?:NAME|OP|FILE|DIR|GROUP|COMMAND)\b|\[|^pip install /path/to|(?:run|new|import|export|doctor)$": "a part",
    r"…|PROGRAM|--compiles (?:report|raise)$": "a part, too",
    "^make |/tmp/fresh|/tmp/elsewhere": "it makes an environment of its own",
    "ACCEL_ACCELERATOR=(?:cuda|xpu)|--cuda|rms_norm": "it needs a toolkit or a device",
    "ziglang|accel-ops env|ACCEL_BUILD_TARGET|--target|^python train.py": "tests/system/op_builder/test_ziglang.py",
    "twice|TWICE": "tests/integration/op_builder/builder/test_extending.py",
    "intel-sycl-rt|^pip install torch": "it downloads much",
    "ccl_comm|fake_vendors|--accelerator (?:npu|acme)": "it needs another package",
    "--include |after.py|x.whl": "it needs other hosts, devices or files",
    "--precompile": "it takes minutes",
}


def commands(page: Path) -> list[str]:
    """A page's commands in their order, those in a sentence last."""
    text = page.read_text(encoding="utf-8")
    blocks = [block for language, block in BLOCK.findall(text) if not language]
    lines = [line for block in blocks for line in block.splitlines() if COMMAND.match(line)]
    lines += dict.fromkeys(INLINE.findall(text))
    return [line for line in lines if not any(re.search(pattern, line.partition(" #")[0]) for pattern in NOT_RUN)]


@pytest.fixture
def fresh(with_torch: Environment, plain_wheel: Path, tmp_path: Path) -> Environment:
    """An environment with torch, accel-ops and pip, in which no test tool is installed."""
    made = with_torch.copy(tmp_path / "venv")
    for name in ("pytest", "_pytest", "pluggy", "iniconfig"):
        for path in made.site.glob(f"{name}*"):
            path.unlink() if path.is_symlink() else shutil.rmtree(path)
    made.add_pip()
    made.pip("install", "--no-deps", plain_wheel)
    return made


def shell(environment: Environment, lines: list[str], cwd: Path, **variables: str) -> str:
    """The output of commands in a shell with the environment activated; a comment may announce an error."""
    script = "\n".join(f"if {line}\nthen exit 1; fi" if line.endswith("an error") else line for line in lines)
    return run("bash", "-exc", script, cwd=cwd, PATH=f"{environment.programs}:/usr/bin:/bin", **variables)


@pytest.mark.parametrize("name", PAGES)
def test_the_commands_in_the_documentation_work(name: str, fresh: Environment, tree: Path, tmp_path: Path) -> None:
    (tree / "train.py").write_text("import torch\nfrom accelerator import get_accelerator\nget_accelerator()\n")
    (tree / "my").mkdir()
    shutil.copy(tree / "train.py", tree / "my")
    (tree / "hosts").write_text("node1 slots=2\nnode2 slots=2\n")
    (tmp_path / "disk").mkdir()
    lines = list(dict.fromkeys(line for page in PAGES[name] for line in commands(page)))
    assert len(lines) > 8
    # The other worker uses the suite's cache meanwhile: what removes entries does so in a cache of its own.
    own, bundle = f"ACCEL_CACHE_DIR={tmp_path}/cache accel-ops cache", f"{tmp_path}/bundle"
    filled = f"accel-ops cache export {bundle} cpu_adam\n{own} import {bundle}\n"
    lines = [re.sub(r"^accel-ops cache (?=clear|prune)", f"{filled}{own} ", line) for line in lines]
    places = {"/mnt/disk": str(tmp_path / "disk"), "/tmp/acme": str(tmp_path / "acme")}
    lines = [re.sub("|".join(places), lambda match: places[match[0]], line) for line in lines]
    shell(fresh, lines, tree, HOME=str(tmp_path))


def test_the_steps_that_a_new_package_prints_work_and_then_its_readme(fresh: Environment, tmp_path: Path) -> None:
    (tmp_path / "a place").mkdir()
    printed = shell(fresh, ["accel-ops new fast_norm"], tmp_path / "a place")
    steps = [line.strip() for line in printed.splitlines() if line.startswith("  ")]
    assert [step.split()[0] for step in steps] == ["cd", str(fresh.python), str(fresh.python)]
    assert " passed" in run("bash", "-ec", "\n".join(steps), cwd=tmp_path / "a place")
    project = tmp_path / "a place" / "fast_norm"
    shell(fresh, [*commands(project / "README.md"), "accel-ops build --all --wheel dist"], project)
    assert "-py3-none-manylinux" in the_wheel(project / "dist").name


def test_another_build_backend_is_refused_and_leaves_no_wheel(fresh: Environment, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(
        '[project]\nname = "plain"\nversion = "1"\n[tool.setuptools]\npackages = []\n'
    )
    output = run(fresh.programs / "accel-ops", "build", "--all", "--wheel", "dist", cwd=tmp_path, fails=True)
    assert "accel_ops_build" in output
    assert "Traceback" not in output
    assert not (tmp_path / "dist").exists()
