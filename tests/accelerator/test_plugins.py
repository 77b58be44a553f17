"""Accelerators of other distributions, installed for real on a path of their own."""

from __future__ import annotations

import pytest
from simulated_machines import PLUGIN_SOURCE, Machine, PluginSite, accepted_label, reasons

from accelerator.detection import Chosen, Refused
from accelerator.errors import AcceleratorSelectionError
from accelerator.plugins import is_registered
from accelerator.selection import builder_package, choose
from op_builder import env

pytestmark = pytest.mark.usefixtures("machine")


def source(members: str = "pass") -> str:
    return PLUGIN_SOURCE.format(members=members)


def test_a_plugin_comes_before_the_cpu_by_itself(plugin_site: PluginSite, machine: Machine) -> None:
    plugin_site.install("acme", "plugin_acme", source())
    assert accepted_label(choose()) == "acme (plugin_acme:Plugin)"
    machine.cuda(1)
    assert accepted_label(choose()) == "cuda"


@pytest.mark.parametrize(("priority", "taken"), [(50, "cuda"), (250, "acme"), (2000, "acme"), (-1, "cuda")])
def test_a_plugin_has_a_priority_of_its_own(
    plugin_site: PluginSite, machine: Machine, priority: int, taken: str
) -> None:
    machine.cuda(1)
    plugin_site.install("acme", "plugin_acme", source(f"detection_priority = {priority}"))
    selection = choose()
    assert isinstance(selection, Chosen)
    assert selection.name == taken


@pytest.mark.parametrize(
    ("attribute", "spelled"),
    [("Outer.Plugin", "{}:{}"), ("Plugin", "{}:{} [fast]"), ("Plugin", "{}: {}"), ("Plugin", "{} : {}")],
)
def test_an_entry_point_may_be_spelled_in_all_ways(plugin_site: PluginSite, attribute: str, spelled: str) -> None:
    text = source("def device_name(self, device_index=None): return 'acme'") + "class Outer:\n    Plugin = Plugin\n"
    plugin_site.install("acme", "plugin_acme", text, spelled.format("plugin_acme", attribute))
    plugin_site.install("aaa", "plugin_aaa", "", "plugin_aaa:Absent")  # what cannot be looked up stands in no way
    selection = choose()
    assert isinstance(selection, Chosen)
    assert selection.name == "acme"
    assert is_registered(type(selection.accelerator))
    assert not is_registered(type("Mine", (type(selection.accelerator),), {}))


def test_an_override_names_a_plugin_and_loads_only_that_one(plugin_site: PluginSite) -> None:
    plugin_site.install("acme", "plugin_acme", source("detection_priority = -5"))
    plugin_site.install("other", "plugin_other", "raise AssertionError('loaded')")
    with env.scope(ACCEL_ACCELERATOR="acme"):
        selection = choose()
    assert isinstance(selection, Chosen)
    assert type(selection.accelerator).__module__ == "plugin_acme"


def test_the_allowed_names_include_plugins(plugin_site: PluginSite) -> None:
    plugin_site.install("acme", "plugin_acme", source())
    with env.scope(ACCEL_ACCELERATOR="acmee"):
        selection = choose()
    assert isinstance(selection, Refused)
    assert "cpu, acme." in str(selection.error)


def test_an_override_that_names_a_built_in_loads_no_plugin(plugin_site: PluginSite) -> None:
    plugin_site.install("acme", "plugin_acme", "raise AssertionError('loaded')")
    with env.scope(ACCEL_ACCELERATOR="cpu"):
        assert isinstance(choose(), Chosen)


NO_REASON = "probe() must return None or a reason (str), found "
BROKEN = [
    ("acme", "raise OSError('no driver')", "OSError: no driver"),
    ("acme", "import sys; sys.exit('bye')", "SystemExit: bye"),
    ("acme", "pass", "AttributeError: module 'plugin_acme' has no attribute 'Plugin'"),
    ("acme", source("detection_priority = 'high'"), "detection_priority must be an int, found 'high'"),
    ("acme", source("probe = staticmethod(lambda: 'card unplugged')"), "card unplugged"),
    ("acme", source("probe = staticmethod(lambda: 1 / 0)"), "ZeroDivisionError: division by zero"),
    *(("acme", source(f"probe = staticmethod(lambda: {each})"), NO_REASON + each) for each in ("True", "False", "''")),
    ("acme", "class Plugin:\n    def is_available(self): return True", "not an accelerator: missing: "),
    ("acme", "class Plugin:\n    def is_available(self): return False", "is_available() is False"),
    ("cuda", source(), "the name 'cuda' belongs to a built-in accelerator"),
]


