"""The conformance kit on the CPU, and its command line."""

# ruff: noqa: ARG002 - broken accelerators take the arguments of the methods they stand for

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from accelerator.abstract_accelerator import DeepSpeedAccelerator
from accelerator.conformance import main, run_isolated
from accelerator.cpu_accelerator import CPU_Accelerator
from accelerator.errors import AcceleratorUnavailableError
from accelerator.testing import (
    CHECKS,
    Ability,
    Check,
    ConformanceError,
    Failed,
    NotApplicable,
    Passed,
    check_conformance,
)
from op_builder import env


class Recording:
    """A proxy of an accelerator that notes which members were asked for."""

    def __init__(self, target: object) -> None:
        self._target = target
        self.asked: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        self.asked.add(name)
        return getattr(self._target, name)


def failures(accelerator: object) -> dict[str, str]:
    return {result.name: result.note for result in check_conformance(accelerator).failures}


@pytest.mark.parametrize("check", CHECKS, ids=str)
def test_the_cpu_conforms(check: Check) -> None:
    check.require(CPU_Accelerator())


def test_every_member_of_the_contract_is_asked() -> None:
    recording = Recording(CPU_Accelerator())
    report = check_conformance(recording)
    assert report.passed, str(report)
    public = {name for name in vars(DeepSpeedAccelerator) if not name.startswith("_")}
    assert public - recording.asked == set()


def test_checks_have_names_and_sentences_of_their_own() -> None:
    assert len({check.name for check in CHECKS}) == len(CHECKS)
    assert len({check.proves for check in CHECKS}) == len(CHECKS)
    assert all(check.proves.endswith(".") for check in CHECKS)


def test_the_guide_shows_every_check() -> None:
    guide = (Path(__file__).parents[2] / "docs" / "conformance.md").read_text()
    assert [check.name for check in CHECKS if f" {check.name} " not in guide] == []


class NoneForFp16(CPU_Accelerator):
    def is_fp16_supported(self) -> Any:
        return None


class WrongDeviceString(CPU_Accelerator):
    def device_name(self, device_index: int | None = None) -> str:
        return "cpu" if device_index is None else f"cpu:{device_index + 1}"


class SeedIgnored(CPU_Accelerator):
    def manual_seed(self, seed: int) -> Any:
        return None


class PeakBelowCurrent(CPU_Accelerator):
    def max_memory_allocated(self, device_index: int | None = None) -> int:
        return 1 << 20


class NoNearMatches(CPU_Accelerator):
    def get_op_builder(self, class_name: str) -> Any:
        try:
            return super().get_op_builder(class_name)
        except Exception:
            raise KeyError("no such op") from None


class NothingWritten(CPU_Accelerator):
    def set_visible_devices_envs(self, env: Any, ids: Any) -> None:
        env["VISIBLE"] = "all"


class AnyBackend(CPU_Accelerator):
    def set_compile_backend(self, backend: str) -> None:
        self._compile_backend = backend


class Exits(CPU_Accelerator):
    def memory_snapshot(self, *args: Any, **kwargs: Any) -> Any:
        raise SystemExit("the driver gave up")


class LazyForever(CPU_Accelerator):
    def lazy_call(self, callback: Any) -> Any:
        return None


BROKEN: list[tuple[type, set[str], str]] = [
    (NoneForFp16, {"type_questions_answer_yes_or_no", "supported_dtypes_agree"}, "found None of type NoneType"),
    # A device whose strings carry an index is one whose set_device() must refuse an index.
    (
        WrongDeviceString,
        {"device_strings_parse", "index_out_of_range_is_an_error"},
        "expected the index 0 or none",
    ),
    (SeedIgnored, {"manual_seed_is_reproducible", "initial_seed_is_the_seed"}, "expected the same numbers"),
    (PeakBelowCurrent, {"peak_covers_current", "peak_remembers_what_was_freed"}, "found 1048576"),
    (NoNearMatches, {"unknown_builder_is_an_error"}, "to suggest CPUAdamBuilder, found 'no such op'"),
    (NothingWritten, {"visible_devices_are_written"}, "'VISIBLE': 'all'"),
    (AnyBackend, {"wrong_compile_backend_is_refused"}, "expected a ValueError, found none"),
    (Exits, {"snapshot_is_told"}, "it raised SystemExit: the driver gave up"),
    (LazyForever, {"lazy_call_runs_once"}, "expected number of calls 1, found 0"),
]


