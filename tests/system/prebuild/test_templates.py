"""The templates, where accel-ops is installed without ops. A tutorial does so with my_ops' op for the CPU."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from op_builder.toolchains.sycl_runtime import find_runtime
from tests.support.environments import ROOT, Environment, shared

pytestmark = pytest.mark.slow

SYCL_OP = "my_ops_add_rms_norm_sycl"
ACME_OP = "acme_silu_and_mul"
PLACEHOLDER = "file:///path/to/accel-ops/build_tools"


def copy_template(name: str, directory: Path, backend: str) -> Path:
    """A template, copied out of the checkout, with the place of the build backend filled in."""
    ignored = shutil.ignore_patterns("build", "*.egg-info", "__pycache__", "_prebuilt")
    project = Path(shutil.copytree(ROOT / "examples" / name, directory / name, ignore=ignored))
    settings = project / "pyproject.toml"
    text = settings.read_text()
    assert text.count(PLACEHOLDER) == 1
    settings.write_text(text.replace(PLACEHOLDER, backend))
    return project


@pytest.fixture(scope="session")
def with_accel_ops(plain_wheel: Path, with_torch: Environment, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """An environment with torch and accel-ops, not to be changed."""

    def make(directory: Path) -> None:
        with_torch.copy(directory / "environment").pip("install", "--no-deps", plain_wheel)

    return Environment(shared(tmp_path_factory, "with-accel-ops", make) / "environment")


@pytest.fixture
def own(with_accel_ops: Environment, tmp_path: Path) -> Environment:
    """A copy of it for the test to change."""
    return with_accel_ops.copy(tmp_path / "venv")


# my_ops ----------------------------------------------------------------------------------


def state(environment: Environment, op: str, **variables: str | None) -> tuple[bool, bool, bool]:
    """Whether the report shows the op as installed, cached, compatible."""
    row = environment.report(**variables)[op]
    return (row["installed"], row["cached"], row["compatible"])


USE_SYCL = """
import torch
from my_ops.builders import MyOpsAddRmsNormSyclBuilder
op = MyOpsAddRmsNormSyclBuilder().load()
out, residual = torch.empty(2, 4), torch.ones(2, 4)
op.add_rms_norm(out, residual, torch.ones(2, 4), torch.ones(4), 1e-6)
assert torch.equal(residual, torch.full((2, 4), 2.0)), residual
torch.testing.assert_close(out, torch.ones(2, 4))
print("used", op)
"""


@pytest.mark.skipif(find_runtime() is None, reason="needs the SYCL runtime: the extra sycl")
def test_the_sycl_op_is_prebuilt_with_its_kernel_and_runs_without_a_compiler(
    own: Environment, backend_wheel: Path, tmp_path: Path
) -> None:
    my_ops = copy_template("my_ops", tmp_path, backend_wheel.as_uri())
    runtime = find_runtime()
    assert runtime is not None
    for path in (*filter(Path.is_file, runtime.library_dir.iterdir()), *filter(Path.is_dir, runtime.header_dirs)):
        link = own.directory / path.relative_to(runtime.prefix)  # where pip would have installed it
        link.parent.mkdir(exist_ok=True)
        link.symlink_to(path)
    own.pip("install", "--no-deps", my_ops, ACCEL_BUILD_MY_OPS_ADD_RMS_NORM_SYCL="1")
    without = {**own.without_compilers(tmp_path / "cache"), "ACCEL_JIT": "0"}
    assert state(own, SYCL_OP, **without) == (True, False, True)
    assert "used" in own.run("-c", USE_SYCL, **without)


# acme_accel ------------------------------------------------------------------------------

USE_ACME = """
import torch
from accelerator import get_accelerator, is_current_accelerator_supported
accelerator = get_accelerator()
assert type(accelerator).__name__ == "AcmeAccelerator", accelerator
assert is_current_accelerator_supported()
op = accelerator.create_op_builder("AcmeSiluAndMulBuilder").load()
gate, up = torch.randn(5, 7), torch.randn(5, 7)
torch.testing.assert_close(op(gate, up), torch.nn.functional.silu(gate) * up)
assert accelerator.create_op_builder("CPUAdamBuilder").sources()
print("used", op.native)
"""


def test_acme_is_detected_named_and_its_op_compiled_when_used_or_prebuilt(
    own: Environment, backend_wheel: Path, tmp_path: Path
) -> None:
    acme = copy_template("acme_accel", tmp_path, backend_wheel.as_uri())
    (tmp_path / "cards").mkdir()
    (tmp_path / "cards" / "acme0").touch()
    without = own.without_compilers(tmp_path / "none")
    log = own.pip("install", "-v", "--no-deps", acme, **without)
    assert "op_builder:" not in log
    card: dict[str, str | None] = {"ACME_DEVICE_DIR": str(tmp_path / "cards"), "ACCEL_ACCELERATOR": None}
    cached = {**card, "ACCEL_CACHE_DIR": str(tmp_path / "cache")}  # other tests compile the op into that of this run

    # Detected: the card is there, and its priority is above the CPU's.
    report = json.JSONDecoder().raw_decode(own.run("-m", "accelerator.report", "--json", **card))[0]
    assert (report["accelerator"]["name"], report["accelerator"]["requested"]) == ("acme", None)
    assert report["accelerator"]["class"] == "acme_accel.accelerator.AcmeAccelerator"
    assert report["accelerator"]["op_builder_dir"] == "acme_accel.ops"

    # Named, without a card.
    none = {"ACME_DEVICE_DIR": str(tmp_path), "ACCEL_ACCELERATOR": "acme"}
    output = own.run("-c", USE_ACME, fails=True, **none)
    assert f"{tmp_path / 'acme0'} does not exist" in output

    assert "used" in own.run("-c", USE_ACME, **cached)
    assert state(own, ACME_OP, **cached) == (False, True, True)
    assert ACME_OP not in own.report(ACCEL_ACCELERATOR="cpu"), "another device does not have it"

    # Prebuilt without a card, it needs no compiler.
    variables = {"ACCEL_BUILD_OPS": "1", "ACCEL_ACCELERATOR": "acme", "ACME_DEVICE_DIR": str(tmp_path)}
    log = own.pip("install", "-v", "--no-deps", "--force-reinstall", "--no-cache-dir", acme, **variables)
    assert "accelerator acme (named)" in log
    assert len(list(own.site.glob("acme_accel/_prebuilt/**/*.so"))) == 1, "the host's ops are not its own"
    without = {**without, "ACCEL_JIT": "0", **card}
    assert "used" in own.run("-c", USE_ACME, **without)
    assert not (tmp_path / "none").exists()
    assert state(own, ACME_OP, **without) == (True, False, True)
