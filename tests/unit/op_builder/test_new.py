"""``accel-ops new``: which files, lines and names a new package gets."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from op_builder import __main__ as command
from op_builder.commands import new

TEMPLATE = Path(__file__).resolve().parents[3] / "examples" / "my_ops"


def files(directory: Path) -> set[str]:
    found = {str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file()}
    return {name for name in found if "__pycache__" not in name and ".egg-info" not in name}


def text_of(directory: Path) -> str:
    return "\n".join((directory / name).read_text() for name in sorted(files(directory)))


def test_with_every_device_it_is_the_template_by_another_name(tmp_path: Path) -> None:
    assert command.main(["new", "fast_norm", "--cuda", "--sycl", "--directory", str(tmp_path / "it")]) == 0
    assert files(tmp_path / "it") == {name.replace("my_ops", "fast_norm") for name in files(TEMPLATE)}
    text = text_of(tmp_path / "it")
    assert not re.search("my.?ops", text, re.IGNORECASE)
    assert all(name in text for name in ("fast-norm", "FastNormAddRmsNormCudaBuilder", "ACCEL_BUILD_FAST_NORM_ADD"))
    assert not re.search(r"(#|<!--) (cuda|sycl)( -->)?$", text, re.MULTILINE)


@pytest.mark.parametrize(("devices", "left_out"), [([], "cuda|sycl|xpu"), (["cuda"], "sycl|xpu"), (["sycl"], "cuda")])
def test_what_serves_other_devices_is_left_out(tmp_path: Path, devices: list[str], left_out: str) -> None:
    package = tmp_path / "fast_norm"
    new.create("fast_norm", package, devices)
    for name in files(package):
        assert not re.search(left_out, name), name
        if name.endswith(".py"):
            source = (package / name).read_text()
            compile(source, name, "exec")
            assert not re.search(left_out, source, re.IGNORECASE), name
    for check in (["check", "--select=E,F,W"], ["format", "--check"]):
        ruff = [sys.executable, "-m", "ruff", *check, "--isolated", "--line-length=120", str(package)]
        done = subprocess.run(ruff, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("", "9x", "class", "Caps", "_x", "a-b", "../up"), "{!r} cannot be the name of a package"),
        (("torch", "json", "sys", "op_builder"), "A module named {!r} is installed.\n  Remedy: Choose another name.\n"),
    ],
)
def test_a_name_that_a_package_cannot_have_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], names: tuple[str, ...], message: str
) -> None:
    for name in names:
        assert new.main([name, "--directory", str(tmp_path / "it")]) == 2
        assert message.format(name) in capsys.readouterr().err
    assert not (tmp_path / "it").exists()


def test_an_existing_directory_is_left_alone(tmp_path: Path) -> None:
    with pytest.raises(new.NewPackageError, match="exists"):
        new.create("fast_norm", tmp_path)
    assert not files(tmp_path)


@pytest.mark.parametrize(
    ("origin", "requirement"),
    [
        (
            '{"url": "https://host/accel.git", "vcs_info": {"vcs": "git", "commit_id": "abc"}}',
            "accel-ops-build @ git+https://host/accel.git@abc#subdirectory=build_tools",
        ),
        ('{"url": "file:///accel.whl", "archive_info": {}}', "accel-ops-build @ file://{}/build_tools"),
        (None, "accel-ops-build @ file://{}/build_tools"),
    ],
)
def test_the_build_backend_is_named_by_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, origin: str | None, requirement: str
) -> None:
    installed = tmp_path / "installed"
    (installed / "examples").mkdir(parents=True)
    (installed / "examples" / "my_ops").symlink_to(TEMPLATE)
    distribution = SimpleNamespace(read_text={"direct_url.json": origin}.get)
    monkeypatch.setattr(new, "native_root", lambda: installed)
    monkeypatch.setattr(new.metadata, "distribution", lambda _: distribution)
    new.create("fast_norm", tmp_path / "it")
    settings = (tmp_path / "it" / "pyproject.toml").read_text()
    assert f'requires = ["{requirement.format(installed)}"]' in settings
