"""CUDA architectures mean what torch means by them; torch's own parser is the oracle."""

from __future__ import annotations

import pytest
from torch.utils import cpp_extension

from op_builder import env
from op_builder.errors import AccelError, EnvironmentValueError
from op_builder.toolchains.cuda_archs import gencode_flags, parse_arch_list, target_archs


@pytest.mark.parametrize(
    "text", ["8.0", "8.0;9.0a+PTX", "7.5 8.6+PTX", "Ampere", "Volta+Tegra;Turing", "10.0a;12.0", "Blackwell"]
)
def test_same_flags_as_torch(text: str) -> None:
    with env.scope(TORCH_CUDA_ARCH_LIST=text):
        theirs = cpp_extension._get_cuda_arch_flags()
    assert sorted(gencode_flags(parse_arch_list(text))) == theirs


@pytest.mark.parametrize("text", ["eight", "8", "sm_80", "8.0,9.0"])
def test_an_entry_that_is_none_is_named(text: str) -> None:
    with pytest.raises(EnvironmentValueError, match="TORCH_CUDA_ARCH_LIST"):
        parse_arch_list(text)


def test_gencode_of_a_wrong_entry_is_an_error() -> None:
    with pytest.raises(AccelError, match="'90'"):
        gencode_flags(["90"])


@pytest.mark.parametrize(
    ("asked", "toolkit", "devices", "expected"),
    [
        ("9.0a", (13, 0), [(8, 0)], ["9.0a"]),
        (None, (13, 0), [(9, 0), (8, 0), (9, 0)], ["8.0", "9.0+PTX"]),
        ("native", (13, 0), [(7, 5)], ["7.5+PTX"]),
        (" ; ", (13, 0), [(8, 6)], ["8.6+PTX"]),
        # without a device
        (None, (13, 0), [], ["7.5", "8.0", "8.6", "8.9", "9.0", "10.0", "12.0+PTX"]),
        (None, (12, 4), [], ["7.5", "8.0", "8.6", "8.9", "9.0+PTX"]),
        (None, (11, 8), [], ["7.5", "8.0", "8.6", "8.9", "9.0+PTX"]),
        # a device newer than the toolkit
        (None, (12, 4), [(12, 1)], ["9.0+PTX"]),
        (None, (12, 8), [(12, 1), (8, 0)], ["8.0", "12.0+PTX"]),
        (None, (11, 7), [(9, 0), (8, 9)], ["8.7+PTX"]),
        (None, (13, 0), [(12, 1)], ["12.1+PTX"]),
        (None, (14, 0), [(13, 0)], ["13.0+PTX"]),
    ],
)
def test_what_is_compiled_for(
    asked: str | None, toolkit: tuple[int, int], devices: list[tuple[int, int]], expected: list[str]
) -> None:
    with env.scope(TORCH_CUDA_ARCH_LIST=asked):
        assert target_archs(toolkit, devices) == expected
