"""The platforms that ACCEL_BUILD_TARGET may name."""

from __future__ import annotations

import pytest

from op_builder import env
from op_builder.errors import EnvironmentValueError, ToolchainError
from op_builder.system.target import requested_target
from op_builder.toolchains.packaged import require_libgomp


@pytest.mark.parametrize(
    ("name", "platform"),
    [
        (None, None),  # this machine
        ("linux_x86_64", ("linux", "x86_64")),
        ("linux_aarch64", ("linux", "aarch64")),
        ("macosx_arm64", ("darwin", "arm64")),
    ],
)
def test_a_platform_is_named_as_in_tags_of_wheels(name: str | None, platform: tuple[str, str] | None) -> None:
    with env.scope(ACCEL_BUILD_TARGET=name):
        target = requested_target()
    assert (target and (target.system, target.machine)) == platform


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("linux_arm64", "expected one of linux_x86_64, linux_aarch64, macosx_arm64.\n"),
        ("win_amd64", "win_amd64 is not supported: the ops call functions of POSIX"),
        ("macosx_x86_64", "torch >= 2.10 does not run there"),
    ],
)
def test_another_platform_is_refused(name: str, reason: str) -> None:
    with env.scope(ACCEL_BUILD_TARGET=name), pytest.raises(EnvironmentValueError) as raised:
        requested_target()
    assert reason in str(raised.value)
    with env.scope(ACCEL_BUILD_TARGET="linux_x86_64"), pytest.raises(EnvironmentValueError, match="--target"):
        requested_target(name)


def test_openmp_code_is_refused_for_another_platform() -> None:
    with pytest.raises(ToolchainError, match=r"'acme' is compiled with -fopenmp.*linux_aarch64"):
        require_libgomp("acme", requested_target("linux_aarch64"))
