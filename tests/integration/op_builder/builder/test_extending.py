"""What docs/extending.md shows, done as it says: its files are made into a wheel, installed and used."""

from __future__ import annotations

import re
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.foreign_package import ROOT, importable, load_module, output_of, python, write_package

BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def blocks() -> dict[str, list[str]]:
    """The page's blocks of code, by language."""
    found: dict[str, list[str]] = {}
    for language, text in BLOCK.findall((ROOT / "docs" / "extending.md").read_text()):
        found.setdefault(language, []).append(text)
    return found


@pytest.fixture(scope="module")
def site(blocks: dict[str, list[str]], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The smallest op, installed from a wheel."""
    place = tmp_path_factory.mktemp("twice")
    described = [text for text in blocks["toml"] if not text.startswith("[build-system]")]
    files = {
        "twice/builders.py": blocks["python"][0],
        "twice/kernels/twice.cpp": blocks["cpp"][0],
        "pyproject.toml": '[project]\nname = "twice"\nversion = "1"\n' + "\n".join(described),
    }
    project = write_package(place, "project", files)
    code = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"
    made = python("-c", code, place, cwd=project)
    assert made.returncode == 0, made.stderr
    assert "is absent from the `packages`" not in made.stdout + made.stderr
    (wheel,) = place.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(place / "site")
    return place / "site"


def test_the_smallest_op_is_registered_loads_and_is_accepted_by_torch(blocks: dict[str, list[str]], site: Path) -> None:
    used, tested = blocks["python"][1:3]
    code = f"""
{used}
import torch
assert TwiceBuilder.__module__ == "twice.builders"
op = TwiceBuilder().load()
assert torch.equal(op.twice(torch.arange(70000.0)), torch.arange(70000.0) * 2)
{tested.replace("torch.library.opcheck", "done = torch.library.opcheck")}
assert set(done.values()) == {{"SUCCESS"}}, done
try:
    op.twice(torch.ones(2).double())
except RuntimeError as error:
    assert "must be float32" in str(error)
else:
    raise AssertionError("not refused")
"""
    output_of("-c", code, paths=[site], ACCEL_ACCELERATOR="cpu")


@pytest.mark.usefixtures("on_the_cpu")
def test_a_backward_is_registered_in_bind(site: Path) -> None:
    with importable(site, "twice"):
        builder = load_module("twice.builders").TwiceBuilder

    class TrainableBuilder(builder):  # type: ignore[misc]
        def bind(self, opened: Any) -> Any:
            torch.library.register_autograd(opened.twice.default, lambda _context, grad: grad * 2)
            return opened

    op = TrainableBuilder().load()
    x = torch.randn(3, 4, requires_grad=True)
    op.twice(x).sum().backward()
    assert x.grad is not None
    assert (x.grad == 2).all()
    assert set(torch.library.opcheck(op.twice.default, (x,)).values()) == {"SUCCESS"}


def test_the_build_system_it_names_is_that_of_the_template(blocks: dict[str, list[str]]) -> None:
    (named,) = (text for text in blocks["toml"] if text.startswith("[build-system]"))
    template = (ROOT / "examples" / "my_ops" / "pyproject.toml").read_text()
    assert set(named.splitlines()) <= set(template.splitlines())
