"""The vendor's template, installed as its README says into a fresh environment beside an installed accel-ops."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.support.environments import ROOT, Environment, copy_sources, make_environment

pytestmark = pytest.mark.slow

OP = "acme_silu_and_mul"

USE = """
import torch
from accelerator import get_accelerator, is_current_accelerator_supported
from op_builder.catalog.unavailable import UnavailableOpBuilder
accelerator = get_accelerator()
assert type(accelerator).__name__ == "AcmeAccelerator", accelerator
assert is_current_accelerator_supported()
op = accelerator.create_op_builder("AcmeSiluAndMulBuilder").load()
gate, up = torch.randn(5, 7), torch.randn(5, 7)
torch.testing.assert_close(op(gate, up), torch.nn.functional.silu(gate) * up)
assert not isinstance(accelerator.create_op_builder("CPUAdamBuilder"), UnavailableOpBuilder)
print("used", op.native)
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """The template, copied out of the checkout as a vendor would."""
    ignored = shutil.ignore_patterns("build", "*.egg-info", "__pycache__", "_prebuilt")
    return Path(shutil.copytree(ROOT / "examples" / "acme_accel", tmp_path / "acme_accel", ignore=ignored))


@pytest.fixture
def environment(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """It has torch and accel-ops, without ops."""
    made = make_environment(tmp_path / "venv")
    made.pip("install", "--no-deps", copy_sources(tmp_path_factory, tmp_path / "accel-ops"))
    return made


@pytest.fixture
def card(tmp_path: Path) -> dict[str, str | None]:
    """The variables of a machine with one card, where nobody names an accelerator."""
    (tmp_path / "cards").mkdir()
    (tmp_path / "cards" / "acme0").touch()
    return {"ACME_DEVICE_DIR": str(tmp_path / "cards"), "ACCEL_ACCELERATOR": None}


def chosen(environment: Environment, **variables: str | None) -> dict[str, Any]:
    told = environment.run("-m", "accelerator.report", "--json", **variables)
    return dict(json.JSONDecoder().raw_decode(told)[0])


def test_it_is_detected_named_and_its_op_compiled_when_it_is_used(
    environment: Environment, project: Path, card: dict[str, str | None], tmp_path: Path
) -> None:
    log = environment.pip("install", "-v", project, **environment.without_compilers(tmp_path / "none"))
    assert "op_builder:" not in log
    card = {**card, "ACCEL_CACHE_DIR": str(tmp_path / "cache")}  # other tests compile the op into that of this run

    # Detected: the card is there, and its priority is above the CPU's.
    report = chosen(environment, **card)
    assert (report["accelerator"]["name"], report["accelerator"]["requested"]) == ("acme", None)
    assert report["accelerator"]["class"] == "acme_accel.accelerator.AcmeAccelerator"
    assert report["accelerator"]["op_builder_dir"] == "acme_accel.ops"
    trace = {entry["name"]: entry for entry in report["trace"]}
    assert trace["acme"]["accepted"]
    assert trace["cpu"]["reason"].startswith("not asked: acme")
    assert "AcmeAccelerator" in environment.run("-m", "accelerator.report", **card)

    # No card: the CPU, and the reason.
    none = {"ACME_DEVICE_DIR": str(tmp_path), "ACCEL_ACCELERATOR": None}
    report = chosen(environment, **none)
    assert report["accelerator"]["name"] == "cpu"
    trace = {entry["name"]: entry for entry in report["trace"]}
    assert trace["acme"]["reason"] == f"there is no {tmp_path / 'acme0'}: no card, or its driver is not loaded"

    # It keeps the contract, and a ported script runs on it.
    assert " 0 failed," in environment.run("-m", "accelerator.conformance", "acme", **card)
    assert '{"losses": [' in environment.run(ROOT / "examples" / "porting" / "after.py", "--steps=2", **card)

    # Named, with a card and without.
    report = chosen(environment, **{**card, "ACCEL_ACCELERATOR": "acme"})
    assert (report["accelerator"]["name"], report["accelerator"]["requested"]) == ("acme", "acme")
    told = environment.run("-c", USE, fails=True, **{**none, "ACCEL_ACCELERATOR": "acme"})
    assert "Accelerator 'acme' of acme_accel.accelerator:AcmeAccelerator cannot be used: there is no " in told

    row = environment.report(**card)[OP]
    assert (row["installed"], row["cached"], row["compatible"]) == (False, False, True)
    assert "used" in environment.run("-c", USE, **card)
    row = environment.report(**card)[OP]
    assert (row["installed"], row["cached"], row["compatible"]) == (False, True, True)
    assert OP not in environment.report(ACCEL_ACCELERATOR="cpu"), "another device does not have it"


def test_it_is_prebuilt_without_a_card_and_then_needs_no_compiler(
    environment: Environment, project: Path, card: dict[str, str | None], tmp_path: Path
) -> None:
    log = environment.pip(
        "install", "-v", project, ACCEL_BUILD_OPS="1", ACCEL_ACCELERATOR="acme", ACME_DEVICE_DIR=str(tmp_path)
    )
    assert "accelerator acme (named)" in log
    assert "op_builder: built in " in log
    assert len(list(environment.site.glob("acme_accel/_prebuilt/**/*.so"))) == 1, "the host's ops are not its own"
    variables = {**environment.without_compilers(tmp_path / "none"), "ACCEL_JIT": "0", **card}
    assert "used" in environment.run("-c", USE, **variables)
    assert not (tmp_path / "none").exists()
    row = environment.report(**variables)[OP]
    assert (row["installed"], row["cached"], row["compatible"]) == (True, False, True)
    assert (row["prebuilt"]["torch_needed"], row["prebuilt"]["python_needed"]) == (">=2.10", "any")
