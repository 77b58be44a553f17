"""The template of a vendor's package, from its own directory; test_templates.py installs it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from accelerator import selection
from op_builder import env
from tests.support.conformance import run_suite, with_outcome
from tests.support.foreign_package import ROOT, install

TEMPLATE = ROOT / "examples" / "acme_accel"
# What pyproject.toml registers, without an installation.
ENTRY_POINTS = f"[{selection.ENTRY_POINT_GROUP}]\nacme = acme_accel.accelerator:AcmeAccelerator\n"


@pytest.fixture
def cards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The directory where the driver shows its cards; the package is registered."""
    install(tmp_path / "site", "acme_accel", {}, ENTRY_POINTS)
    monkeypatch.syspath_prepend(str(TEMPLATE))
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    cards = tmp_path / "cards"
    cards.mkdir()
    unset = dict.fromkeys(("ACCEL_ACCELERATOR", "DS_ACCELERATOR", "ACME_VISIBLE_DEVICES"))
    with env.scope(ACME_DEVICE_DIR=str(cards), **unset):
        yield cards
    for name in [name for name in sys.modules if name.partition(".")[0] == "acme_accel"]:
        del sys.modules[name]


@pytest.mark.parametrize(
    ("files", "visible", "count", "reason"),
    [
        ([], None, 0, "acme0 does not exist: no card is installed, or its driver is not loaded"),
        (["acme0"], None, 1, None),
        (["acme0", "acme1", "acme-control"], None, 2, None),
        (["acme0", "acme1"], "1", 1, None),
        (["acme0"], "5", 0, "ACME_VISIBLE_DEVICES names no card"),
        (["acme0"], "", 0, "ACME_VISIBLE_DEVICES names no card"),
    ],
)
def test_a_card_is_found_by_its_file(
    cards: Path, files: list[str], visible: str | None, count: int, reason: str | None
) -> None:
    from acme_accel.accelerator import AcmeAccelerator

    for name in files:
        (cards / name).touch()
    with env.scope(ACME_VISIBLE_DEVICES=visible):
        found = AcmeAccelerator.probe()
        assert AcmeAccelerator().device_count() == count
        assert AcmeAccelerator().is_available() == (reason is None)
    assert found == reason if reason is None else str(found).endswith(reason)


def test_two_cards_keep_the_contract(cards: Path) -> None:
    (cards / "acme0").touch()
    (cards / "acme1").touch()
    outcomes = run_suite("--accelerator", "acme")
    assert len(outcomes) > 50
    assert with_outcome("failed", outcomes) == {}
    assert set(with_outcome("skipped", outcomes)) == {
        *("test_float8_converts", "test_tensors_are_made_on_the_current_device", "test_pinned_tensors_are_known")
    }


@pytest.mark.usefixtures("cards")
def test_values_are_those_of_float64_and_a_tensor_that_does_not_fit_is_refused() -> None:
    from acme_accel.ops.silu_and_mul import AcmeSiluAndMulBuilder

    op = AcmeSiluAndMulBuilder().load()
    for shape in ((), (0,), (7, 33), (100_003,)):
        gate, up = torch.randn(shape) * 4, torch.randn(shape)
        exact = torch.nn.functional.silu(gate.double()) * up.double()
        # exp, a division and two more operations, each off by an ulp or so.
        torch.testing.assert_close(op(gate, up).double(), exact, rtol=1e-6, atol=1e-12)
    good = torch.ones(4, 4)
    torch.library.opcheck(op.native.silu_and_mul.default, (torch.empty(4, 4), good, good))
    for gate, up in ((good, good[:2]), (good.double(), good.double()), (good, good.bfloat16()), (good.T[:2], good[:2])):
        bad = gate if gate.is_contiguous() else gate.as_strided((2, 4), (1, 4))
        with pytest.raises(ValueError, match="contiguous"):
            op.native.silu_and_mul(torch.empty(bad.shape), bad, up)
