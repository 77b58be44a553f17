"""The page "Troubleshooting": the messages and remedies that are read from the sources are those that are raised."""

from __future__ import annotations

import re
from collections.abc import Callable

import error_list
import pytest

import accelerator.errors
import op_builder.errors
from accelerator import get_accelerator
from accelerator.launch import plan_binding
from op_builder import env, load_inline
from op_builder.errors import AccelError
from op_builder.ops.arguments import checked_betas
from op_builder.report.collect import find_op
from op_builder.toolchains.remedies import COMPILE, LOAD


def test_every_error_class_is_known_with_its_meaning() -> None:
    classes = error_list.error_classes()
    for module in (accelerator.errors, op_builder.errors):
        for name, value in vars(module).items():
            if isinstance(value, type) and issubclass(value, AccelError):
                assert classes[name]


@pytest.mark.parametrize(
    "fail",
    [
        lambda: plan_binding(ranks=0),
        lambda: checked_betas(None),
        lambda: find_op("no_such_module:Builder"),
        lambda: find_op("cpu_adm"),
        lambda: get_accelerator().create_op_builder("CPUAdmBuilder"),
        lambda: env.ACCEL_MAX_JOBS.get(),
        lambda: load_inline("f", "int f() { return 1; }"),
    ],
)
def test_what_is_raised_is_listed(fail: Callable[[], object]) -> None:
    with env.scope(ACCEL_MAX_JOBS="many"), pytest.raises(AccelError) as raised:
        fail()

    def fits(pattern: str, text: str) -> bool:
        escaped = re.escape(pattern).replace(r"\ …", "(?: .*)?").replace("…", ".*")  # the last part may be missing
        return re.fullmatch(escaped, text, re.DOTALL) is not None

    error = raised.value
    assert [
        entry
        for entry in error_list.entries()
        if entry.error == type(error).__name__
        and fits(entry.message, error.message)
        and fits(entry.remedy, error.remedy)
    ]


def test_what_stands_for_the_pattern_of_a_tools_message_is_found_by_it() -> None:
    for pattern, _ in (*COMPILE, *LOAD):
        assert re.search(pattern, error_list.sample(pattern).replace("…", "20")), pattern


def test_the_commonest_errors_have_a_remedy_and_those_without_words_are_left_out() -> None:
    listed = error_list.entries()
    begins = ("Building op", "Op '…' is not available", "The cache directory", "Unknown op", "Unknown accelerator")
    for begin in begins:
        found = [entry for entry in listed if entry.message.startswith(begin)]
        assert found
        assert error_list.ITS_LINE not in [entry.remedy for entry in found]
    assert sum(entry.remedy == error_list.ITS_LINE for entry in listed) < 10
    assert not [
        entry for entry in listed if entry.message in ("…; this is ….", "… is of type ….", "… cannot be used: ….")
    ]


def test_the_page_has_a_table_for_each_class_with_messages() -> None:
    page = error_list.PAGE.read_text(encoding="utf-8")
    assert page == error_list.page(), "run: python build_tools/error_list.py"
    for entry in error_list.entries():
        assert not entry.error or f"## `{entry.error}`" in page


def test_every_class_with_a_remedy_has_messages() -> None:
    without_remedy = {"BuildCancelled"}
    of_devices = {"AcceleratorUnavailableError"}  # each device has a sentence of its own
    listed = {entry.error for entry in error_list.entries()}
    assert error_list.error_classes().keys() - listed == without_remedy | of_devices