@pytest.mark.parametrize(("name", "text", "reason"), BROKEN)
def test_a_plugin_that_cannot_be_used_is_a_rejection(
    plugin_site: PluginSite, name: str, text: str, reason: str
) -> None:
    plugin_site.install(name, "plugin_acme", text)
    selection = choose()
    assert isinstance(selection, Chosen)
    assert selection.name == "cpu"
    assert reasons(selection)[f"{name} (plugin_acme:Plugin)"].startswith(reason)


@pytest.mark.parametrize(
    ("name", "text", "reason"), [BROKEN[0], BROKEN[3], ("acme", source("detection_priority = True"), ""), BROKEN[-1]]
)
def test_what_is_wrong_with_a_plugin_is_told_whatever_is_chosen(
    plugin_site: PluginSite, machine: Machine, name: str, text: str, reason: str
) -> None:
    machine.cuda(1)
    plugin_site.install(name, "plugin_acme", text)
    selection = choose()
    assert isinstance(selection, Chosen)
    assert selection.name == "cuda"
    assert reasons(selection)[f"{name} (plugin_acme:Plugin)"].startswith(reason or "detection_priority must be an int")


def test_a_clash_is_told_when_another_plugin_is_named(plugin_site: PluginSite) -> None:
    plugin_site.install("cuda", "plugin_cuda", source())
    plugin_site.install("acme", "plugin_acme", source())
    with env.scope(ACCEL_ACCELERATOR="acme"):
        selection = choose()
    assert accepted_label(selection) == "acme (plugin_acme:Plugin)"
    assert reasons(selection)["cuda (plugin_cuda:Plugin)"] == "the name 'cuda' belongs to a built-in accelerator"


def test_a_broken_plugin_asked_for_by_name_is_an_error_with_its_reason(plugin_site: PluginSite) -> None:
    plugin_site.install("acme", "plugin_acme", "raise OSError('no driver')")
    with env.scope(ACCEL_ACCELERATOR="acme"):
        selection = choose()
    assert isinstance(selection, Refused)
    assert "'acme' of plugin_acme:Plugin cannot be used: OSError: no driver" in str(selection.error)


def test_of_two_plugins_with_one_name_the_first_has_it(plugin_site: PluginSite) -> None:
    plugin_site.install("acme", "plugin_a", source())
    plugin_site.install("acme", "plugin_b", source())
    selection = choose()
    assert accepted_label(selection) == "acme (plugin_a:Plugin)"
    plugin_site.install("zeta", "plugin_z", source("detection_priority = 1"))
    with env.scope(ACCEL_ACCELERATOR="zeta"):
        selection = choose()
    assert accepted_label(selection) == "zeta (plugin_z:Plugin)"


UNPLUGGED = "probe = staticmethod(lambda: 'card unplugged')"


def test_a_prebuild_asks_the_class_of_a_named_plugin_and_not_its_device(plugin_site: PluginSite) -> None:
    plugin_site.install("acme", "plugin_acme", source(f"{UNPLUGGED}; builder_package = 'acme.ops'"))
    with env.scope(ACCEL_ACCELERATOR="acme"):
        assert isinstance(choose(), Refused)
        assert builder_package() == ("acme", "acme.ops")
    assert builder_package() == ("cpu", "op_builder.cpu"), "not named, it is detected like any other"


def test_a_plugin_without_a_declared_package_is_asked_for_it(plugin_site: PluginSite) -> None:
    plugin_site.install(
        "acme", "plugin_acme", source("builder_package = None; op_builder_dir = lambda self: 'late.ops'")
    )
    with env.scope(ACCEL_ACCELERATOR="acme"):
        assert builder_package() == ("acme", "late.ops")


@pytest.mark.parametrize(
    ("text", "reason"),
    [("raise OSError('no driver')", "OSError: no driver"), ("import sys; sys.exit('bye')", "SystemExit: bye")],
)
def test_a_prebuild_tells_why_a_named_plugin_cannot_be_had(plugin_site: PluginSite, text: str, reason: str) -> None:
    plugin_site.install("acme", "plugin_acme", text)
    with env.scope(ACCEL_ACCELERATOR="acme"), pytest.raises(AcceleratorSelectionError, match=reason):
        builder_package()
    with env.scope(ACCEL_ACCELERATOR="acmee"), pytest.raises(AcceleratorSelectionError, match="Unknown accelerator"):
        builder_package()
