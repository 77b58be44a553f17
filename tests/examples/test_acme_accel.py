"""The template of a vendor's package: its accelerator and its op, from its own directory."""

from __future__ import annotations

import filecmp
import sys
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
import torch

from accelerator import plugins, selection
from accelerator.detection import Chosen, Refused
from op_builder import env

ROOT = Path(__file__).parents[2]
TEMPLATE = ROOT / "examples" / "acme_accel"
# What pyproject.toml registers, without an installation.
ENTRY = EntryPoint("acme", "acme_accel.accelerator:AcmeAccelerator", plugins.ENTRY_POINT_GROUP)


@pytest.fixture
def cards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The directory where the driver shows its cards; the package is registered."""
    monkeypatch.syspath_prepend(str(TEMPLATE))
    monkeypatch.setattr(plugins, "registered_entry_points", lambda: [ENTRY])
    monkeypatch.setattr(selection, "registered_entry_points", lambda: [ENTRY])
    unset = dict.fromkeys(("ACCEL_ACCELERATOR", "DS_ACCELERATOR", "ACME_VISIBLE_DEVICES"))
    with env.scope(ACME_DEVICE_DIR=str(tmp_path), **unset):
        yield tmp_path
    for name in [name for name in sys.modules if name.partition(".")[0] == "acme_accel"]:
        del sys.modules[name]


def test_the_templates_backend_is_this_projects() -> None:
    name = Path("build_tools", "accel_build_backend.py")
    assert filecmp.cmp(ROOT / name, TEMPLATE / name, shallow=False)


@pytest.mark.parametrize(
    ("files", "visible", "count", "reason"),
    [
        ([], None, 0, "acme0: no card, or its driver is not loaded"),
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
        told = AcmeAccelerator.probe()
        assert AcmeAccelerator().device_count() == count
        assert AcmeAccelerator().is_available() == (reason is None)
    assert told == reason if reason is None else str(told).endswith(reason)


def test_it_is_an_accelerator_whose_answers_hold_together(cards: Path) -> None:
    (cards / "acme0").touch()
    (cards / "acme1").touch()
    selected = selection.choose()
    assert isinstance(selected, Chosen)
    assert selected.name == "acme"
    acme = selected.accelerator
    acme.set_device(1)
    assert acme.current_device() == 1
    with pytest.raises(IndexError, match="no cpu device of index 2; the number of devices is 2"):
        acme.set_device(2)
    acme.set_device(0)
    acme.manual_seed(3)
    state = acme.get_rng_state()
    first = torch.rand(4)
    acme.set_rng_state(state)
    assert torch.equal(torch.rand(4, generator=acme.default_generator(0)), first)
    own = acme.Stream()
    with acme.stream(own):
        assert acme.current_stream() is own
    assert acme.current_stream() is acme.default_stream()
    acme.synchronize()
    acme.reset_peak_memory_stats()
    assert 0 < acme.memory_allocated() <= acme.max_memory_allocated()
    assert 0 < acme.available_memory() <= acme.total_memory()
    assert acme.on_accelerator(acme.FloatTensor([1.0]).to(acme.device_name()))


def test_two_cards_keep_the_contract(cards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from acme_accel.accelerator import AcmeAccelerator

    from accelerator.testing import check_conformance

    monkeypatch.setenv("PYTHONPATH", f"{TEMPLATE}:{ROOT}")  # for the child that sees one card
    (cards / "acme0").touch()
    (cards / "acme1").touch()
    report = check_conformance(AcmeAccelerator())
    assert report.passed, str(report)
    left_out = {result.name: result.note for result in report.results if result.status == "not applicable"}
    assert left_out == {
        "float8_converts": "is_fp8_supported() is False",
        "tensors_are_made_on_the_current_device": "device strings carry no index, so no tensor tells its device",
        "pinned_tensors_are_known": "pin_memory() is the identity: no device copies from the tensor",
        "graphs_replay": "torch.cpu has no graphs.",
        "graphs_take_pool_and_stream": "torch.cpu has no graphs.",
    }


@pytest.mark.usefixtures("cards")
def test_the_host_ops_are_handed_on_and_its_own_is_there() -> None:
    from acme_accel.accelerator import AcmeAccelerator

    from op_builder.cpu import CPUAdamBuilder

    acme = AcmeAccelerator()
    assert acme.get_op_builder("CPUAdamBuilder") is CPUAdamBuilder
    assert acme.create_op_builder("AcmeSiluAndMulBuilder").name == "acme_silu_and_mul"
    sources = acme.create_op_builder("AcmeSiluAndMulBuilder").sources()
    assert [Path(source).parent for source in sources] == [TEMPLATE / "acme_accel" / "ops" / "kernels"] * 2


def test_a_prebuild_that_names_it_needs_no_card(cards: Path) -> None:
    assert not list(cards.iterdir())
    with env.scope(ACCEL_ACCELERATOR="acme"):
        assert isinstance(selection.choose(), Refused)
        assert selection.builder_package() == ("acme", "acme_accel.ops")


@pytest.mark.usefixtures("cards")
@pytest.mark.parametrize("shape", [(), (0,), (1,), (7, 33), (2, 3, 129), (100_003,)])
def test_values_are_those_of_float64(shape: tuple[int, ...]) -> None:
    from acme_accel.ops.silu_and_mul import AcmeSiluAndMulBuilder

    gate, up = torch.randn(shape) * 4, torch.randn(shape)
    exact = torch.nn.functional.silu(gate.double()) * up.double()
    # exp, a division and two more operations, each off by an ulp or so.
    torch.testing.assert_close(AcmeSiluAndMulBuilder().load()(gate, up).double(), exact, rtol=1e-6, atol=1e-12)


@pytest.mark.usefixtures("cards")
def test_a_tensor_that_does_not_fit_is_refused() -> None:
    from acme_accel.ops.silu_and_mul import AcmeSiluAndMulBuilder

    op = AcmeSiluAndMulBuilder().load()
    good = torch.ones(4, 4)
    torch.library.opcheck(op.native.silu_and_mul.default, (torch.empty(4, 4), good, good))
    for gate, up in ((good, good[:2]), (good.double(), good.double()), (good, good.bfloat16()), (good.T[:2], good[:2])):
        bad = gate if gate.is_contiguous() else gate.as_strided((2, 4), (1, 4))
        with pytest.raises(ValueError, match="contiguous, of float32 and of one shape"):
            op.native.silu_and_mul(torch.empty(bad.shape), bad, up)
