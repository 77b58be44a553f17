"""The accelerator of a process: chosen once, quietly, and safe to fork."""

from __future__ import annotations

import importlib
import logging
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import torch

import accelerator
from accelerator import get_accelerator
from accelerator.cpu_accelerator import CPU_Accelerator
from accelerator.errors import AcceleratorSelectionError
from op_builder import env
from tests.support.machines import PLUGIN_SOURCE, PluginSite

pytestmark = pytest.mark.usefixtures("fresh", "machine")


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="get_acelerator"):
        accelerator.get_acelerator  # noqa: B018
    assert "get_accelerator" in dir(accelerator)


def test_threads_get_one_object_and_the_fallback_to_the_cpu_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "accelerator")
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: get_accelerator(), range(8)))
    assert len({id(each) for each in found}) == 1
    assert type(get_accelerator()) is CPU_Accelerator
    assert caplog.text.count("No accelerator was detected") == 1


@pytest.mark.parametrize(
    ("build", "variables", "level"),
    [
        ("none", {}, "INFO"),
        ("cuda", {}, "WARNING"),
        ("cuda", {"RANK": "0", "SLURM_PROCID": "1"}, "WARNING"),
        ("cuda", {"RANK": "3"}, "INFO"),
        ("hip", {"PMI_RANK": "0"}, "WARNING"),
        ("cuda", {"DS_ACCELERATOR": "cpu"}, ""),  # chosen, no fallback
    ],
)
def test_the_fallback_warns_once_per_job_and_only_if_torch_supports_a_device(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, build: str, variables: dict[str, str], level: str
) -> None:
    caplog.set_level(logging.INFO, "accelerator")
    for name in ("cuda", "hip", "xpu"):
        monkeypatch.setattr(torch.version, name, "12.8" if name == build else None, raising=False)
    unset = dict.fromkeys(("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"))
    with env.scope(**{**unset, **variables}):
        get_accelerator()
    assert [record.levelname for record in caplog.records] == level.split()


def test_a_wrong_override_raises_each_time_and_is_not_cached() -> None:
    for _ in range(2):
        with env.scope(ACCEL_ACCELERATOR="npu"), pytest.raises(ValueError, match="requires torch_npu"):
            get_accelerator()
    assert get_accelerator().device_name() == "cpu"


def test_a_plugin_that_calls_get_accelerator_at_import_is_rejected(plugin_site: PluginSite) -> None:
    source = "from accelerator import get_accelerator\nget_accelerator()\n" + PLUGIN_SOURCE.format(members="pass")
    plugin_site.install("acme", "plugin_loop", source)
    with env.scope(ACCEL_ACCELERATOR="acme"), pytest.raises(AcceleratorSelectionError, match="while a package"):
        get_accelerator()
    assert type(get_accelerator()) is CPU_Accelerator


@pytest.mark.parametrize("name", [None, "acme"])
@pytest.mark.parametrize("last", ["pass", "raise OSError('no driver')"])
def test_set_accelerator_during_detection_has_precedence(
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


def test_threads_that_import_and_detect_at_once_do_not_wait_for_each_other(
    plugin_site: PluginSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One thread imports a package, which calls get_accelerator(); the other detects, and waits for that import."""
    is_importing, is_detecting = threading.Event(), threading.Event()
    events = SimpleNamespace(is_importing=is_importing, is_detecting=is_detecting)
    monkeypatch.setitem(sys.modules, "events_of_this_test", events)
    first = "import events_of_this_test as events\nevents.is_detecting.set()\n"
    second = "import events_of_this_test as events\nevents.is_importing.set()\nevents.is_detecting.wait(60)\n"
    second += "from accelerator import get_accelerator\nget_accelerator()\n" + PLUGIN_SOURCE.format(members="pass")
    plugin_site.install("acme", "plugin_acme", first)
    plugin_site.install("zeta", "plugin_zeta", second)
    threads = [
        threading.Thread(target=importlib.import_module, args=("plugin_zeta",), daemon=True),
        threading.Thread(target=get_accelerator, daemon=True),
    ]
    threads[0].start()
    assert is_importing.wait(60)
    threads[1].start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
