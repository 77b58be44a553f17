"""The example: both ways of training, what it says, and when it fails."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import pytest
import torch

from examples import train_characters
from examples.characters import comparison, masters, text, training
from op_builder.toolchains.sycl_runtime import find_runtime

torch_threads = torch.get_num_threads()


@pytest.fixture(autouse=True)
def _cpu(monkeypatch: pytest.MonkeyPatch) -> object:
    monkeypatch.setenv("ACCEL_ACCELERATOR", "cpu")
    yield
    torch.set_num_threads(torch_threads)


@pytest.fixture(scope="module")
def corpus() -> text.Corpus:
    return text.standard_library(size_bytes=100_000)


def adamw(parameters: object) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-3)


def train(corpus: text.Corpus, **changes: object) -> training.Run:
    from accelerator.cpu_accelerator import CPU_Accelerator

    recipe = training.Recipe(steps=8, seed=0, host_masters=False, batch_size=4)
    recipe = dataclasses.replace(recipe, **changes)
    return training.train(adamw, corpus, recipe, CPU_Accelerator(), on_step=[].append)


@pytest.mark.parametrize(
    "options",
    [
        [],
        pytest.param(["--dtype", "bfloat16"], marks=pytest.mark.slow),
    ],
    ids=lambda options: " ".join(options) or "-",
)
def test_a_short_demo_says_where_the_op_came_from_and_that_the_runs_agree(
    options: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    status = train_characters.main(["--steps", "12", "--out", str(tmp_path / "new" / "out"), *options])
    output = capsys.readouterr().out
    assert status == 0, output
    assert "cold load: compiled now" in output or "warm load: from the cache" in output
    assert "agree within rounding" in output
    assert "What the model writes:" in output
    assert ("float32 masters on the host" in output) == bool(options)
    assert (tmp_path / "new" / "out" / train_characters.PICTURE).read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
@pytest.mark.skipif(find_runtime() is None, reason="needs the SYCL runtime: the extra sycl")
def test_the_model_trains_through_sycl_kernels_as_by_those_of_the_cpu(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    status = train_characters.main(["--steps", "12", "--out", str(tmp_path), "--kernels", "sycl"])
    output = capsys.readouterr().out
    assert status == 0, output
    assert "SYCLFusedAdam and CPUAdam agree within rounding" in output
    assert "SYCL kernels" in output
    assert (tmp_path / train_characters.PICTURE).read_bytes().startswith(b"\x89PNG")


def test_without_matplotlib_the_results_are_printed_and_the_extra_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert train_characters.main(["--steps", "2", "--out", str(tmp_path)]) == 0
    output = capsys.readouterr().out
    assert "pip install matplotlib" in output
    assert "What the model writes:" in output
    assert list(tmp_path.iterdir()) == []


def test_runs_that_differ_by_more_than_rounding_fail(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def with_another_rate(parameters: object, **options: float) -> torch.optim.Optimizer:
        return torch.optim.AdamW(parameters, **{**options, "lr": 1.5 * options["lr"]})

    ours = train_characters.Contender("CPUAdam", with_another_rate)
    contest = dataclasses.replace(train_characters.CONTESTS["cpu"], ours=ours)
    monkeypatch.setitem(train_characters.CONTESTS, "cpu", contest)
    assert train_characters.main(["--steps", "6", "--out", str(tmp_path)]) == 1
    assert "DO NOT AGREE" in capsys.readouterr().out


def test_errors_are_shown_with_their_remedy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACCEL_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("ACCEL_JIT", "0")
    monkeypatch.setattr("op_builder.load.loader.opened_entries", lambda _op: [])  # the op is not loaded yet
    assert train_characters.main(["--out", str(tmp_path)]) == 1
    assert "Unset ACCEL_JIT" in capsys.readouterr().out


def test_the_same_seed_gives_the_same_run_also_with_host_masters_and_the_loss_falls(corpus: text.Corpus) -> None:
    first = train(corpus).losses
    assert train(corpus).losses == train(corpus, host_masters=True).losses == first
    assert train(corpus, seed=1).losses != first
    losses = train(corpus, steps=30).losses
    assert losses[-1] < losses[0] - 0.5


def test_a_bfloat16_model_is_the_rounding_of_its_masters() -> None:
    from accelerator.cpu_accelerator import CPU_Accelerator

    torch.manual_seed(0)
    model = torch.nn.Linear(5, 3).to(torch.bfloat16)
    copies = masters.HostMasters(model, CPU_Accelerator())
    optimizer = adamw(copies.parameters())
    for _ in range(3):
        model(torch.randn(4, 5, dtype=torch.bfloat16)).sum().backward()
        gradients = [parameter.grad.clone() for parameter in model.parameters()]
        copies.wait_for_gradients()
        assert all(parameter.grad is None for parameter in model.parameters())
        for master, gradient in zip(copies.parameters(), gradients, strict=True):
            assert torch.equal(master.grad, gradient.float())
        optimizer.step()
        copies.send_up()
    for parameter, master in zip(model.parameters(), copies.parameters(), strict=True):
        assert master.dtype == torch.float32
        assert torch.equal(parameter, master.to(torch.bfloat16))
        assert not torch.equal(parameter.float(), master)


def test_a_loss_that_is_not_a_number_agrees_with_nothing() -> None:
    nan = float("nan")
    assert comparison.compare([1.0, 2.0], [1.0, 2.0], (1.0, 1.0)).ok
    assert not comparison.compare([1.0, nan], [1.0, nan], (1.0, 1.0)).ok
    assert not comparison.compare([1.0, 2.0], [1.0, 2.0], (nan, 1.0)).ok
