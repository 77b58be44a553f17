"""Compiler flags of one word and of two."""

from __future__ import annotations

import pytest

from op_builder.toolchains.flags import grouped_flags


@pytest.mark.parametrize(
    ("words", "groups"),
    [
        (["-D", "X=1", "-O3"], [("-D", "X=1"), ("-O3", "")]),
        (["-DX=1", "-isystem/opt", "-Ia"], [("-D", "X=1"), ("-isystem", "/opt"), ("-I", "a")]),
        (["-Xclang", "-DX", "-g"], [("-Xclang", "-DX"), ("-g", "")]),
        (["--param", "max-inline-insns-auto=1"], [("--param", "max-inline-insns-auto=1")]),
        (["-O2", "-D"], [("-O2", ""), ("-D", "")]),
    ],
    ids=lambda value: " ".join(map(str, value)),
)
def test_flags_are_cut_from_their_values(words: list[str], groups: list[tuple[str, str]]) -> None:
    found = list(grouped_flags(words))
    assert [(flag, value) for flag, value, _ in found] == groups
    assert [word for *_, written in found for word in written if word] == words
