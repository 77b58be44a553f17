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


HOPPER, BLACKWELL = [(5, 0), (7, 5), (8, 0), (8, 6), (8, 9), (9, 0)], [(7, 5), (8, 0), (9, 0), (10, 0), (12, 0)]


@pytest.mark.parametrize(
    ("asked", "supported", "devices", "expected"),
    [
        ("9.0a", BLACKWELL, [(8, 0)], ["9.0a"]),
        (None, BLACKWELL, [(9, 0), (8, 0), (9, 0)], ["8.0", "9.0+PTX"]),
        ("native", BLACKWELL, [(7, 5)], ["7.5+PTX"]),
        (" ; ", BLACKWELL, [(8, 6)], ["8.6+PTX"]),
        # without a device
        (None, BLACKWELL, [], ["7.5", "8.0", "9.0", "10.0", "12.0+PTX"]),
        (None, HOPPER, [], ["7.5", "8.0", "8.6", "8.9", "9.0+PTX"]),
        (None, [], [], ["7.5", "8.0", "8.6", "8.9", "9.0", "10.0", "12.0+PTX"]),
        # a device newer than the toolkit
        (None, HOPPER, [(12, 1), (8, 0)], ["8.0", "9.0+PTX"]),
        (None, [], [(13, 0)], ["13.0+PTX"]),
    ],
)
def test_what_is_compiled_for(
    asked: str | None, supported: list[tuple[int, int]], devices: list[tuple[int, int]], expected: list[str]
) -> None:
    with env.scope(TORCH_CUDA_ARCH_LIST=asked):
        assert target_archs(supported, devices) == expected
