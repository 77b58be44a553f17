from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from op_builder import env
from op_builder.cpu import CPUAdamBuilder, CPULionBuilder
from op_builder.errors import EnvironmentValueError, UnknownOpError
from op_builder.prebuild.request import BuildRequest, variable_of


@pytest.fixture(autouse=True)
def nothing_requested() -> Iterator[None]:
    with env.scope(**{name: None for name in os.environ if name.startswith("ACCEL_BUILD_")}):
        yield


@pytest.mark.parametrize(
    ("variables", "request_"),
    [
        ({}, BuildRequest(False, {})),
        ({"ACCEL_BUILD_OPS": "1"}, BuildRequest(True, {})),
        ({"ACCEL_BUILD_OPS": "", "ACCEL_BUILD_CPU_SGD": ""}, BuildRequest(False, {})),
        ({"ACCEL_BUILD_OPS": "0", "ACCEL_BUILD_TORCH": "/usr"}, BuildRequest(False, {})),
        ({"ACCEL_BUILD_TARGET": "linux_aarch64"}, BuildRequest(True, {})),
        ({"ACCEL_BUILD_TARGET": "linux_aarch64", "ACCEL_BUILD_OPS": "0"}, BuildRequest(False, {})),
        (
            {"ACCEL_BUILD_TARGET": "linux_aarch64", "ACCEL_BUILD_CPU_SGD": "1"},
            BuildRequest(False, {"ACCEL_BUILD_CPU_SGD": True}),
        ),
        (
            {"ACCEL_BUILD_OPS": "True", "ACCEL_BUILD_CPU_SGD": "off", "ACCEL_BUILD_CPU_ADAM": "on"},
            BuildRequest(True, {"ACCEL_BUILD_CPU_SGD": False, "ACCEL_BUILD_CPU_ADAM": True}),
        ),
    ],
)
def test_the_environment_is_read(variables: dict[str, str], request_: BuildRequest) -> None:
    with env.scope(**variables):
        assert BuildRequest.from_environment() == request_


@pytest.mark.parametrize("name", ["ACCEL_BUILD_OPS", "ACCEL_BUILD_CPU_ADAM"])
def test_a_switch_that_is_neither_0_nor_1_is_refused(name: str) -> None:
    with env.scope(**{name: "yes"}), pytest.raises(EnvironmentValueError, match=f"{name}='yes' is not valid"):
        BuildRequest.from_environment()


@pytest.mark.parametrize(
    ("named", "variable"),
    [("ACCEL_BUILD_OTHER", "ACCEL_BUILD_OTHER"), ("", "ACCEL_BUILD_MINE"), ("DS_BUILD_MINE", "ACCEL_BUILD_MINE")],
)
def test_an_op_whose_builder_names_no_such_variable_has_one_after_its_name(named: str, variable: str) -> None:
    mine = type("MineBuilder", (CPUAdamBuilder,), {"NAME": "mine", "BUILD_VAR": named})
    assert variable_of(mine().spec()) == variable


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("ACCEL_BUILD_CPU_ADM", "Did you mean ACCEL_BUILD_CPU_ADAM?"),
        ("ACCEL_BUILD_WARP_DRIVE", "Unset it. The variables are: ACCEL_BUILD_CPU_ADAM, ACCEL_BUILD_CPU_LION."),
    ],
)
def test_a_switch_of_no_op_is_refused_with_the_nearest_names(name: str, remedy: str) -> None:
    ops = [CPULionBuilder.SPEC, CPUAdamBuilder.SPEC]
    BuildRequest(True, {"ACCEL_BUILD_CPU_ADAM": False}).check_names(ops)
    with pytest.raises(UnknownOpError, match=f"{name} is set.* Acme is broken") as refused:
        BuildRequest(False, {name: True}).check_names(ops, "Acme is broken.")
    assert refused.value.remedy == remedy
