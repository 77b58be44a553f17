"""The accelerator of a process: chosen once, quietly, and safe to import and to fork."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from simulated_machines import PLUGIN_SOURCE, Machine, PluginSite

from accelerator import get_accelerator, is_current_accelerator_supported, real_accelerator, set_accelerator
from accelerator.cpu_accelerator import CPU_Accelerator
from accelerator.errors import AcceleratorSelectionError
from op_builder import env

ROOT = Path(__file__).resolve().parents[2]


def run_python(*arguments: str, **variables: str | None) -> subprocess.CompletedProcess[str]:
    environment = env.child_environment(**{"PYTHONPATH": str(ROOT), **variables})
    return subprocess.run([sys.executable, *arguments], env=environment, capture_output=True, text=True, check=False)


IMPORT_CHECK = """
import os, sys, subprocess, socket
def forbidden(*a, **k): raise AssertionError("a process was started")
subprocess.Popen = os.system = os.posix_spawn = forbidden
before = dict(os.environ)
import accelerator, op_builder
assert "torch" not in sys.modules and "numpy" not in sys.modules and "logging" not in sys.modules
from accelerator import get_accelerator, set_accelerator, is_current_accelerator_supported
from accelerator.real_accelerator import SUPPORTED_ACCELERATOR_LIST
from accelerator.abstract_accelerator import Accelerator
assert "torch" not in sys.modules
assert before == dict(os.environ)
assert not os.listdir(".")
"""


def test_importing_does_nothing(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    code = f"import os; os.chdir({str(tmp_path / 'empty')!r})\n{IMPORT_CHECK}"
    result = run_python("-c", code, HOME=str(tmp_path / "empty"), PYTHONDONTWRITEBYTECODE="1")
    assert result.returncode == 0, result.stderr


def test_importing_adds_at_most_30_ms_to_pythons_start() -> None:
    resource = pytest.importorskip("resource")

    def seconds(statement: str) -> float:  # of processor time, which other processes do not lengthen much
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        result = run_python("-c", statement)
        assert result.returncode == 0, result.stderr
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return float(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)

    run_python("-c", "import accelerator, op_builder")  # writes the bytecode once
    with_it = min(seconds("import accelerator, op_builder") for _ in range(7))
    without = min(seconds("pass") for _ in range(7))
    assert with_it - without <= 0.030


def test_a_name_that_the_package_lacks_is_an_attribute_error() -> None:
    import accelerator

    with pytest.raises(AttributeError, match="has no attribute 'get_acelerator'"):
        accelerator.get_acelerator  # noqa: B018
    assert "get_accelerator" in dir(accelerator)


@pytest.mark.usefixtures("fresh", "machine")
def test_the_second_call_returns_the_same_object_in_under_a_microsecond() -> None:
    first = get_accelerator()
    assert isinstance(first, CPU_Accelerator)
    assert get_accelerator() is first
    calls = 20_000
    best = min(timed_calls(calls) for _ in range(5))
    assert best / calls < 1e-6


def timed_calls(calls: int) -> float:
    begin = time.perf_counter()
    for _ in range(calls):
        get_accelerator()
    return time.perf_counter() - begin


@pytest.mark.usefixtures("fresh", "machine")
def test_falling_back_to_the_cpu_warns_once(caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(3):
        get_accelerator()
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "No accelerator was detected" in caplog.text


@pytest.mark.usefixtures("fresh", "machine")
def test_choosing_the_cpu_by_name_warns_not(caplog: pytest.LogCaptureFixture) -> None:
    with env.scope(DS_ACCELERATOR="cpu"):
        assert get_accelerator().device_name() == "cpu"
    assert not caplog.records


@pytest.mark.usefixtures("fresh")
def test_a_detected_device_warns_not(machine: Machine, caplog: pytest.LogCaptureFixture) -> None:
    machine.cuda(1)
    assert get_accelerator().device_name() == "cuda"
    assert not caplog.records


def test_the_warning_reaches_a_user_who_set_up_no_logging_even_with_warnings_as_errors() -> None:
    code = "from accelerator import get_accelerator as g; g(); g(); print(g().device_name())"
    result = run_python("-W", "error::UserWarning", "-c", code, CUDA_VISIBLE_DEVICES="-1")
    if "cpu" not in result.stdout:
        pytest.skip("this machine has an accelerator")
    assert result.stderr.count("No accelerator was detected") == 1


@pytest.mark.usefixtures("fresh", "machine")
def test_a_wrong_override_raises_each_time_and_is_not_remembered() -> None:
    for _ in range(2):
        with env.scope(ACCEL_ACCELERATOR="npu"), pytest.raises(ValueError, match="NPU_Accelerator requires torch_npu"):
            get_accelerator()
    assert get_accelerator().device_name() == "cpu"


@pytest.mark.usefixtures("fresh", "machine")
def test_threads_that_ask_at_once_get_one_object() -> None:
    found: list[object] = []
    threads = [threading.Thread(target=lambda: found.append(get_accelerator())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({id(accelerator) for accelerator in found}) == 1
    assert len(found) == 8


@pytest.mark.usefixtures("fresh", "machine")
def test_a_plugin_that_asks_for_the_accelerator_while_it_is_imported_is_rejected(
    plugin_site: PluginSite, caplog: pytest.LogCaptureFixture
) -> None:
    source = "from accelerator import get_accelerator\nget_accelerator()\n" + PLUGIN_SOURCE.format(members="pass")
    plugin_site.install("acme", "plugin_loop", source)
    with (
        env.scope(ACCEL_ACCELERATOR="acme"),
        pytest.raises(AcceleratorSelectionError, match="called by a package that it is just asking"),
    ):
        get_accelerator()
    assert type(get_accelerator()) is CPU_Accelerator
    assert "No accelerator was detected" in caplog.text


@pytest.mark.usefixtures("fresh", "machine")
@pytest.mark.parametrize("name", [None, "acme"])
@pytest.mark.parametrize("last", ["pass", "raise OSError('no driver')"])
def test_what_is_set_while_the_accelerator_is_chosen_stays(
    plugin_site: PluginSite, caplog: pytest.LogCaptureFixture, name: str | None, last: str
) -> None:
    text = PLUGIN_SOURCE.format(members="set_by_hand = False")
    text += f"mine = Plugin()\nmine.set_by_hand = True\nfrom accelerator import set_accelerator as s; s(mine)\n{last}\n"
    plugin_site.install("acme", "plugin_acme", text)
    with env.scope(ACCEL_ACCELERATOR=name):
        chosen = get_accelerator()
    assert getattr(chosen, "set_by_hand", False)
    assert get_accelerator() is chosen
    assert not caplog.records


@pytest.mark.usefixtures("fresh", "machine")
def test_a_plugins_accelerator_counts_as_supported(plugin_site: PluginSite) -> None:
    members = "def device_name(self, device_index=None): return 'acme'"
    plugin_site.install("acme", "plugin_acme", PLUGIN_SOURCE.format(members=members))
    assert get_accelerator().device_name() == "acme"
    assert is_current_accelerator_supported() is True
    set_accelerator(get_accelerator())
    assert is_current_accelerator_supported() is True
    set_accelerator(type("Mine", (type(get_accelerator()),), {})())
    assert is_current_accelerator_supported() is False


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.usefixtures("fresh", "machine")
def test_a_child_forked_while_another_thread_chooses_can_choose() -> None:
    holding, release = threading.Event(), threading.Event()

    def hold() -> None:
        with real_accelerator._lock:
            holding.set()
            release.wait(30)

    thread = threading.Thread(target=hold)
    thread.start()
    holding.wait(30)
    child = os.fork()
    if child == 0:
        os._exit(0 if get_accelerator().device_name() == "cpu" else 1)
    release.set()
    thread.join()
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            assert os.waitstatus_to_exitcode(status) == 0
            return
        time.sleep(0.01)
    os.kill(child, 9)
    os.waitpid(child, 0)
    pytest.fail("the child waits for a lock whose holder it does not have")