@pytest.mark.parametrize(("broken", "fitting", "reason"), BROKEN, ids=lambda value: getattr(value, "__name__", None))
def test_a_broken_accelerator_fails_the_fitting_checks_alone(broken: type, fitting: set[str], reason: str) -> None:
    found = failures(broken())
    assert set(found) == fitting
    assert any(reason in note for note in found.values()), found


ONE_CARD = """
import os
from accelerator.cpu_accelerator import CPU_Accelerator
from accelerator.errors import AcceleratorUnavailableError

visible = os.environ.get("CUDA_VISIBLE_DEVICES")
{broken}

class OneCard(CPU_Accelerator):
    def set_device(self, device_index):
        if device_index != 0:
            raise IndexError(device_index)

    def device_count(self):
        {count}
"""


@pytest.mark.parametrize(
    ("broken", "count", "seen"),
    [
        ("", "return 1", NotApplicable("there is one device, and an empty variable does not hide it")),
        ("", "if visible != '': return 1\n        raise AcceleratorUnavailableError('none')", Passed("0 of 1")),
        # Formerly that passed: whatever the child of no device did was no device seen.
        ("if visible is not None: raise OSError('no driver')", "return 1", "left devices [0] failed: "),
        ("if visible == '': raise OSError('no driver')", "return 1", "left devices [] failed: "),
    ],
)
def test_a_child_that_fails_is_no_hidden_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str, count: str, seen: Any
) -> None:
    (tmp_path / "one_card.py").write_text(ONE_CARD.format(broken=broken, count=count))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "one_card", raising=False)
    accelerator = importlib.import_module("one_card").OneCard()
    check = next(check for check in CHECKS if check.name == "visible_devices_are_honoured")
    with env.scope(PYTHONPATH=os.pathsep.join(sys.path)):
        outcome = check.run(accelerator).outcome
    if isinstance(seen, str):
        assert isinstance(outcome, Failed)
        assert seen in outcome.reason
        assert "OSError: no driver" in outcome.reason
    else:
        assert outcome == seen


def test_an_object_that_is_no_accelerator_fails_and_never_crashes() -> None:
    report = check_conformance(object())
    assert not report.passed
    assert "has_every_member: expected no structural fault, found missing: is_synchronized_device" in str(report)


def test_what_a_set_up_lacks_is_not_applicable_with_the_reason() -> None:
    report = check_conformance(CPU_Accelerator(), lacks={Ability.TENSORS: "no kernels today"})
    assert report.passed
    skipped = {r.name for r in report.results if r.outcome == NotApplicable("no kernels today")}
    assert skipped == {check.name for check in CHECKS if Ability.TENSORS in check.needs}


def test_a_check_for_pytest_raises_with_its_sentence() -> None:
    check = next(check for check in CHECKS if check.name == "lazy_call_runs_once")
    with pytest.raises(ConformanceError, match=r"lazy_call_runs_once: On a device .* found 0"):
        check.require(LazyForever())


def test_without_a_device_there_is_nothing_to_check() -> None:
    class Absent(CPU_Accelerator):
        def is_available(self) -> bool:
            return False

    with pytest.raises(AcceleratorUnavailableError, match="Absent says that no device is available"):
        check_conformance(Absent())


