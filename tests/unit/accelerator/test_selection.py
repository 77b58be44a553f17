"""Accelerators from other installed distributions."""

from __future__ import annotations

import pytest

from accelerator.errors import AcceleratorSelectionError
from accelerator.selection import builder_package, choose, is_registered
from op_builder import env
from tests.support.machines import PLUGIN_SOURCE, Machine, PluginSite, accepted_label, reasons

pytestmark = pytest.mark.usefixtures("machine")


def source(members: str = "pass") -> str:
    return PLUGIN_SOURCE.format(members=members)


@pytest.mark.parametrize(("priority", "taken"), [(None, "cuda"), (250, "acme"), (2000, "acme"), (-1, "cuda")])
def test_a_plugin_has_its_own_priority_and_precedes_the_cpu(
    plugin_site: PluginSite, machine: Machine, priority: int | None, taken: str
) -> None:
    plugin_site.install("acme", "plugin_acme", source(f"detection_priority = {priority}" if priority else "pass"))
    assert accepted_label(choose()) == ("cpu" if priority == -1 else "acme (plugin_acme:Plugin)")
    machine.cuda(1)
    selection = choose()
    assert selection.name == taken


def test_a_plugin_may_be_any_attribute_and_counts_as_registered(plugin_site: PluginSite) -> None:
    plugin_site.install(
        "acme", "plugin_acme", f"{source()}\nclass Outer:\n    Plugin = Plugin\n", "plugin_acme:Outer.Plugin"
    )
    plugin_site.install("aaa", "plugin_aaa", "", "plugin_aaa:Absent")
    selection = choose()
    assert selection.name == "acme"
    assert is_registered(type(selection.accelerator))
    assert not is_registered(type("Mine", (type(selection.accelerator),), {}))


def test_an_override_loads_the_named_plugin_alone(plugin_site: PluginSite) -> None:
    plugin_site.install("acme", "plugin_acme", source("detection_priority = -5"))
    plugin_site.install("other", "plugin_other", "raise AssertionError('loaded')")
    for name, label in (("acme", "acme (plugin_acme:Plugin)"), ("ACME", "acme (plugin_acme:Plugin)"), ("cpu", "cpu")):
        with env.scope(ACCEL_ACCELERATOR=name):
            assert accepted_label(choose()) == label
    with env.scope(ACCEL_ACCELERATOR="acmee"):
        selection = choose()
    assert "cpu, acme, other." in str(selection.error)


NO_REASON = "probe() must return None or a reason (str), found "
CLASH = "the name 'cuda' belongs to a built-in accelerator"
REJECTED = [
    ("acme", "raise OSError('no driver')", "OSError: no driver"),
    ("acme", "import sys; sys.exit('bye')", "SystemExit: bye"),
    ("acme", "pass", "AttributeError: module 'plugin_acme' has no attribute 'Plugin'"),
    ("acme", source("detection_priority = True"), "detection_priority must be an int, found True"),
    ("cuda", source(), CLASH),
    ("acme", source("probe = staticmethod(lambda: 'card unplugged')"), "card unplugged"),
    ("acme", source("probe = staticmethod(lambda: 1 / 0)"), "ZeroDivisionError: division by zero"),
    *(("acme", source(f"probe = staticmethod(lambda: {each})"), NO_REASON + each) for each in ("True", "False", "''")),
    ("acme", "class Plugin:\n    def is_available(self): return True", "not an accelerator: missing: "),
    ("acme", "class Plugin:\n    def is_available(self): return False", "no device is available"),
    ("acme", "class Plugin:\n    def __init__(self): raise MemoryError('no room')", "MemoryError: no room"),
]


@pytest.mark.parametrize(("name", "text", "reason"), REJECTED)
def test_a_plugin_that_cannot_be_used_is_a_rejection(
    plugin_site: PluginSite, name: str, text: str, reason: str
) -> None:
    plugin_site.install(name, "plugin_acme", text)
    selection = choose()
    assert accepted_label(selection) == "cpu"
    assert reasons(selection)[f"{name} (plugin_acme:Plugin)"].startswith(reason)


def test_a_plugin_that_cannot_be_imported_is_in_every_trace(plugin_site: PluginSite, machine: Machine) -> None:
    machine.cuda(1)
    plugin_site.install("acme", "plugin_acme", "raise OSError('no driver')")
    selection = choose()
    assert accepted_label(selection) == "cuda"
    assert reasons(selection)["acme (plugin_acme:Plugin)"] == "OSError: no driver"


def test_the_first_of_two_plugins_with_the_same_name_wins(plugin_site: PluginSite) -> None:
    plugin_site.install("acme", "plugin_a", source())
    plugin_site.install("acme", "plugin_b", source())
    plugin_site.install("cuda", "plugin_cuda", source())
    assert accepted_label(choose()) == "acme (plugin_a:Plugin)"
    plugin_site.install("zeta", "plugin_z", source("detection_priority = 1"))
    with env.scope(ACCEL_ACCELERATOR="zeta"):
        selection = choose()
    assert accepted_label(selection) == "zeta (plugin_z:Plugin)"
    assert reasons(selection)["cuda (plugin_cuda:Plugin)"] == CLASH


def test_a_prebuild_uses_the_class_of_a_named_plugin_without_a_device(plugin_site: PluginSite) -> None:
    members = "probe = staticmethod(lambda: 'card unplugged'); builder_package = 'acme.ops'"
    plugin_site.install("acme", "plugin_acme", source(members))
    with env.scope(ACCEL_ACCELERATOR="acme"):
        assert choose().error is not None
        assert builder_package() == ("acme", "acme.ops")
    assert builder_package() == ("cpu", "op_builder.cpu"), "not named, it is detected like any other"
    for name in ("cuda", "npu"):  # nor the package or the device of a built-in one
        with env.scope(ACCEL_ACCELERATOR=name):
            assert builder_package() == (name, f"op_builder.{'host' if name == 'npu' else name}")
    without = source("builder_package = None; op_builder_dir = lambda self: 'late.ops'")
    plugin_site.install("late", "plugin_late", without)  # without a declared package, the accelerator provides it
    with env.scope(ACCEL_ACCELERATOR="late"):
        assert builder_package() == ("late", "late.ops")


def test_naming_a_broken_plugin_is_an_error_with_the_reason(plugin_site: PluginSite) -> None:
    plugin_site.install("acme", "plugin_acme", "import sys; sys.exit('bye')")
    with env.scope(ACCEL_ACCELERATOR="acme"), pytest.raises(AcceleratorSelectionError, match="SystemExit: bye"):
        builder_package()