def test_the_callers_random_numbers_go_on_as_before() -> None:
    state = torch.get_rng_state()
    torch.manual_seed(7)
    expected = torch.rand(4)
    torch.manual_seed(7)
    random_checks = [check for check in CHECKS if check.group == "random numbers"]
    for check in random_checks:
        check.require(CPU_Accelerator())
    assert torch.equal(torch.rand(4), expected)
    torch.set_rng_state(state)


def test_importing_the_package_imports_no_kit() -> None:
    program = "import sys, accelerator.cpu_accelerator; sys.exit(any('testing' in n or 'conformance' in n "
    program += "for n in sys.modules if n.startswith('accelerator')))"
    assert subprocess.run([sys.executable, "-c", program], env=env.child_environment()).returncode == 0


# The command line ---------------------------------------------------------------------------


def test_the_command_line_runs_the_cpu_and_prints_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cpu", "--json", "--without", "graphs=not today"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["accelerator"] == "cpu"
    assert data["passed"] is True
    assert [result["name"] for result in data["results"]] == [check.name for check in CHECKS]
    notes = {result["name"]: (result["status"], result["note"]) for result in data["results"]}
    assert notes["graphs_replay"] == ("not applicable", "not today")


def test_an_unknown_name_and_a_missing_device_are_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["quantum"]) == 2
    assert "Unknown accelerator 'quantum'; allowed are" in capsys.readouterr().err
    assert main(["npu"]) == 2
    assert "NPU_Accelerator requires torch_npu" in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_cuda_without_a_device_is_a_clear_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cuda"]) == 2
    assert "CUDA_Accelerator says that no device is available" in capsys.readouterr().err


def test_a_wrong_ability_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["cpu", "--without", "wings=broken"])
    assert caught.value.code == 2
    assert "'wings' is no ability; there are tensors, streams" in capsys.readouterr().err


@pytest.mark.parametrize("seconds", ["0", "-3", "inf", "nan", "soon"])
def test_a_time_that_is_none_is_refused(capsys: pytest.CaptureFixture[str], seconds: str) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["cpu", f"--timeout={seconds}"])
    assert caught.value.code == 2
    assert f"'{seconds}' is no time: expected a number of seconds above 0" in capsys.readouterr().err


def test_names_of_checks_are_whole_in_a_narrow_window(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from accelerator.conformance import _print_table
    from accelerator.testing import CheckResult, ConformanceReport

    monkeypatch.setenv("COLUMNS", "80")
    results = (CheckResult(check.name, check.group, check.proves, Passed("seen " * 20)) for check in CHECKS)
    _print_table(ConformanceReport("cpu", tuple(results)))
    text = capsys.readouterr().out
    assert [check.name for check in CHECKS if f" {check.name} " not in text] == []


@pytest.mark.slow
def test_a_check_that_hangs_or_kills_its_process_fails_and_the_rest_goes_on(plugin_site: Any, tmp_path: Any) -> None:
    source = (
        "import os, time\n"
        "from accelerator.cpu_accelerator import CPU_Accelerator\n"
        "class Plugin(CPU_Accelerator):\n"
        "    def range_push(self, *args, **kwargs):\n"
        "        os.kill(os.getpid(), 11)\n"
        "    def device_capability(self, device_index=None):\n"
        "        time.sleep(600)\n"
    )
    plugin_site.install("fragile", "plugin_fragile", source)
    with env.scope(ACCEL_ACCELERATOR="fragile", PYTHONPATH=f"{tmp_path / 'site'}:{':'.join(sys.path)}"):
        report = run_isolated("fragile", {}, timeout_s=20)
    outcomes = {result.name: result.outcome for result in report.results}
    assert outcomes["ranges_open_and_close"] == Failed("it ended its process, signal SIGSEGV")
    assert outcomes["capability_is_told"] == Failed("it did not finish within 20 s")
    assert len(report.failures) == 2
    assert isinstance(outcomes["wrong_compile_backend_is_refused"], Passed)
